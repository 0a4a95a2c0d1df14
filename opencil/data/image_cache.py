"""Prepared images: decoded once, kept as bytes in one file per split, mapped into memory at later starts.

A file holds the images, the labels, and a footer of JSON with their checksums, the class names and the key:
what the images were made from and how. It is written whole or not at all, and replaces its predecessor only
when it is complete, so that a full disk or a crash leaves the old one in place.

::

    images uint8 [N, 3, side, side] · labels int64 [N] · footer · its length (8 bytes) · magic (8 bytes)
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opencil.atomic_files import write, write_text
from opencil.data.decoding import decoded
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:
    from opencil.data.readers.source import SplitOnDisk

_MAGIC = b"OCIMGS01"
_BATCH = 256
#: Side for decoding images only to see whether they can be: any does, and a small one costs the least.
SURVEY_SIDE = 32
_ENDING = ".images"
_FOOTER = frozenset({"key", "shape", "sha256", "labels_sha256", "classes", "skipped"})
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
        return cls(folder / f"{dataset}-{split}-{side}px-{place}{_ENDING}", on_disk, side)

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
            return None
        try:
            footer, labels = _read_end(self.path, self.side)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            _log.log(level, "cache %s is damaged (%s): it is prepared again", self.path, error)
            return None
        if footer["key"] != self.key():
            _log.log(level, "cache %s was made from other files: it is prepared again", self.path)
            return None
        # Copy-on-write, so that torch may hold it as a tensor; nothing ever writes to it.
        images = np.memmap(self.path, np.uint8, mode="c", shape=tuple(footer["shape"]))
        if hashlib.sha256(images.reshape(-1).data).hexdigest() != footer["sha256"]:
            _log.log(level, "cache %s is damaged (its checksum differs): it is prepared again", self.path)
            return None
        return Prepared(images, labels, tuple(footer["classes"]), tuple(footer["skipped"]))

    def prepare(
        self, workers: int, skip_corrupt: bool = False, progress: ProgressBar = no_progress
    ) -> Prepared:
        """The prepared images, made now if need be."""
        prepared = self.load() or self.renew(workers, skip_corrupt, progress)
        progress(len(prepared.labels), len(prepared.labels))
        return prepared

    def renew(
        self, workers: int, skip_corrupt: bool = False, progress: ProgressBar = no_progress
    ) -> Prepared:
        """The prepared images where there were none; one process makes them, others wait for it."""
        with self._alone():
            prepared = self.load(quiet=True)  # another process may have made them meanwhile
            if prepared is None:
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
        note = json.dumps({"key": self.key(), "corrupt": corrupt})
        with self._alone():
            try:
                write_text(self._note, note)
            except OSError as error:
                raise self._unwritable(error) from None
        return corrupt

    def left_out(self) -> list[int]:
        """What a survey of the same files has noted."""
        if not self._note.is_file():
            return []
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))
            if noted["key"] == self.key():
                return [int(index) for index in noted["corrupt"]]
        except (OSError, ValueError, LookupError, TypeError):
            pass
        _log.warning("the survey %s is damaged or of other files: it is not used", self._note)
        return []

    @property
    def _note(self) -> Path:
        return self.path.with_suffix(".survey.json")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        from filelock import FileLock

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path.with_suffix(".lock"))
            lock.acquire()
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            yield
        finally:
            lock.release()

    def _make(self, workers: int, skip_corrupt: bool, progress: ProgressBar) -> None:
        key, source = self.key(), self.on_disk.source
        skipped: list[str] = []

        def fill(temporary: Path) -> None:
            checksum, kept = hashlib.sha256(), np.ones(len(source), bool)
            batches = decoded(source, range(len(source)), self.side, _BATCH, workers)
            with temporary.open("wb") as file, closing(batches):
                for number, batch in enumerate(batches):
                    pixels, start = batch.pixels, number * _BATCH
                    for position, error in batch.corrupt.items():
                        if not skip_corrupt:
                            raise error
                        kept[start + position] = False
                        skipped.append(source.name(start + position))
                    if batch.corrupt:
                        pixels = pixels[kept[start : start + len(pixels)]]
                    file.write(pixels.reshape(-1).data)
                    checksum.update(pixels.reshape(-1).data)
                    progress(start + len(batch.pixels), len(source))
                labels = source.labels[kept]
                if not len(labels):
                    raise BadInput(f"{self.on_disk.place} has no image that can be decoded")
                stored = labels.astype("<i8").tobytes()
                footer = {
                    "key": key,
                    "shape": [len(labels), 3, self.side, self.side],
                    "sha256": checksum.hexdigest(),
                    "labels_sha256": hashlib.sha256(stored).hexdigest(),
                    "classes": source.classes,
                    "skipped": skipped,
                    "source": str(self.on_disk.place),
                }
                end = json.dumps(footer).encode()
                for part in (stored, end, len(end).to_bytes(8, "little"), _MAGIC):
                    file.write(part)

        try:
            write(self.path, fill)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> OpenCILError:
        return OpenCILError(
            f"cache {self.path} cannot be written ({error.strerror or error}); what was there before is "
            "unchanged: make room, or choose another folder with --cache or $OPENCIL_CACHE"
        )


def _read_end(path: Path, side: int) -> tuple[dict[str, Any], np.ndarray[Any, np.dtype[np.int64]]]:
    """Footer and labels of a file; a ValueError says why it cannot be one of ours."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 16))
        length, magic = int.from_bytes(file.read(8), "little"), file.read(8)
        if magic != _MAGIC or length > size - 16:
            raise ValueError("it does not end as it should")
        file.seek(size - 16 - length)
        footer = json.loads(file.read(length))
        if absent := _FOOTER - footer.keys():
            raise ValueError(f"its footer lacks {min(absent)!r}")
        count = int(footer["shape"][0])
        if footer["shape"] != [count, 3, side, side]:
            raise ValueError(f"its images are {footer['shape']}")
        if size != int(np.prod(footer["shape"])) + 8 * count + length + 16:
            raise ValueError("its size is wrong")
        file.seek(size - 16 - length - 8 * count)
        stored = file.read(8 * count)
    if hashlib.sha256(stored).hexdigest() != footer["labels_sha256"]:
        raise ValueError("the checksum of its labels differs")
    return footer, np.frombuffer(stored, "<i8").astype(np.int64)
