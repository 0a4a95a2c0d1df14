"""CIFAR's pickles, read by an unpickler that creates only plain values and arrays of bytes.

A pickle is a program, and these come from the internet.
"""

import io
import pickle
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from opencil.data.readers.source import LARGEST_FILE, ArraySource, Layout, SplitOnDisk
from opencil.errors import BadInput, one_line


class _ByteType:
    """Stand in for numpy's dtype of bytes, so that numpy reads no state of the pickle."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"it asks for an array of {code}, and only bytes are allowed")

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stand in for a numpy array of bytes."""

    values: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _ByteType):
            raise pickle.UnpicklingError("it asks for an array that is not of bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _new_array(*_: Any) -> _Array:
    return _Array()


def _encode_latin1(text: str, *_: Any) -> bytes:
    """Return bytes as protocol 2 of Python 3 writes them."""
    return text.encode("latin1")


#: Functions that a pickle may call, under the names of old and new numpy.
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ByteType,
    ("_codecs", "encode"): _encode_latin1,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed function, in a new wrapper whose state a pickle may change safely."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}; only plain data and arrays of bytes are allowed"
            )
        return partial(_ALLOWED[module, name])


def load_plain(content: bytes, name: str) -> dict[str, Any]:
    """Return the dict of a pickle, with its keys as text; refuse everything but data."""
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        return {
            key.decode() if isinstance(key, bytes) else key: part.values if isinstance(part, _Array) else part
            for key, part in value.items()
        }
    except Exception as error:  # a broken pickle may ask for any operation on any value
        raise BadInput(f"pickle {name} is refused: {one_line(error)}") from None


def cifar(folder: str, archive: str, label: str, meta: str, *batches: str) -> Layout:
    """Return the layout of CIFAR's Python version: a folder of pickles, or its archive.

    ``label`` begins the keys of labels and of class names; ``meta`` is the file of class names.
    """

    def find(base: Path) -> SplitOnDisk | None:
        place, tar = base / folder, base / f"{archive}.tar.gz"
        files = tuple(place / name for name in (*batches, meta) if (place / name).is_file())
        if set(batches) <= {path.name for path in files}:
            read = partial(_read_cifar, place, partial(_read_file, place), label, meta, batches)
            return SplitOnDisk("CIFAR pickle", files[0], read, files)
        if tar.is_file():
            read = partial(_read_cifar, tar, partial(_read_member, tar, folder), label, meta, batches)
            return SplitOnDisk("CIFAR archive", tar, read, (tar,))
        return None

    return Layout((f"{folder}/{batches[0]}", f"{archive}.tar.gz"), find)


def _read_cifar(
    place: Path, read: Callable[[str], bytes | None], label: str, meta: str, batches: tuple[str, ...]
) -> ArraySource:
    pixels, labels = [], list[int]()
    for batch in batches:
        name, packed = f"{place}/{batch}", read(batch)
        if packed is None:
            raise BadInput(f"{place} has no {batch!r}")
        content = load_plain(packed, name)
        data, own = content.get("data"), content.get(f"{label}s")
        if not isinstance(data, np.ndarray) or data.shape[1:] != (3072,):
            raise BadInput(f"pickle {name} has no 'data' of bytes [N, 3072]: it is not a CIFAR batch")
        if not isinstance(own, list) or not all(type(v) is int and 0 <= v < 1000 for v in own):
            raise BadInput(f"pickle {name} has no list of labels '{label}s'")
        if len(own) != len(data):
            raise BadInput(f"pickle {name} has {len(data)} images and {len(own)} labels")
        pixels.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels += own
    packed = read(meta)  # without it, classes have numbers as names
    names = load_plain(packed, f"{place}/{meta}").get(f"{label}_names") if packed else None
    classes = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names or range(max(labels) + 1))
    return ArraySource(np.array(labels, np.int64), classes, place, np.concatenate(pixels))


def _read_file(folder: Path, name: str) -> bytes | None:
    return (folder / name).read_bytes() if (folder / name).is_file() else None


def _read_member(archive: Path, folder: str, name: str) -> bytes | None:
    """Return the content of a regular file in a tar archive, without unpacking it to disk."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if PurePosixPath(member.name) == PurePosixPath(folder, name) and member.isfile():
                    if member.size > LARGEST_FILE:
                        raise ValueError(f"its member {name!r} has more than {LARGEST_FILE:,} bytes")
                    file = tar.extractfile(member)
                    return file.read() if file else None
    except Exception as error:  # damaged headers fail in many ways
        raise BadInput(f"archive {archive} cannot be read: {one_line(error)}") from None
    return None
