"""Prepared images: decoded once, kept as bytes in one array per split, mapped into memory at later starts.

A split has two files: the images as ``.npy``, uint8 [N, 3, side, side], and a record in JSON with the labels,
the class names, a checksum, and the key: what the images were made from and how. Each is written whole or not
at all, and only when there is room for both, so that a full disk leaves the old ones in place.
"""

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from opencil.atomic_files import write
from opencil.data.decoding import decoded
from opencil.disk import DiskError, disk_error
from opencil.errors import BadInput, OpenCILError
from opencil.locks import Lock
from opencil.seals import read_json, write_json

if TYPE_CHECKING:
    from opencil.data.readers.source import SplitOnDisk

_BATCH = 256
#: Side for decoding images only to see whether they can be: any does, and a small one costs the least.
SURVEY_SIDE = 32
#: Ending of earlier files, whose format was our own.
_EARLIER = ".images"
_log = logging.getLogger("opencil.data")

#: Told the number of images done and of all.
ProgressBar = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class Prepared:
    """A split's images, mapped from its file: uint8 [N, 3, side, side], labels int64 [N], class names.

    ``skipped`` names the corrupt images that were left out.
    """

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    classes: tuple[str, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class _Record:
    """What belongs to an array of images; ``sha256`` is of its pixels and the labels."""

    key: str
    sha256: str
    labels: list[int]
    classes: tuple[str, ...]
    skipped: tuple[str, ...]
    source: str


def cache_folder(root: Path | None, chosen: str | None = None) -> Path:
    """Where prepared images lie: the folder given, $OPENCIL_CACHE, or ``.opencil-cache`` in the data root.

    Where the data root cannot be written to, as on shared disks, it is the user's own cache folder.
    """
    if given := chosen or os.environ.get("OPENCIL_CACHE"):
        return Path(given).expanduser()
    if root is not None and os.access(root, os.W_OK):
        return root / ".opencil-cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opencil"


@dataclass(frozen=True)
class CacheFile:
    """The file of a dataset's split, found at a place, at a size."""

    path: Path
    on_disk: "SplitOnDisk"
    side: int

    @classmethod
    def of(cls, folder: Path, dataset: str, split: str, on_disk: "SplitOnDisk", side: int) -> "CacheFile":
        """Its file in a folder: another place of the same dataset has another file."""
        place = hashlib.sha256(f"{on_disk.layout}:{on_disk.place.resolve()}".encode()).hexdigest()[:8]
        return cls(folder / f"{dataset}-{split}-{side}px-{place}.npy", on_disk, side)

    def key(self) -> str:
        """A checksum of what the images are made from: the files' names, sizes and times; the side.

        Names are relative to the place, so that it does not matter how the data root is spelled.
        """
        parts = [f"{self.on_disk.layout}:{self.side}"]
        place, folders = self.on_disk.place.resolve(), dict[Path, str]()
        for path in self.on_disk.files():
            try:
                state = path.stat()
            except OSError as error:
                raise BadInput(f"{path} cannot be read: {error.strerror}") from None
            if path.parent not in folders:
                folders[path.parent] = os.path.relpath(path.parent.resolve(), place)
            parts.append(f"{folders[path.parent]}/{path.name}:{state.st_size}:{state.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()

    def load(self, quiet: bool = False) -> Prepared | None:
        """The prepared images, or None where they are absent, damaged, or made from other files.

        Why a file cannot be used is logged, unless ``quiet``.
        """
        level = logging.DEBUG if quiet else logging.WARNING
        if not self.path.is_file():
            if (earlier := self.path.with_suffix(_EARLIER)).is_file():
                _log.log(level, "cache %s is of an earlier version: it is prepared again", earlier)
            return None
        try:
            record = _Record(**read_json(self._record, _broken))
            # Copy-on-write, so that torch may hold it as a tensor; nothing ever writes to it.
            images = np.load(self.path, mmap_mode="c")
            labels = np.array(record.labels, np.int64)
            if (images.dtype, images.shape) != (np.uint8, (len(labels), 3, self.side, self.side)):
                raise ValueError(f"its images are {images.dtype} {list(images.shape)}")
        except Exception as error:  # whatever json and numpy make of a damaged file
            _log.log(level, "cache %s is damaged (%s): it is prepared again", self.path, error)
            return None
        if record.key != self.key():
            _log.log(level, "cache %s was made from other files: it is prepared again", self.path)
            return None
        try:
            checksum = self._checksum(images.offset, labels)
        except OSError as error:
            _log.log(level, "cache %s cannot be read (%s): it is prepared again", self.path, error)
            return None
        if checksum != record.sha256:
            _log.log(level, "cache %s is damaged (its checksum differs): it is prepared again", self.path)
            return None
        return Prepared(images, labels, tuple(record.classes), tuple(record.skipped))

    def _checksum(self, start: int, labels: np.ndarray[Any, np.dtype[np.int64]]) -> str:
        """Of all after the header and of the labels. It is read, not mapped: a failing disk would end us."""
        checksum = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(start)
            while part := file.read(2**20):
                checksum.update(part)
        checksum.update(labels.data)
        return checksum.hexdigest()

    def prepare(
        self, workers: int, skip_corrupt: bool = False, progress: ProgressBar = no_progress
    ) -> Prepared:
        """The prepared images, made now if need be."""
        prepared = self.load() or self.renew(workers, skip_corrupt, progress)
        progress(len(prepared.labels), len(prepared.labels))
        return prepared

    def renew(
        self,
        workers: int,
        skip_corrupt: bool = False,
        progress: ProgressBar = no_progress,
        begin: Callable[[], None] = lambda: None,
    ) -> Prepared:
        """The prepared images where there were none; one process makes them, others wait for it.

        That one calls ``begin`` before it does.
        """
        with self._alone():
            prepared = self.load(quiet=True)  # another process may have made them meanwhile
            if prepared is None:
                begin()
                self._make(workers, skip_corrupt, progress)
                prepared = self.load()
        if prepared is None:
            raise OpenCILError(f"cache {self.path} cannot be read back: the disk may be failing")
        return prepared

    def survey(self, workers: int, progress: ProgressBar = no_progress) -> list[int]:
        """Indices of the corrupt images of a streamed split; they are noted, and left out from now on."""
        source, corrupt = self.on_disk.source, []
        with closing(decoded(source, range(len(source)), SURVEY_SIDE, _BATCH, workers)) as batches:
            for number, batch in enumerate(batches):
                corrupt += [number * _BATCH + position for position in sorted(batch.corrupt)]
                progress(number * _BATCH + len(batch.pixels), len(source))
        if len(corrupt) == len(source):
            raise BadInput(f"{self.on_disk.place} has no image that can be decoded")
        note = {"key": self.key(), "corrupt": corrupt}
        with self._alone():
            try:
                write_json(self._note, note)
            except OSError as error:
                raise self._unwritable(error) from None
        return corrupt

    def left_out(self) -> list[int]:
        """What a survey of the same files has noted."""
        if not self._note.is_file():
            return []
        try:
            noted = read_json(self._note, _broken)
            if noted["key"] == self.key():
                return [int(index) for index in noted["corrupt"]]
        except (OpenCILError, ValueError, LookupError, TypeError, OverflowError):
            pass
        _log.warning("the survey %s is damaged or of other files: it is not used", self._note)
        return []

    @property
    def _record(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def _note(self) -> Path:
        return self.path.with_suffix(".survey.json")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.path.with_suffix(".held"), timeout=math.inf)
            lock.acquire()
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            yield
        finally:
            lock.release()

    def _make(self, workers: int, skip_corrupt: bool, progress: ProgressBar) -> None:
        key, decoding = self.key(), _Decoding(self.on_disk, self.side, workers, skip_corrupt, progress)

        def fill(temporary: Path) -> None:
            checksum = hashlib.sha256()
            with temporary.open("wb") as file:
                _write_header(file, len(self.on_disk.source), self.side)
                for pixels in decoding.batches():
                    file.write(pixels.reshape(-1).data)
                    checksum.update(pixels.reshape(-1).data)
                # Their number is known only now; numpy leaves room in a header for any.
                labels = decoding.labels()
                file.seek(0)
                _write_header(file, len(labels), self.side)
            checksum.update(labels.data)
            record = _Record(
                key,
                checksum.hexdigest(),
                labels.tolist(),
                self.on_disk.source.classes,
                tuple(decoding.skipped),
                str(self.on_disk.place),
            )
            # Before the images get their name: where there is no room for it, the old ones stay.
            write_json(self._record, asdict(record))

        try:
            write(self.path, fill)
            self.path.with_suffix(_EARLIER).unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def in_memory(
        self, workers: int, skip_corrupt: bool = False, progress: ProgressBar = no_progress
    ) -> Prepared:
        """The images as they would be prepared, where no disk takes them."""
        decoding = _Decoding(self.on_disk, self.side, workers, skip_corrupt, progress)
        images = np.empty((len(self.on_disk.source), 3, self.side, self.side), np.uint8)
        count = 0
        for pixels in decoding.batches():
            images[count : count + len(pixels)] = pixels
            count += len(pixels)
        labels, classes = decoding.labels(), self.on_disk.source.classes
        return Prepared(images[:count], labels, classes, tuple(decoding.skipped))

    def _unwritable(self, error: OSError) -> DiskError:
        why = disk_error(self.path, error) or f"{self.path} cannot be written: {error}"
        return DiskError(
            f"cache {why}; what was there before is unchanged: another folder is chosen with --cache or "
            "$OPENCIL_CACHE"
        )


class _Decoding:
    """A split decoded once, from end to end; without corrupt images, if they are to be left out."""

    def __init__(
        self, on_disk: "SplitOnDisk", side: int, workers: int, skip_corrupt: bool, progress: ProgressBar
    ) -> None:
        self._on_disk, self._side, self._workers = on_disk, side, workers
        self._skips, self._progress = skip_corrupt, progress
        self._kept = np.ones(len(on_disk.source), bool)
        self.skipped: list[str] = []  #: names of those that were left out

    def batches(self) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        """The images, uint8 [≤ 256, 3, side, side]."""
        source = self._on_disk.source
        with closing(decoded(source, range(len(source)), self._side, _BATCH, self._workers)) as batches:
            for number, batch in enumerate(batches):
                pixels, start = batch.pixels, number * _BATCH
                for position, error in batch.corrupt.items():
                    if not self._skips:
                        raise error
                    self._kept[start + position] = False
                    self.skipped.append(source.name(start + position))
                if batch.corrupt:
                    pixels = pixels[self._kept[start : start + len(pixels)]]
                yield pixels
                self._progress(start + len(batch.pixels), len(source))

    def labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The labels of those that could be decoded, when all have been."""
        labels = self._on_disk.source.labels[self._kept]
        if not len(labels):
            raise BadInput(f"{self._on_disk.place} has no image that can be decoded")
        return labels


def _broken(path: Path, error: object) -> OpenCILError:
    return OpenCILError(f"{path.name}: {error}")


def _write_header(file: IO[bytes], count: int, side: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, side, side)}
    np.lib.format.write_array_header_1_0(file, header)
