"""Files of arrays: MNIST's idx files, compressed or not, and SVHN's MATLAB file."""

import gzip
import io
import math
import struct
import zlib
from itertools import islice
from pathlib import Path

import numpy as np

from opencil.data.readers.source import LARGEST_FILE, ArraySource, Layout
from opencil.errors import BadInput, one_line


def idx(stem: str, *folders: str) -> Layout:
    """Return the layout of MNIST: a file of images and a file of labels, each in any of its spellings."""

    def spellings(content: str, rank: int) -> list[str]:
        return [f"{stem}-{content}{dot}idx{rank}-ubyte{end}" for dot in "-." for end in (".gz", "")]

    def parts(place: Path) -> tuple[Path, ...]:
        return (place, *islice(filter(Path.is_file, map(place.with_name, spellings("labels", 1))), 1))

    return Layout(
        "idx",
        tuple(f"{folder}/{name}" for folder in folders for name in spellings("images", 3)),
        lambda place: _read_mnist(*parts(place)),
        lambda place: place.is_file() and len(parts(place)) == 2,
        parts,
    )


def _read_mnist(images: Path, labels: Path) -> ArraySource:
    pixels, digits = read_idx(images, 3), read_idx(labels, 1)
    classes = tuple(map(str, range(int(digits.max()) + 1)))
    return ArraySource(digits.astype(np.int64), classes, images, pixels)


def read_idx(path: Path, dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Read an idx file of bytes with ``dimensions`` dimensions; a name that ends in .gz is decompressed."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST_FILE)
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise BadInput(f"{path} cannot be read as an idx file: {error}") from None
    pixels = np.frombuffer(content, np.uint8, offset=4 * (1 + dimensions))
    if magic != 0x800 + dimensions or not len(pixels) or len(pixels) != math.prod(shape):
        raise BadInput(f"{path} is damaged, or no idx file of bytes in {dimensions} dimensions")
    return pixels.reshape(shape)


#: Classes of arrays of numbers in MATLAB's files, and the type of a compressed part.
_NUMBERS = {"double", "single", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_COMPRESSED = 15
_LARGEST = 2**28  # bytes once decompressed; SVHN's training images have 225 MB


def mat(*files: str) -> Layout:
    """Return the layout of a .mat file with ``X`` [H, W, 3, N] and ``y`` [N, 1], where 10 is the digit 0."""
    return Layout(".mat", files, _read_svhn)


def _read_svhn(place: Path) -> ArraySource:
    from scipy.io import loadmat, whosmat

    try:
        content = _unpack(place)
        for name, shape, kind in whosmat(content):  # arrays of objects take more memory than their file
            if name in ("X", "y") and (kind not in _NUMBERS or math.prod(shape) > _LARGEST):
                raise ValueError(f"its {name} is {kind} {list(shape)}: a small array of numbers is needed")
        arrays = loadmat(content, variable_names=["X", "y"])
        images, labels = arrays["X"], arrays["y"]
        if images.dtype != np.uint8 or images.shape[2:3] != (3,) or images.ndim != 4 or not images.size:
            raise ValueError(f"its X is {images.dtype} {list(images.shape)} instead of bytes [H, W, 3, N]")
        if not np.isin(labels, range(11)).all():
            raise ValueError("its y has values other than the digits 0 to 10")
    except Exception as error:  # damaged files fail in many ways
        raise BadInput(f"{place} cannot be read as SVHN's MATLAB file: {one_line(error)}") from None
    digits = labels.reshape(-1).astype(np.int64) % 10
    return ArraySource(digits, tuple("0123456789"), place, images.transpose(3, 0, 1, 2))


def _check_types(matrix: bytes, order: str) -> None:
    """Refuse unknown types of data in a matrix, for which scipy would read outside of its memory."""
    place = 8
    while place + 8 <= len(matrix):
        kind, size = struct.unpack_from(f"{order}2I", matrix, place)
        if not 1 <= kind & 0xFFFF <= 18:
            raise ValueError(f"it has data of an unknown type {kind & 0xFFFF}")
        place += 8 if kind >> 16 else 8 + (size + 7) // 8 * 8  # up to four bytes are stored in the tag


def _unpack(path: Path) -> io.BytesIO:
    """Return a MATLAB file whose parts are decompressed, unless they are too large."""
    unpacked = io.BytesIO()
    with path.open("rb") as file:
        unpacked.write(header := file.read(128))
        while tag := file.read(8):
            kind, size = struct.unpack("<2I" if header.endswith(b"IM") else ">2I", tag)
            left = _LARGEST - unpacked.tell()
            part = file.read(min(size, left + 1))
            part = zlib.decompressobj().decompress(part, left + 1) if kind == _COMPRESSED else tag + part
            if len(part) > left:
                raise ValueError(f"it has more than {_LARGEST:,} bytes")
            _check_types(part, "<" if header.endswith(b"IM") else ">")
            unpacked.write(part)
    unpacked.seek(0)
    return unpacked
