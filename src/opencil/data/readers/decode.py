"""One image, from a file's bytes to a square of RGB bytes.

Pillow is imported where it is used: listing the registered datasets should cost nothing.
"""

import io
import lzma
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from opencil.errors import BadInput, one_line

if TYPE_CHECKING:
    from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Endings of the files that count as images.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
#: The formats of those files: Pillow knows others, and one of them (EPS) would start another program.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: The most pixels of an image that is decoded, or enlarged: a camera takes no more. So many take up to three
#: seconds and, four bytes each, 200 MB in every thread that decodes; a network reads a thousandth of them.
LARGEST_IMAGE = 50_000_000
#: Pixels of an image that may be nearly empty; one of more has a byte for every thousand, or it is a bomb.
_SMALL, _PIXELS_PER_BYTE = 2**22, 1000
#: The largest image file that is read: eight bytes a pixel, as 16 bits of four channels have.
_LARGEST = 8 * LARGEST_IMAGE


class CorruptImage(BadInput):
    """An image cannot be decoded; the message names it."""


def read_image(file: Path | IO[bytes], name: str) -> "Image.Image":
    """Decode a whole image file as RGB; ``name`` is what an error calls it."""
    from PIL import Image, UnidentifiedImageError

    content = file_content(file, name)
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _refuse_bombs(image.size, len(content), name)
            image.load()
            return as_rgb(image)
    except (MemoryError, CorruptImage):
        raise
    # Pillow's own limits lie above ours: at the first it warns, at the second it gives no size.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large(name) from None
    except Exception as error:  # Pillow's decoders answer broken files with errors of many kinds
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else one_line(error)
        raise CorruptImage(f"image {name} cannot be decoded: {reason}") from None


def too_large(name: str, size: tuple[int, int] | None = None) -> CorruptImage:
    """The error for an image that is not decoded, or not enlarged, because it has too many pixels."""
    limit = f"more than {LARGEST_IMAGE:,}"
    has = f"{size[0]} x {size[1]} pixels, {limit}" if size else f"{limit} pixels"
    return CorruptImage(f"image {name} is refused: it has {has}: make it smaller first, or leave it out")


def _refuse_bombs(size: tuple[int, int], length: int, name: str) -> None:
    """Look at what a header announces, before anything is decoded."""
    pixels = size[0] * size[1]
    if pixels > LARGEST_IMAGE:
        raise too_large(name, size)
    if pixels > max(_SMALL, _PIXELS_PER_BYTE * length):
        raise CorruptImage(
            f"image {name} is refused: it announces {size[0]} x {size[1]} pixels and has {length:,} bytes, "
            f"less than one for {_PIXELS_PER_BYTE:,} of them"
        )


def file_content(file: Path | IO[bytes], name: str) -> bytes:
    """A file's bytes. What the disk or a permission withholds is no corrupt image: it is not left out."""
    try:
        if isinstance(file, Path):
            with file.open("rb") as opened:
                large = os.fstat(opened.fileno()).st_size > _LARGEST
                content = b"" if large else opened.read()
        else:
            content = file.read(_LARGEST + 1)
            large = len(content) > _LARGEST
    except (OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"image {name} cannot be read: {error.strerror}") from None
        raise CorruptImage(f"image {name} cannot be decoded: {one_line(error)}") from None
    if large:
        raise CorruptImage(f"image {name} is refused: it has more than {_LARGEST:,} bytes")
    return content


def as_rgb(image: "Image.Image") -> "Image.Image":
    """Any kind of image as RGB: grey repeated, transparency dropped, 16 bits cut to the upper 8."""
    from PIL import Image

    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # Pillow's own conversion would clip at 255 instead of scaling
        values = np.asarray(image)
        # A TIFF of 32-bit integers may hold plain bytes; all other kinds are scaled to 16 bits.
        bits = 0 if image.mode == "I" and image.format == "TIFF" and values.max() <= 255 else 8
        return Image.fromarray((values >> bits).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a known range")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def fit(image: "Image.Image", side: int, name: str) -> Pixels:
    """An RGB image with its shorter side resized to ``side`` and its centre cropped: uint8 [3, side, side].

    Bilinear with anti-aliasing, and rounded as torchvision's Resize and CenterCrop do, as in the peers' code.
    ``name`` is what an error calls the image: one too long and thin to be enlarged in memory is refused.
    """
    from PIL import Image

    width, height = image.size
    if (width, height) != (side, side):
        short = min(width, height)
        if short != side:
            width, height = int(side * width / short), int(side * height / short)
            if short < side and width * height > LARGEST_IMAGE:
                raise CorruptImage(
                    f"image {name} is refused: with its shorter side at {side} pixels it has "
                    f"{width} x {height} of them, more than {LARGEST_IMAGE:,}"
                )
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - side) / 2), round((height - side) / 2)
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image).transpose(2, 0, 1)
