"""Preprocess images of any size for a network, with the same numbers in torch and in exported graphs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from opencil.data.readers.source import read_image
from opencil.data.transforms import Transform, crop_centre, scale_length
from opencil.errors import not_allowed

#: Longer images lose their ends before they are resized: a line of pixels would become gigabytes.
_LONGEST = 4
#: Rows that are resized at a time: floats of all pixels of a photo would be a gigabyte.
_STRIP = 256


class Preprocessing(nn.Module):
    """Resize uint8 images [N, 3, H, W] by their shorter side, crop the centre and normalise: [N, 3, S, S].

    It has the values of a transform and is its ``test``, except that resized pixels are not rounded to bytes:
    runtimes round differently. Without ``resize``, the shorter side becomes that of the crop. Of an image
    more than four times as long as wide, only the middle part counts.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        resize = transform.resize or transform.crop
        if transform.crop > resize:
            raise not_allowed("crop", transform.crop, f"images are resized to {resize} pixels")
        self.transform = replace(transform, resize=resize)
        mean, std = transform.channel_statistics(torch.device("cpu"))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return normalised float32 images [N, 3, S, S]."""
        height, width = images.shape[-2:]
        images = crop_centre(images, _smaller(height, _LONGEST * width), _smaller(width, _LONGEST * height))
        resize, side, interpolation = self.transform.resize, self.transform.crop, self.transform.interpolation
        assert resize is not None
        if torch.compiler.is_exporting():
            pixels = resize_by_products(images, resize, side, interpolation)
        else:
            pixels = crop_centre(resize_in_strips(images, resize, interpolation), side, side).float()
        return (pixels / 255 - self.mean) / self.std


def resize_in_strips(images: Tensor, side: int, interpolation: str) -> Tensor:
    """Resize bytes as ``resize_shorter_side`` does floats, bit for bit: first rows, a strip at a time.

    Pixels are float64, since positions in float32 are off by 1e-5 pixels.
    """
    height, width = images.shape[-2:]
    rows, columns = (scale_length(length, min(height, width), side) for length in (height, width))
    strips = [
        F.interpolate(strip.double(), (strip.shape[-2], columns), mode=interpolation, antialias=True)
        for strip in torch.split(images, _STRIP, dim=-2)
    ]
    return F.interpolate(
        torch.cat(strips, dim=-2), (rows, columns), mode=interpolation, antialias=True
    ).clamp(0, 255)


def resize_by_products(images: Tensor, resize: int, crop: int, interpolation: str) -> Tensor:
    """Resize and crop uint8 images as products with two matrices: float pixels [N, 3, crop, crop].

    Other runtimes have a resizing of their own, of other roundings. Matrices from positions in float64 are
    the same everywhere.
    """
    height, width = images.shape[-2:]
    short = _smaller(height, width)
    rows, columns = (
        _weights(length, scale_length(length, short, resize), crop, interpolation)
        for length in (height, width)
    )
    return (rows @ images.float() @ columns.T).clamp(0, 255)


def _weights(length: int, resized: int, crop: int, interpolation: str) -> Tensor:
    """Return the weights [crop, length] of pixels in the middle pixels of a resized side."""
    numbers = torch.arange(crop) + (resized - crop) // 2
    centres = ((2 * numbers + 1) * length).double() / (2 * resized)  # exact up to the division
    stretch = (torch.ones(1, dtype=torch.float64) * length / resized).clamp(min=1)
    apart = ((torch.arange(length) + 0.5 - centres[:, None]) / stretch).abs()
    if interpolation == "bilinear":
        weights = (1 - apart).clamp(min=0)
    else:  # Keys' cubic kernel with a = −1/2
        near = (1.5 * apart - 2.5) * apart.square() + 1
        far = ((2.5 - 0.5 * apart) * apart - 4) * apart + 2
        weights = torch.where(apart < 1, near, torch.where(apart < 2, far, 0))
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def _smaller(one: int, other: int) -> int:
    return torch.sym_min(one, other)  # type: ignore[no-untyped-call,no-any-return]


def decode_image(read: Callable[[], bytes], name: str) -> Tensor:
    """Decode the image file that ``read`` returns: uint8 [3, H, W], RGB, turned upright by its EXIF data.

    Errors call it ``name``; ``CorruptImage`` is a broken file, or one with too many pixels.
    """
    pixels = np.array(read_image(read, name, upright=True))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
