"""Stored features: of each image a row, computed once and mapped into memory by every later start.

A row is ``width`` float32 numbers and their CRC-32, which begins with that of the file's key: rows of another
file, or half of a row, are noticed. Rows are added to a file of another name, which is renamed when it is
complete. What is interrupted goes on behind the last complete batch.
"""

import logging
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opencil.files import DiskError, disk_errors, size_in_words

_log = logging.getLogger("opencil.data")
Rows = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class FeatureFile:
    """The features of an image set: ``key`` is a digest of all that they are computed from."""

    path: Path
    key: str
    count: int
    width: int

    @property
    def _row(self) -> np.dtype[Any]:
        return np.dtype([("features", "<f4", (self.width,)), ("checksum", "<u4")])

    @property
    def _partial(self) -> Path:
        return self.path.with_suffix(".partial")

    @property
    def there(self) -> bool:
        """Return whether all features are stored; ``load`` also checks them."""
        return self.path.is_file()

    def load(self) -> Tensor | None:
        """Map all features [count, width]; None, and the next ``add`` resumes, where rows are missing."""
        if not self.there:
            return None
        rows = self._read(self.path)
        if len(rows) == self.count and self._whole(rows) == self.count:
            return torch.from_numpy(np.asarray(rows["features"]))
        _log.warning("%s is damaged: its features are computed again", self.path)
        with suppress(FileNotFoundError):  # another process has done it
            self.path.replace(self._partial)
        return None

    def lock(self, wait: bool) -> AbstractContextManager[Any] | None:
        """Return a lock for a ``with`` block; None where another process adds features, unless ``wait``."""
        from filelock import FileLock, Timeout

        try:
            with disk_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return FileLock(self.path.with_suffix(".lock")).acquire(timeout=-1 if wait else 0)
        except Timeout:
            return None

    def add(self, compute: Callable[[int], Iterator[Tensor]], batch: int) -> Iterator[int]:
        """Add the missing features under the lock, yielding the number of stored rows after each batch.

        ``compute`` yields batches of features from an image on, which is a multiple of ``batch``.
        """
        known = self._whole(self._read(self._partial)) if self._partial.is_file() else 0
        done, seed = min(known, self.count) // batch * batch, self._seed
        needed = (self.count - done) * self._row.itemsize
        if needed > (free := shutil.disk_usage(self.path.parent).free):
            text = f"{size_in_words(needed)} are needed, {size_in_words(free)} are free"
            raise DiskError(f"{self.path}: {text}; --cache or $OPENCIL_CACHE names another folder")
        yield done
        with disk_errors(self._partial), self._partial.open("r+b" if known else "wb") as file:
            file.truncate(done * self._row.itemsize)
            file.seek(0, 2)
            for features in compute(done):
                rows = np.empty(len(features), self._row)
                rows["features"] = features.cpu().numpy()
                rows["checksum"] = [zlib.crc32(row.data, seed) for row in rows["features"]]
                file.write(rows.data)
                file.flush()
                done += len(rows)
                yield done
        self._partial.replace(self.path)

    @property
    def _seed(self) -> int:
        return zlib.crc32(self.key.encode())

    def _read(self, path: Path) -> Rows:
        """Map the complete rows of a file; pages are copied when they are written to, as torch requires."""
        count = path.stat().st_size // self._row.itemsize
        return np.memmap(path, self._row, "c", shape=(count,)) if count else np.empty(0, self._row)

    def _whole(self, rows: Rows) -> int:
        """Return the number of rows before the first damaged one."""
        plain, seed = np.asarray(rows), self._seed
        checks = zip(plain["features"], plain["checksum"], strict=True)
        wrong = (at for at, (row, check) in enumerate(checks) if zlib.crc32(row.data, seed) != check)
        return next(wrong, len(rows))
