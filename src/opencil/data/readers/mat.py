"""SVHN's MATLAB file, read here: scipy's reader ends the whole process at some damaged files."""

import math
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opencil.data.readers.archives import LARGEST_MEMBER, most_within
from opencil.data.readers.source import ArraySource, Layout, SplitOnDisk
from opencil.errors import BadInput, one_line

#: Kinds of elements of a file in MATLAB's format 5, and the numbers that an element may hold.
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
#: Kinds of arrays that hold no plain numbers; 6 to 15 do.
_OTHERS = {1: "cell", 2: "struct", 3: "object", 4: "text", 5: "sparse"}
_COMPLEX = 0x800
#: Bytes that hold an array's head: its kind, its dimensions and its name.
_HEAD = 1024


@dataclass(frozen=True)
class Mat(Layout):
    """A .mat file with ``X`` [H, W, 3, N] and ``y`` [N, 1]; the digit 0 is written as 10."""

    files: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """The files it may be."""
        return self.files

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first of the files."""
        place = next((base / name for name in self.files if (base / name).is_file()), None)
        return SplitOnDisk(".mat", place, partial(_source, place), (place,)) if place else None


def _source(place: Path) -> ArraySource:
    try:
        content = read_mat(place, ("X", "y"))
    except Exception as error:  # damaged files fail in many ways
        raise BadInput(f"{place} cannot be read as a MATLAB file: {one_line(error)}") from None
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        raise BadInput(f"{place} has no X of bytes [H, W, 3, N] with y: it is not SVHN's")
    if not np.isin(labels, range(11)).all():
        raise BadInput(f"{place} has a y with other values than the digits 0 to 10: it is not SVHN's")
    digits = labels.reshape(-1).astype(np.int64) % 10
    return ArraySource(digits, tuple("0123456789"), place, images.transpose(3, 0, 1, 2))


def read_mat(place: Path, names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of numbers of these names in a file of MATLAB's format 5; all else is passed over.

    What an array announces is compared with what there can be before it is decompressed.
    """
    length = place.stat().st_size
    most = min(LARGEST_MEMBER, most_within(length))
    if length > LARGEST_MEMBER:
        raise ValueError(f"it has more than {LARGEST_MEMBER:,} bytes")
    content = place.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("it is not of format 5")
    arrays, at = {}, 128
    while at < len(content):
        kind, start, size = _element(content, at, order)
        at = start + size
        if at > len(content):
            raise ValueError(f"it ends {at - len(content):,} bytes too early")
        inflater = zlib.decompressobj() if kind == _COMPRESSED else None
        head = inflater.decompress(content[start:at], _HEAD) if inflater else content[start - 8 : at]
        kind, start, _ = _element(head, 0, order)
        if kind != _MATRIX:
            continue
        name, shape, start = _head(head, start, order, names)
        if name not in names:
            continue
        if (count := math.prod(shape)) > most:
            raise ValueError(f"its {name} has more than {most:,} bytes")
        if inflater:
            head += inflater.decompress(inflater.unconsumed_tail, 8 * count + _HEAD)
        arrays[name] = _numbers(head, start, order, name, shape)
    return arrays


def _element(content: bytes, at: int, order: str) -> tuple[int, int, int]:
    """An element's kind, and where it begins and how long it is; short ones begin within their tag."""
    kind, size = struct.unpack_from(f"{order}II", content, at)
    return (kind & 0xFFFF, at + 4, kind >> 16) if kind >> 16 else (kind, at + 8, size)


def _after(start: int, size: int) -> int:
    """Where the next element begins: at a multiple of eight bytes."""
    return start + size + -(start + size) % 8


def _head(content: bytes, at: int, order: str, names: tuple[str, ...]) -> tuple[str, tuple[int, ...], int]:
    """An array's name and dimensions, and where its numbers begin."""
    kind, start, size = _element(content, at, order)
    if (kind, size) != (_UINT32, 8):
        raise ValueError("an array does not say what it holds")
    (flags,) = struct.unpack_from(f"{order}I", content, start)
    kind, start, size = _element(content, _after(start, size), order)
    if kind != _INT32 or not 8 <= size <= _HEAD // 4:
        raise ValueError("an array does not say how large it is")
    shape = struct.unpack_from(f"{order}{size // 4}i", content, start)
    kind, start, size = _element(content, _after(start, size), order)
    name = content[start : start + size].decode("ascii") if kind == _INT8 and size < _HEAD // 4 else ""
    holds = _OTHERS.get(flags & 0xFF, "complex" if flags & _COMPLEX else "")
    if name in names and (holds or not 6 <= flags & 0xFF <= 15 or min(shape) < 0):
        raise ValueError(f"its {name} is of kind {holds or flags & 0xFF}, and of dimensions {list(shape)}")
    return name, shape, _after(start, size)


def _numbers(
    content: bytes, at: int, order: str, name: str, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
    """An array's numbers, in the kind that they are stored in."""
    kind, start, size = _element(content, at, order)
    if kind not in _NUMBERS:
        raise ValueError(f"its {name} holds no numbers")
    dtype, count = np.dtype(order + _NUMBERS[kind]), math.prod(shape)
    if size != count * dtype.itemsize or start + size > len(content):
        raise ValueError(f"its {name} announces {count:,} numbers and holds {size:,} bytes")
    return np.frombuffer(content, dtype, count, start).reshape(shape, order="F")
