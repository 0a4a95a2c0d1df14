"""One image, from a file's bytes to a square of RGB bytes.

Pillow is imported where it is used: listing the registered datasets should cost nothing.
"""

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from opencil.errors import BadInput

if TYPE_CHECKING:
    from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Endings of the files that count as images.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


class CorruptImage(BadInput):
    """An image cannot be decoded; the message names it."""


def read_image(file: Path | IO[bytes], name: str) -> "Image.Image":
    """Decode a whole image file as RGB; ``name`` is what an error calls it."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            image.load()
            return as_rgb(image)
    # Pillow's decoders answer broken files with many kinds of errors, SyntaxError among them.
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError) as error:
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise CorruptImage(f"image {name} cannot be decoded: {reason}") from None
    except Image.DecompressionBombError as error:
        raise CorruptImage(f"image {name} is refused: {error}") from None


def as_rgb(image: "Image.Image") -> "Image.Image":
    """Any kind of image as RGB: grey repeated, transparency dropped, 16 bits cut to the upper 8."""
    from PIL import Image

    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # Pillow's own conversion would clip at 255 instead of scaling
        return Image.fromarray(
            (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        ).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a known range")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def fit(image: "Image.Image", side: int) -> Pixels:
    """An RGB image with its shorter side resized to ``side`` and its centre cropped: uint8 [3, side, side].

    Bilinear with anti-aliasing, and rounded as torchvision's Resize and CenterCrop do, as in the peers' code.
    """
    from PIL import Image

    width, height = image.size
    if (width, height) != (side, side):
        short = min(width, height)
        if short != side:
            width, height = int(side * width / short), int(side * height / short)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - side) / 2), round((height - side) / 2)
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image).transpose(2, 0, 1)
