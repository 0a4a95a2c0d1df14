"""Images of a split as a reader delivers them, and the layouts in which splits are stored.

Pillow is imported inside functions: listing datasets stays fast.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opencil.errors import BadInput, one_line

if TYPE_CHECKING:
    from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

#: Endings of image files.
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
#: Formats of these files; of Pillow's others, EPS would start another program.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: The most pixels of an image: decoding them takes up to three seconds and 200 MB in each thread.
LARGEST_IMAGE = 50_000_000
#: The most bytes read into memory from a file; CIFAR-100's training pickle has 155 MB.
LARGEST_FILE = 2**30


class CorruptImage(BadInput):
    """An image cannot be decoded; the message names it."""


def read_image(read: Callable[[], bytes], name: str, upright: bool = False) -> "Image.Image":
    """Decode the image file that ``read`` returns as RGB; errors call it ``name``.

    ``upright`` turns it as its EXIF data say. An error of the disk or a missing permission does not make an
    image corrupt.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(read()), formats=_FORMATS) as image:
            _check_size(name, *image.size)
            image.load()
            return as_rgb(ImageOps.exif_transpose(image) if upright else image)
    except (MemoryError, CorruptImage):
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of errors for broken files
        if isinstance(error, OSError) and error.errno:
            raise BadInput(f"image {name} cannot be read: {error.strerror}") from None
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else one_line(error)
        raise CorruptImage(f"image {name} cannot be decoded: {reason}") from None


def _check_size(name: str, width: int, height: int) -> None:
    if width * height > LARGEST_IMAGE:
        raise CorruptImage(f"image {name} has {width} x {height} pixels, more than {LARGEST_IMAGE:,}")


def as_rgb(image: "Image.Image") -> "Image.Image":
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
    """Resize an RGB image bilinearly and crop its centre as torchvision rounds: uint8 [3, side, side]."""
    from PIL import Image

    width, height = image.size
    if (short := min(width, height)) != side:
        width, height = int(side * width / short), int(side * height / short)
        _check_size(name, width, height)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return np.asarray(image.crop((left, top, left + side, top + side))).transpose(2, 0, 1)


@dataclass(frozen=True)
class ImageSource(ABC):
    """Labels in memory, and images read on demand. ``classes`` are the names of labels 0, 1, …"""

    labels: Labels
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of an image in messages."""

    @abstractmethod
    def pixels(self, index: int, side: int) -> Pixels:
        """Return an image as uint8 [3, side, side], from any thread, or raise ``CorruptImage``."""


@dataclass(frozen=True)
class ArraySource(ImageSource):
    """Images stored as an array in a single file: uint8 [N, H, W] grey or [N, H, W, 3] RGB."""

    place: Path
    array: Pixels

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.array):
            raise BadInput(f"{self.place} has {len(self.array)} images and {len(self.labels)} labels")

    def name(self, index: int) -> str:
        """Return the file and the image's number in it."""
        return f"{self.place}[{index}]"

    def pixels(self, index: int, side: int) -> Pixels:
        """Return an image of the array, resized if necessary."""
        from PIL import Image

        array: Pixels = self.array[index]
        if array.shape == (side, side, 3):
            return array.transpose(2, 0, 1)
        return crop_square(Image.fromarray(array).convert("RGB"), side, self.name(index))


@dataclass(frozen=True)
class FileSource(ImageSource):
    """Images in files of their own, or in members of a zip archive."""

    paths: Sequence[Any]  #: of pathlib or zipfile

    def name(self, index: int) -> str:
        """Return the file's path."""
        return str(self.paths[index])

    def pixels(self, index: int, side: int) -> Pixels:
        """Decode the file."""
        name = self.name(index)
        return crop_square(read_image(self.paths[index].read_bytes, name), side, name)


@dataclass(frozen=True)
class Layout:
    """A way to store a split, and the places where it may be, relative to a folder.

    ``fits`` checks a place. ``parts`` returns the files that contain the split, or the list that names its
    images. ``inside`` is the path of an image in a folder, for messages.
    """

    name: str
    places: tuple[str, ...]
    read: Callable[[Path], ImageSource]
    fits: Callable[[Path], bool] = Path.is_file
    parts: Callable[[Path], tuple[Path, ...]] = lambda place: (place,) if place.is_file() else ()
    inside: str = ""

    def find(self, base: Path) -> "SplitOnDisk | None":
        """Return the split at the first place that fits."""
        places = (base / name for name in self.places)
        return next((SplitOnDisk(self, place) for place in places if self.fits(place)), None)


@dataclass(frozen=True)
class SplitOnDisk:
    """A split found at a place on disk."""

    layout: Layout
    place: Path

    @cached_property
    def source(self) -> ImageSource:
        """Return the images; the first access reads the split."""
        return self.layout.read(self.place)

    def files(self) -> list[Path]:
        """Return all files that the images depend on."""
        images = self.source.paths if isinstance(self.source, FileSource) else ()
        return [*self.layout.parts(self.place), *(path for path in images if isinstance(path, Path))]
