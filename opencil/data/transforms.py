"""From bytes to what a network reads, batched on the device that holds the images."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.errors import BadInput
from opencil.validation import Count, Positive, Values, Whole


@dataclass(frozen=True)
class Draw:
    """The random choices for images: crop offsets, int64 [N], and flips, bool [N]."""

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
    """Random crop and horizontal flip for training, centre crop for everything else; then normalisation.

    Random choices are drawn apart from being applied: an epoch's are drawn at once, by a seeded generator on
    the CPU, so that every device sees the same images and a captured step contains no random numbers.
    """

    mean: tuple[float, float, float]
    std: tuple[Positive, Positive, Positive]
    crop: Count
    padding: Whole = 0
    flip: bool = True

    def draw(self, count: int, side: int, generator: torch.Generator) -> Draw:
        """Random choices for ``count`` images of ``side`` × ``side`` pixels."""
        self._check(side)
        span = side + 2 * self.padding - self.crop
        top, left = torch.randint(0, span + 1, (2, count), generator=generator)
        flip = torch.rand(count, generator=generator) < (0.5 if self.flip else 0.0)
        return Draw(top, left, flip)

    def train(self, images: Tensor, draw: Draw) -> Tensor:
        """uint8 [B, 3, H, W] padded with zeros, cropped, flipped, normalised: float32 [B, 3, crop, crop]."""
        device = images.device
        padded = F.pad(images, (self.padding,) * 4)
        pixels = torch.arange(self.crop, device=device)
        rows = draw.top[:, None] + pixels  # [B, crop]
        columns = draw.left[:, None] + torch.where(draw.flip[:, None], pixels.flip(0), pixels)
        cropped = padded[
            torch.arange(len(images), device=device)[:, None, None, None],
            torch.arange(images.shape[1], device=device)[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        return self._normalised(cropped)

    def test(self, images: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] cropped at the centre and normalised: float32 [B, 3, crop, crop]."""
        self._check(min(images.shape[-2:]))
        top, left = ((side - self.crop) // 2 for side in images.shape[-2:])
        return self._normalised(images[:, :, top : top + self.crop, left : left + self.crop])

    def _check(self, side: int) -> None:
        if self.crop > side:
            raise BadInput(f"crop = {self.crop} is not allowed: images of {side} pixels allow at most {side}")

    def _normalised(self, images: Tensor) -> Tensor:
        mean, std = (_per_channel(values, images.device) for values in (self.mean, self.std))
        return (images.float() / 255 - mean) / std


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept, since a captured training step cannot copy them from the host."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
