"""From bytes to what a network reads, batched on the device that holds the images."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.validation import Positive, Values, Whole


@dataclass(frozen=True)
class Draw:
    """The random choices for images: crop offsets (0 … 2·padding), int64 [N], and flips, bool [N]."""

    top: Tensor
    left: Tensor
    flip: Tensor

    def __getitem__(self, rows: slice) -> "Draw":
        return Draw(self.top[rows], self.left[rows], self.flip[rows])

    def to(self, device: torch.device) -> "Draw":
        """The same choices on a device."""
        return Draw(self.top.to(device), self.left.to(device), self.flip.to(device))


@dataclass(frozen=True)
class Transform(Values):
    """Random crop with zero padding and horizontal flip for training; normalisation for everything.

    Random choices are drawn apart from being applied: an epoch's are drawn at once, by a seeded generator on
    the CPU, so that every device sees the same images and a captured step contains no random numbers.
    """

    mean: tuple[float, float, float]
    std: tuple[Positive, Positive, Positive]
    padding: Whole = 4
    flip: bool = True

    def draw(self, count: int, generator: torch.Generator) -> Draw:
        """Random choices for ``count`` images."""
        top, left = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator)
        flip = torch.rand(count, generator=generator) < (0.5 if self.flip else 0.0)
        return Draw(top, left, flip)

    def train(self, images: Tensor, draw: Draw) -> Tensor:
        """uint8 [B, 3, H, W] cropped, flipped and normalised: float32 [B, 3, H, W]."""
        batch, channels, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4)
        device = images.device
        rows = draw.top[:, None] + torch.arange(height, device=device)  # [B, H]
        columns = torch.arange(width, device=device).expand(batch, width)
        columns = draw.left[:, None] + torch.where(draw.flip[:, None], columns.flip(1), columns)  # [B, W]
        cropped = padded[
            torch.arange(batch, device=device)[:, None, None, None],
            torch.arange(channels, device=device)[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        return self.test(cropped)

    def test(self, images: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] normalised: float32 [B, 3, H, W]."""
        mean = torch.tensor(self.mean, device=images.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(3, 1, 1)
        return (images.float() / 255 - mean) / std
