"""A split's images as a reader delivers them, and where on disk it was found."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np

from opencil.data.readers.decode import (
    LARGEST_IMAGE,
    CorruptImage,
    Pixels,
    file_content,
    fit,
    read_image,
    too_large,
)
from opencil.errors import BadInput, one_line

Labels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class ImageSource(ABC):
    """Labels at hand and images on demand. ``classes`` are the names of labels 0, 1, …

    ``pixels`` may be called from several threads at once.
    """

    labels: Labels
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def files(self) -> Sequence[Path]:
        """The images' own files, where they have any."""
        return ()

    def at_hand(self, side: int) -> bool:
        """Whether an image of that side needs no decoding: it is only copied."""
        return False

    def content(self, index: int) -> bytes | None:
        """The bytes of an image's own file; None where images are no files."""
        return None

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call an image in a message."""

    @abstractmethod
    def pixels(self, index: int, side: int) -> Pixels:
        """An image as uint8 [3, side, side]; one that cannot be decoded raises ``CorruptImage``."""


@dataclass(frozen=True)
class ArraySource(ImageSource):
    """Images that one file holds as an array: uint8 [N, H, W] grey or [N, H, W, 3] RGB."""

    place: Path
    array: Pixels

    def __post_init__(self) -> None:
        shape = self.array.shape
        if self.array.dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] != 3):
            raise BadInput(f"{self.place} holds pixels of {self.array.dtype} {list(shape)}: bytes are needed")
        if shape[1] * shape[2] > LARGEST_IMAGE:
            raise too_large(str(self.place), (shape[2], shape[1]))
        if len(self.labels) != len(self.array):
            raise BadInput(f"{self.place} holds {len(self.array)} images and {len(self.labels)} labels")

    def at_hand(self, side: int) -> bool:
        """Whether the array holds images of that side."""
        return bool(self.array.shape[1:] == (side, side, 3))

    def name(self, index: int) -> str:
        """The file and the image's number in it."""
        return f"{self.place}[{index}]"

    def pixels(self, index: int, side: int) -> Pixels:
        """An image of the array, resized where it needs to be."""
        array = self.array[index]
        if array.shape == (side, side, 3):
            turned: Pixels = array.transpose(2, 0, 1)
            return turned
        from PIL import Image

        return fit(Image.fromarray(array).convert("RGB"), side, self.name(index))


@dataclass(frozen=True)
class FileSource(ImageSource):
    """Images that are files of their own."""

    paths: Sequence[Path]

    @property
    def files(self) -> Sequence[Path]:
        """The images' own files."""
        return self.paths

    def name(self, index: int) -> str:
        """The file's path."""
        return str(self.paths[index])

    def content(self, index: int) -> bytes:
        """The file's bytes."""
        return file_content(self.paths[index], self.name(index))

    def pixels(self, index: int, side: int) -> Pixels:
        """The decoded file."""
        name = self.name(index)
        return fit(read_image(self.paths[index], name), side, name)


@dataclass(frozen=True)
class ZipSource(ImageSource):
    """Images that are members of a zip archive."""

    archive: Path
    members: Sequence[str]

    @cached_property
    def _zip(self) -> ZipFile:
        return ZipFile(self.archive)

    def name(self, index: int) -> str:
        """The archive and the member in it."""
        return f"{self.archive}:{self.members[index]}"

    def content(self, index: int) -> bytes:
        """The member's bytes."""
        with self._opened(index) as member:
            return file_content(member, self.name(index))

    def pixels(self, index: int, side: int) -> Pixels:
        """The decoded member."""
        name = self.name(index)
        with self._opened(index) as member:
            return fit(read_image(member, name), side, name)

    def _opened(self, index: int) -> IO[bytes]:
        try:
            return self._zip.open(self.members[index])  # zipfile takes turns between threads
        except OSError as error:
            raise BadInput(f"archive {self.archive} cannot be read: {error.strerror or error}") from None
        except Exception as error:
            name = self.name(index)
            raise CorruptImage(f"image {name} cannot be decoded: {one_line(error)}") from None


@dataclass(frozen=True)
class Subset(ImageSource):
    """Some images of another source, in their order."""

    whole: ImageSource
    rows: Labels

    @classmethod
    def without(cls, source: ImageSource, left_out: Sequence[int]) -> "Subset":
        """All images but some."""
        rows = np.setdiff1d(np.arange(len(source)), left_out)
        return cls(source.labels[rows], source.classes, source, rows)

    def at_hand(self, side: int) -> bool:
        """Whether the other source's images are."""
        return self.whole.at_hand(side)

    def content(self, index: int) -> bytes | None:
        """The other source's."""
        return self.whole.content(int(self.rows[index]))

    def name(self, index: int) -> str:
        """The image's name in the other source."""
        return self.whole.name(int(self.rows[index]))

    def pixels(self, index: int, side: int) -> Pixels:
        """The other source's image."""
        return self.whole.pixels(int(self.rows[index]), side)


@dataclass(frozen=True)
class SplitOnDisk:
    """A split at a place on disk, in a known layout; it is read when its ``source`` is first asked for.

    ``parts`` are the files that hold it whole, or the list that names its images; ``separate`` says that
    every image is a file of its own beside them.
    """

    layout: str
    place: Path
    read: Callable[[], ImageSource]
    parts: tuple[Path, ...] = ()
    separate: bool = False

    @cached_property
    def source(self) -> ImageSource:
        """Its images, read once."""
        return self.read()

    def files(self) -> list[Path]:
        """All files that the images depend on: their sizes and times are the cache's key."""
        return [*self.parts, *(self.source.files if self.separate else ())]


class Layout(ABC):
    """A way in which a dataset's split may lie in a folder."""

    @property
    @abstractmethod
    def places(self) -> tuple[str, ...]:
        """Where it looks, relative to a folder of downloads; the first is what to tell people."""

    @abstractmethod
    def find(self, base: Path) -> SplitOnDisk | None:
        """The split below ``base``, or None where it does not lie there."""
