"""Preprocess images of any size for a network, with the same numbers in torch and in exported graphs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from opencil.data.readers.source import read_image
from opencil.data.transforms import Transform, crop_centre, resize_shorter_side
from opencil.errors import not_allowed

#: Longer images lose their ends before they are resized: a line of pixels would become gigabytes.
_LONGEST = 4


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
        limits = (height, _LONGEST * width), (width, _LONGEST * height)
        middle = [torch.sym_min(*pair) for pair in limits]  # type: ignore[no-untyped-call]
        values, side = self.transform, self.transform.crop
        assert values.resize is not None
        resized = resize_shorter_side(crop_centre(images, *middle), values.resize, values.interpolation)
        # A graph of any height and width does not know the size of the crop.
        cropped = crop_centre(resized, side, side).reshape(images.shape[0], 3, side, side)
        return (cropped / 255 - self.mean) / self.std


def decode_image(read: Callable[[], bytes], name: str) -> Tensor:
    """Decode the image file that ``read`` returns: uint8 [3, H, W], RGB, turned upright by its EXIF data.

    Errors call it ``name``; ``CorruptImage`` is a broken file, or one with too many pixels.
    """
    pixels = np.array(read_image(read, name, upright=True))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
