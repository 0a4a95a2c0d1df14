"""MNIST's idx files, compressed or not."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from opencil.data.readers.archives import most_within
from opencil.data.readers.source import ArraySource, Layout, SplitOnDisk
from opencil.errors import BadInput

#: The largest idx file that is read; MNIST's own have at most 47 MB.
_LARGEST = 2**30


def read_idx(path: Path, dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An idx file of bytes with so many dimensions; a name that ends in .gz is decompressed."""
    magic = 0x800 + dimensions  # 08: unsigned bytes
    head = 4 * (1 + dimensions)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(head)
            if len(header) < head or struct.unpack(">I", header[:4])[0] != magic:
                raise BadInput(
                    f"{path} does not begin with the magic number {magic} of an idx file of bytes in "
                    f"{dimensions} dimensions, but with {header[:4].hex() or 'nothing'}"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size, length = math.prod(shape), path.stat().st_size
            if not size:
                raise BadInput(f"{path} is empty: its dimensions are {list(shape)}")
            if size > _LARGEST:
                raise BadInput(f"{path} is refused: it announces {size:,} bytes, more than {_LARGEST:,}")
            # What is announced is compared with what is there before there is room made for it.
            if path.suffix != ".gz" and head + size != length:
                raise BadInput(f"{path} announces {size:,} bytes and holds {length - head:,}: it is damaged")
            if size > most_within(length):
                raise BadInput(
                    f"{path} is refused: it announces {size:,} bytes, and has {length:,} compressed"
                )
            content = file.read(size + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be decompressed: {error}") from None
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content):,}"
        raise BadInput(f"{path} announces {size:,} bytes and holds {more}: it is damaged")
    return np.frombuffer(content, np.uint8).reshape(shape)


@dataclass(frozen=True)
class Idx(Layout):
    """A file of images and one of labels, in any of some folders, in any of some spellings."""

    folders: tuple[str, ...]
    images: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """The first folder with the first spelling."""
        return tuple(f"{folder}/{self.images[0]}.gz" for folder in self.folders)

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first folder that has both files."""
        for folder in self.folders:
            images, labels = (_first(base / folder, names) for names in (self.images, self.labels))
            if images and labels:
                return SplitOnDisk("idx", images, partial(_source, images, labels), (images, labels))
        return None


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    spellings = (folder / f"{name}{ending}" for name in names for ending in (".gz", ""))
    return next((path for path in spellings if path.is_file()), None)


def _source(images: Path, labels: Path) -> ArraySource:
    pixels, given = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(given):
        raise BadInput(f"{images} holds {len(pixels)} images and {labels} {len(given)} labels")
    classes = tuple(map(str, range(int(given.max(initial=0)) + 1)))
    return ArraySource(given.astype(np.int64), classes, images, pixels)
