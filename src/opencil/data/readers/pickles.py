"""CIFAR's pickles, read by an unpickler for plain values and arrays of bytes only.

A pickle is a program, and these come from the internet.
"""

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from opencil.data.readers.source import LARGEST_FILE, ArraySource, Layout
from opencil.errors import BadInput, one_line


class _ByteType:
    """Stand in for numpy's dtype of bytes, so that numpy reads no state of the pickle."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            other = repr(code) if isinstance(code, (str, bytes)) else "objects"  # some are endless as text
            raise pickle.UnpicklingError(f"it asks for an array of {other}, and only bytes are allowed")

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stand in for a numpy array of bytes."""

    values: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _ByteType):
            raise pickle.UnpicklingError("it asks for an array that is not of bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


#: Classes that a pickle may create, under the names of old and new numpy.
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ByteType,
}


class _PlainUnpickler(pickle._Unpickler):
    """Unpickle in time and memory that grow with the file; the unpickler in C may allocate any number."""

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.left = len(content)  # letters to encode: a pickle writes each text once

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function."""
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}; only plain data and arrays of bytes are allowed"
            )
        return _ALLOWED[module, name]

    def _encode(self, text: str, *_: Any) -> bytes:
        """Return the bytes that protocol 2 writes as a text."""
        if (left := self.left - len(text)) < 0:
            raise pickle.UnpicklingError("it encodes a text again and again")
        self.left = left
        return text.encode("latin1")

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it has an operation that plain data do not need")

    def _build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        built.__setstate__(state) if isinstance(built, (_Array, _ByteType)) else self._refuse()

    def _make_dict(self) -> None:
        pairs = self.pop_mark()
        self.append({})
        self._update(pairs)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _update(self, pairs: list[Any]) -> None:
        if not all(isinstance(key, (str, bytes, int)) for key in pairs[::2]):  # to hash others takes forever
            raise pickle.UnpicklingError("it has a key that is neither text nor a number")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    dispatch: ClassVar[dict[int, Any]] = pickle._Unpickler.dispatch | {
        pickle.BUILD[0]: _build,
        pickle.DICT[0]: _make_dict,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda self: self._update(self.pop_mark()),
        # Sets hash their items, and an array of bytes takes its memory before it is read.
        **dict.fromkeys([pickle.EMPTY_SET[0], pickle.FROZENSET[0], pickle.BYTEARRAY8[0]], _refuse),
    }


def load_plain(content: bytes, name: str) -> dict[str, Any]:
    """Return the dict of a pickle, with its keys as text; refuse everything but data."""
    try:
        value = _PlainUnpickler(content).load()
        return {
            key.decode() if isinstance(key, bytes) else key: part.values if isinstance(part, _Array) else part
            for key, part in value.items()
        }
    except Exception as error:  # a broken pickle may ask for any operation on any value
        raise BadInput(f"pickle {name} is refused: {one_line(error)}") from None


def cifar(folder: str, archive: str, label: str, meta: str, *batches: str) -> tuple[Layout, Layout]:
    """Return the layouts of CIFAR's Python version: a folder of pickles, and its archive.

    ``label`` begins the keys of labels and of class names; ``meta`` is the file of class names.
    """

    names = (*batches, meta)

    def parts(place: Path) -> tuple[Path, ...]:
        return tuple(filter(Path.is_file, map(place.with_name, names)))

    def read_folder(place: Path) -> ArraySource:
        pickles = {path.name: path.read_bytes() for path in parts(place)}
        return _read_cifar(place.parent, pickles, label, meta, batches)

    def read_archive(place: Path) -> ArraySource:
        return _read_cifar(place, _read_members(place, folder, names), label, meta, batches)

    def fits(place: Path) -> bool:
        return {path.name for path in parts(place)}.issuperset(batches)

    return (
        Layout("CIFAR pickle", (f"{folder}/{batches[0]}",), read_folder, fits, parts),
        Layout("CIFAR archive", (f"{archive}.tar.gz",), read_archive),
    )


def _read_cifar(
    place: Path, pickles: dict[str, bytes], label: str, meta: str, batches: tuple[str, ...]
) -> ArraySource:
    pixels, labels = [], list[int]()
    for batch in batches:
        if batch not in pickles:
            raise BadInput(f"{place} has no {batch!r}")
        name = f"{place}/{batch}"
        content = load_plain(pickles[batch], name)
        data, own = content.get("data"), content.get(f"{label}s")
        if not isinstance(data, np.ndarray) or data.shape[1:] != (3072,):
            raise BadInput(f"pickle {name} has no 'data' of bytes [N, 3072]: it is not a CIFAR batch")
        if not isinstance(own, list) or not all(type(v) is int and 0 <= v < 1000 for v in own):
            raise BadInput(f"pickle {name} has no list of labels '{label}s'")
        if len(own) != len(data) or not own:
            raise BadInput(f"pickle {name} has {len(data)} images and {len(own)} labels")
        pixels.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels += own
    # Without the file of class names, classes have numbers as names.
    names = load_plain(pickles[meta], f"{place}/{meta}").get(f"{label}_names") if meta in pickles else None
    if not isinstance(names, list | None) or not all(isinstance(n, (str, bytes)) for n in names or ()):
        raise BadInput(f"pickle {place}/{meta} has no list of names '{label}_names'")
    classes = tuple(
        n.decode(errors="replace") if isinstance(n, bytes) else str(n)
        for n in names or range(max(labels) + 1)
    )
    return ArraySource(np.array(labels, np.int64), classes, place, np.concatenate(pixels))


def _read_members(archive: Path, folder: str, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the contents of regular files in a tar archive, without unpacking it to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.parent != PurePosixPath(folder) or path.name not in names:
                    continue
                if member.size > LARGEST_FILE:
                    raise ValueError(f"its member {path.name!r} has more than {LARGEST_FILE:,} bytes")
                if member.isfile() and (file := tar.extractfile(member)):
                    found[path.name] = file.read()
    except Exception as error:  # damaged headers fail in many ways
        raise BadInput(f"archive {archive} cannot be read: {one_line(error)}") from None
    return found
