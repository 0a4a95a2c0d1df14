"""Images of a split as a reader delivers them, and the layouts in which splits are stored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from opencil.data.readers.decode import Pixels, crop_square, read_image
from opencil.errors import BadInput

Labels = np.ndarray[Any, np.dtype[np.int64]]
#: The most bytes that are read into memory from a file; CIFAR-100's training pickle has 155 MB.
LARGEST_FILE = 2**30


@dataclass(frozen=True)
class ImageSource(ABC):
    """Labels in memory, and images that are read on demand. ``classes`` are the names of labels 0, 1, …"""

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
    """Images that a single file stores as an array: uint8 [N, H, W] grey or [N, H, W, 3] RGB."""

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
    """Images that are files of their own, or members of a zip archive."""

    paths: Sequence[Any]  #: of pathlib or zipfile

    def name(self, index: int) -> str:
        """Return the file's path."""
        return str(self.paths[index])

    def pixels(self, index: int, side: int) -> Pixels:
        """Decode the file."""
        name = self.name(index)
        return crop_square(read_image(self.paths[index].read_bytes, name), side, name)


def no_parts(_: Path) -> tuple[Path, ...]:
    """Return no files: each image is a file of its own."""
    return ()


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
    parts: Callable[[Path], tuple[Path, ...]] = lambda place: (place,)
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
