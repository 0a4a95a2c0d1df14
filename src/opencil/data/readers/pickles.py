"""CIFAR's pickles, read by an unpickler that can make plain values and arrays of numbers, and nothing else.

A pickle is a program, and these come from the internet.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opencil.data.readers.archives import LARGEST_MEMBER, NoMember, tar_member
from opencil.data.readers.source import ArraySource, Layout, SplitOnDisk
from opencil.errors import BadInput, one_line


class _Numbers:
    """Stands for a numpy dtype: numpy itself never sees the state that a pickle would give one."""

    def __init__(self, code: Any = "", *flags: Any) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type, if it is one of plain numbers."""
        code, order = (p.decode("ascii") if isinstance(p, bytes) else p for p in (self.code, self.order))
        dtype = np.dtype(code) if isinstance(code, str) else np.dtype(object)
        if dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it asks for an array of {dtype}, which is not plain numbers")
        return dtype.newbyteorder(">") if order == ">" else dtype


class _Array:
    """Stands for a numpy array while a pickle is read."""

    array: np.ndarray[Any, Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, numbers, fortran, content = state
        self.array = _filled(content, numbers, shape, "F" if fortran else "C")


def _filled(content: Any, numbers: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    if not isinstance(numbers, _Numbers) or not isinstance(content, (bytes, bytearray)):
        raise pickle.UnpicklingError("it asks for an array in an unusual way")
    return np.frombuffer(content, numbers.dtype).reshape(shape, order=order)


class _Maker:
    """A function that a pickle may call and cannot change: it has no attributes, and refuses a state."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it asks to change a function")


def _empty_array(*_: Any) -> _Array:
    """What numpy's pickles ask for before they fill the array."""
    return _Array()


def _array_from_buffer(content: Any, numbers: Any, shape: Any, order: Any, *_: Any) -> _Array:
    made = _Array()
    made.array = _filled(content, numbers, shape, order)
    return made


def _bytes_from_text(text: str, encoding: str = "latin1") -> bytes:
    """How protocol 2 of Python 3 writes bytes."""
    if encoding != "latin1":
        # Of another type it is not shown: a list of lists that are one list is longer than any memory.
        named = repr(encoding[:80]) if isinstance(encoding, str) else f"of type {type(encoding).__name__}"
        raise pickle.UnpicklingError(f"it asks for the codec {named}")
    return text.encode("latin1")


#: All that a pickle of arrays, dicts, lists, text and numbers needs, under the names of old and new numpy.
_ALLOWED: dict[tuple[str, str], Callable[..., Any] | type] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Maker(_empty_array) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Maker(_array_from_buffer) for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Numbers,
    ("_codecs", "encode"): _Maker(_bytes_from_text),
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the few harmless things a pickle may name."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}; only plain arrays, dicts, lists, text and numbers are allowed"
            ) from None


_PUT, _GET = ({f"{kind}{what}" for kind in ("", "BIN", "LONG_BIN")} for what in ("PUT", "GET"))


def _refuse_bombs(content: bytes) -> None:
    """A few bytes could ask for all memory, or all time; lengths beyond the content's are refused on the way.

    The unpickler makes room for the largest index of its memo. And a tuple of tuples that are one tuple, and
    so on, is looked at twice as often at each level when it becomes a key; data name no tuple twice.
    """
    before: pickletools.OpcodeInfo | None = None
    tuples: dict[int, bool] = {}  # by their places in the memo, which hold other things too
    for operation, index, _ in pickletools.genops(content):
        if operation.name in _PUT or operation.name == "MEMOIZE":
            place = len(tuples) if operation.name == "MEMOIZE" else index or 0
            if place > len(content):
                raise pickle.UnpicklingError(f"it asks for a memo of {place} values")
            # What does not come straight from what makes it may be one.
            made = before.stack_after if before else []
            tuples[place] = not made or made[-1] is pickletools.pytuple
        if operation.name == "DUP" or (operation.name in _GET and tuples.get(index or 0, True)):
            raise pickle.UnpicklingError("it names a tuple twice")
        before = operation


def load_plain(content: bytes, name: str) -> Any:
    """The value of a pickle, Python 2's text as bytes; one that asks for anything but data is refused."""
    try:
        _refuse_bombs(content)
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        if isinstance(value, dict):
            return {key: part.array if isinstance(part, _Array) else part for key, part in value.items()}
        return value
    # A broken pickle may ask for any operation on any value: whatever comes of it, the file is unusable.
    except Exception as error:
        raise BadInput(f"pickle {name} is refused: {one_line(error)}") from None


@dataclass(frozen=True)
class Pickles(Layout):
    """CIFAR's Python version: a folder of pickles, or the archive it comes in."""

    folder: str
    archive: str
    batches: tuple[str, ...]
    labels: str
    meta: str
    names: str

    @property
    def places(self) -> tuple[str, ...]:
        """The folder's first batch, then the archive."""
        return f"{self.folder}/{self.batches[0]}", self.archive

    def find(self, base: Path) -> SplitOnDisk | None:
        """The folder where it has all batches, else the archive."""
        folder, archive = base / self.folder, base / self.archive
        names = (*self.batches, self.meta)
        if all((folder / name).is_file() for name in self.batches):
            files = [folder / name for name in names if (folder / name).is_file()]
            read: Callable[[str], bytes] = lambda name: _content(folder / name)  # noqa: E731
            place = folder / self.batches[0]
            return SplitOnDisk("CIFAR pickle", place, lambda: self._source(place, read), tuple(files))
        if archive.is_file():
            read = lambda name: tar_member(archive, f"{self.folder}/{name}")  # noqa: E731
            return SplitOnDisk("CIFAR archive", archive, lambda: self._source(archive, read), (archive,))
        return None

    def _source(self, place: Path, read: Callable[[str], bytes]) -> ArraySource:
        pixels, labels = [], []
        for batch in self.batches:
            name = f"{place}:{batch}" if place.name == self.archive else str(place.with_name(batch))
            content = _mapping(load_plain(read(batch), name), name)
            data, given = content.get("data"), content.get(self.labels)
            if (
                not isinstance(data, np.ndarray)
                or data.dtype != np.uint8
                or data.ndim != 2
                or data.shape[1] != 3072
            ):
                raise BadInput(f"pickle {name} has no 'data' of bytes [N, 3072]: it is not a CIFAR batch")
            if not isinstance(given, list) or not all(type(v) is int and 0 <= v < 1000 for v in given):
                raise BadInput(
                    f"pickle {name} has no list {self.labels!r} of labels: it is not this dataset's"
                )
            if len(given) != len(data):
                raise BadInput(f"pickle {name} holds {len(data)} images and {len(given)} labels")
            pixels.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.extend(given)
        classes = self._classes(place, read, max(labels, default=-1) + 1)
        return ArraySource(np.array(labels, np.int64), classes, place, np.concatenate(pixels))

    def _classes(self, place: Path, read: Callable[[str], bytes], count: int) -> tuple[str, ...]:
        """Names from the meta file; numbers where it is absent or too short."""
        name = f"{place.parent}: {self.meta}"
        try:
            given = _mapping(load_plain(read(self.meta), name), name).get(self.names)
        except (FileNotFoundError, NoMember):
            given = None
        if (
            isinstance(given, list)
            and len(given) >= count
            and all(isinstance(n, (bytes, str)) for n in given)
        ):
            return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in given)
        return tuple(map(str, range(count)))


def _content(path: Path) -> bytes:
    if path.stat().st_size > LARGEST_MEMBER:
        raise BadInput(f"pickle {path} is refused: it has more than {LARGEST_MEMBER:,} bytes")
    return path.read_bytes()


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"pickle {name} holds {type(value).__name__}, not a dict: it is not a CIFAR batch")
    names = {k: k.decode("utf-8", "replace") if isinstance(k, bytes) else k for k in value}
    return {name: value[k] for k, name in names.items() if isinstance(name, str)}
