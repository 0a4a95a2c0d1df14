"""Transform batches of bytes into inputs of a network, on the device of the images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.images import Images
from opencil.errors import BadInput, not_allowed
from opencil.validation import Count, Fraction, Positive, Values, Whole

#: Random choices for N images: top and left of crops, int64; flips, bool; with ``brightness`` its factors.
Draw = Sequence[Tensor]


@dataclass(frozen=True)
class Transform(Values):
    """Random crop and horizontal flip for training, centre crop for evaluation; then normalisation.

    A seeded generator on the CPU draws an epoch's choices at once, the same for any device. ``fit`` replaces
    a mean or std of ``compute``. ``resize`` resizes the shorter side of images before anything else.
    ``brightness`` b multiplies pixels of training images by a factor uniform in [1 − b, 1 + b].
    """

    mean: tuple[float, float, float] | Literal["compute"]
    std: tuple[Positive, Positive, Positive] | Literal["compute"]
    crop: Count
    padding: Whole = 0
    flip: bool = True
    resize: Count | None = None
    brightness: Fraction = 0.0
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  #: of ``resize``

    def varies(self, side: int) -> bool:
        """Return whether training changes images of ``side`` × ``side`` pixels at random."""
        return self.flip or self.brightness > 0 or (self.resize or side) + 2 * self.padding > self.crop

    @property
    def computes(self) -> bool:
        """Return whether statistics have to be computed from the training images."""
        return "compute" in (self.mean, self.std)

    def fit(self, images: Images) -> "Transform":
        """Return the same transform with mean and std computed from training images, if necessary."""
        if not self.computes:
            return self
        mean, std = statistics(images)
        fitted = self if self.mean != "compute" else replace(self, mean=mean)
        return fitted if self.std != "compute" else replace(fitted, std=std)

    def draw(self, count: int, side: int, generator: torch.Generator) -> Draw:
        """Draw the choices for ``count`` images of ``side`` × ``side`` pixels."""
        side = self.resize or side
        self._check(side)
        span = side + 2 * self.padding - self.crop
        top, left = torch.randint(0, span + 1, (2, count), generator=generator)
        flip = torch.rand(count, generator=generator) < (0.5 if self.flip else 0.0)
        if not self.brightness:
            return top, left, flip
        return (top, left, flip, 1 + self.brightness * (2 * torch.rand(count, generator=generator) - 1))

    def train(self, images: Tensor, draw: Draw) -> Tensor:
        """Pad uint8 [B, 3, H, W] with zeros, crop, flip, brighten, normalise: float32 [B, 3, crop, crop]."""
        device, (top, left, flip, *brightness) = images.device, draw
        padded = F.pad(self._resize(images), (self.padding,) * 4)
        pixels = torch.arange(self.crop, device=device)
        rows = top[:, None] + pixels  # [B, crop]
        columns = left[:, None] + torch.where(flip[:, None], pixels.flip(0), pixels)
        cropped = padded[
            torch.arange(len(images), device=device)[:, None, None, None],
            torch.arange(images.shape[1], device=device)[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        for factor in brightness:
            cropped = (cropped * factor[:, None, None, None]).clamp(0, 255)
        return self.normalise(cropped)

    def test(self, images: Tensor) -> Tensor:
        """Crop uint8 [B, 3, H, W] at the centre and normalise: float32 [B, 3, crop, crop]."""
        images = self._resize(images)
        self._check(min(images.shape[-2:]))
        return self.normalise(crop_centre(images, self.crop, self.crop))

    def pixels(self, images: Tensor) -> Tensor:
        """Invert normalisation: float32 pixels 0 … 255, exact for bytes."""
        mean, std = self.channel_statistics(images.device)
        return ((images * std + mean) * 255).round().clamp(0, 255)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise pixels 0 … 255 to float32."""
        mean, std = self.channel_statistics(pixels.device)
        return (pixels.float() / 255 - mean) / std

    def _check(self, side: int) -> None:
        if self.crop > side:
            raise not_allowed("crop", self.crop, f"images of {side} pixels allow at most {side}")

    def _resize(self, images: Tensor) -> Tensor:
        """Resize bytes with anti-aliasing, as image files are resized."""
        height, width = images.shape[-2:]
        if self.resize is None or min(height, width) == self.resize:
            return images
        return resize_shorter_side(images.float(), self.resize, self.interpolation).round().to(torch.uint8)

    def channel_statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return mean and std [3, 1, 1]; raise if they are not computed yet."""
        if isinstance(self.mean, str) or isinstance(self.std, str):
            raise BadInput("the transform's mean and std are not computed yet: call fit(images) first")
        return _per_channel(self.mean, device), _per_channel(self.std, device)


@dataclass(frozen=True)
class Untransformed(Transform):
    """Leave images as they are, as features that stand for images are."""

    mean: tuple[float, float, float] | Literal["compute"] = (0.0, 0.0, 0.0)
    std: tuple[Positive, Positive, Positive] | Literal["compute"] = (1.0, 1.0, 1.0)
    crop: Count = 1
    flip: bool = False

    def train(self, images: Tensor, draw: Draw) -> Tensor:
        """Return the images."""
        return images

    def test(self, images: Tensor) -> Tensor:
        """Return the images."""
        return images


def resize_shorter_side(pixels: Tensor, side: int, interpolation: str) -> Tensor:
    """Resize floating-point pixels [B, 3, H, W] with anti-aliasing; bicubic ones stay within 0 … 255."""
    height, width = pixels.shape[-2:]
    size = [scale_length(length, min(height, width), side) for length in (height, width)]
    return F.interpolate(pixels, size=size, mode=interpolation, antialias=True).clamp(0, 255)


def scale_length(length: int, short: int, side: int) -> int:
    """Return the rounded length of a side where the shorter one becomes ``side``."""
    return (2 * side * length + short) // (2 * short)


def crop_centre(images: Tensor, height: int, width: int) -> Tensor:
    """Return the middle of images [B, 3, H, W]; odd margins are smaller above and left."""
    top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
    return images.narrow(-2, top, height).narrow(-1, left, width)


def statistics(images: Images) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return mean and std of each channel, in [0, 1], of at most 20,000 images at even distances."""
    chosen = torch.linspace(0, len(images) - 1, min(len(images), 20_000)).round().long()
    total, squares, count = torch.zeros(3).double(), torch.zeros(3).double(), 0
    for pixels in images.batches(chosen, max(1, 2**22 // images.side**2)):  # about 100 MB of doubles
        values = pixels.cpu().double() / 255
        total += values.sum(dim=(0, 2, 3))
        squares += values.square().sum(dim=(0, 2, 3))
        count += values[:, 0].numel()
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    (r, g, b), (s, t, u) = ([round(v, 4) for v in values.tolist()] for values in (mean, std))
    if not (s and t and u):
        raise BadInput(f"std cannot be computed from {images.name!r}: all its images are of one colour")
    return (r, g, b), (s, t, u)


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return a cached tensor: a captured training step cannot copy it from the host."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
