"""Decode an image file into a square of RGB bytes.

Pillow is imported inside functions, so that listing the registered datasets stays fast.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from opencil.errors import BadInput, one_line

if TYPE_CHECKING:
    from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Endings of image files.
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
#: Formats of these files; of Pillow's others, EPS would start another program.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: The most pixels of an image: decoding them takes up to three seconds and 200 MB in each thread.
LARGEST_IMAGE = 50_000_000


class CorruptImage(BadInput):
    """An image cannot be decoded; the message names it."""


def read_image(read: Callable[[], bytes], name: str) -> "Image.Image":
    """Decode the image file that ``read`` returns as RGB; errors call it ``name``.

    An error of the disk or a missing permission does not make an image corrupt.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(read()), formats=_FORMATS) as image:
            _check_size(name, *image.size)
            image.load()
            return _as_rgb(image)
    except (MemoryError, CorruptImage):
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors for broken files
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"image {name} cannot be read: {error.strerror}") from None
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else one_line(error)
        raise CorruptImage(f"image {name} cannot be decoded: {reason}") from None


def _check_size(name: str, width: int, height: int) -> None:
    if width * height > LARGEST_IMAGE:
        raise CorruptImage(
            f"image {name} is refused: it has {width} x {height} pixels, more than {LARGEST_IMAGE:,}: make "
            "it smaller first, or leave it out"
        )


def _as_rgb(image: "Image.Image") -> "Image.Image":
    """Convert any kind of image to RGB: repeat grey, drop transparency, keep the upper 8 of 16 bits."""
    from PIL import Image

    if image.mode.startswith("I"):  # Pillow's own conversion would clip at 255 instead of scaling
        values = np.asarray(image)
        # A TIFF of 32-bit integers may contain plain bytes; all other kinds are scaled to 16 bits.
        bits = 0 if image.mode == "I" and image.format == "TIFF" and values.max() <= 255 else 8
        return Image.fromarray((values >> bits).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a known range")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def crop_square(image: "Image.Image", side: int, name: str) -> Pixels:
    """Resize an RGB image's shorter side to ``side`` and crop its centre: uint8 [3, side, side].

    Bilinear with anti-aliasing, rounded like torchvision's Resize and CenterCrop.
    """
    from PIL import Image

    width, height = image.size
    if (short := min(width, height)) != side:
        width, height = int(side * width / short), int(side * height / short)
        _check_size(name, width, height)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return np.asarray(image.crop((left, top, left + side, top + side))).transpose(2, 0, 1)
