"""Packs: a split's images back to back in a few large files, mapped into memory: none is opened by itself.

A pack is a folder. Each shard in it is a file of images and, written after it, a sealed record of where each
begins and of its checksum. ``pack.json`` is written last: a folder without it is no pack yet, and whoever
packs again goes on with the shard that is missing. An image's checksum is compared whenever it is read.

In the form ``pixels`` images are decoded, uint8 [3, side, side] each: serving them is a copy. In the form
``files`` they are the bytes of their files, often half of that, and are decoded whenever they are served.
"""

import io
import logging
import math
import shutil
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from opencil.atomic_files import remove_temporary, write
from opencil.data.decoding import decoded
from opencil.data.image_cache import ProgressBar, no_progress
from opencil.data.readers.decode import Pixels, fit, read_image
from opencil.data.readers.source import ImageSource
from opencil.disk import DiskError, size_in_words, told
from opencil.errors import OpenCILError
from opencil.locks import Lock
from opencil.seals import Damaged, read_json, write_json

Form = Literal["pixels", "files"]
FORMS: tuple[Form, ...] = ("pixels", "files")
#: Images of a shard: of ImageNet's about 100 to 200 MiB, a thousand files in place of a million.
SHARD = 1024
_FORMAT = 1
_BATCH = 64
_log = logging.getLogger("opencil.data")


@dataclass(frozen=True)
class Pack:
    """The pack of a source's images at a side; ``key`` names what they are made from."""

    folder: Path
    source: ImageSource
    key: str
    side: int

    def load(self) -> "PackedSource | None":
        """The packed images; None where there is no pack, or one of other files. A damaged one is refused."""
        if not self._record.is_file():
            if self.folder.is_dir():
                _log.warning("pack %s is not finished and not used: 'opencil data pack' goes on", self.folder)
            return None
        record = read_json(self._record, _damaged)
        form = record.get("form")
        if form not in FORMS or record != self._described(form):
            _log.warning("pack %s was made from other files: it is not used", self.folder)
            return None
        notes = [self._note(number, form) for number in range(self.shards)]
        lengths = [np.array(note["lengths"], np.int64) for note in notes]
        return PackedSource(
            self.source.labels,
            self.source.classes,
            self.source,
            self.folder,
            form,
            self.side,
            tuple(np.cumsum(own) - own for own in lengths),
            tuple(lengths),
            tuple(np.array(note["checksums"], np.int64) for note in notes),
        )

    def make(self, form: Form, workers: int, progress: ProgressBar = no_progress) -> None:
        """Pack what is not packed yet. Images that are there are all read; damaged shards are made again."""
        form = form if self.source.content(0) is not None else "pixels"
        with told(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with Lock(self.folder / ".held", timeout=math.inf):
                remove_temporary(self.folder)
                whole = [self._whole(number, form) for number in range(self.shards)]
                if not all(whole):
                    self._record.unlink(missing_ok=True)
                    self._refuse_without_room(form, whole.count(False))
                for number, there in enumerate(whole):
                    if not there:
                        self._write(number, form, workers, progress)
                    progress(self._rows(number).stop, len(self.source))
                write_json(self._record, self._described(form))

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    @property
    def shards(self) -> int:
        """How many it has."""
        return -(-len(self.source) // SHARD)

    @property
    def _record(self) -> Path:
        return self.folder / "pack.json"

    def _described(self, form: Form) -> dict[str, Any]:
        return {"format": _FORMAT, "form": form, "key": self.key, "images": len(self.source), "shard": SHARD}

    def _rows(self, number: int) -> range:
        return range(number * SHARD, min((number + 1) * SHARD, len(self.source)))

    def _whole(self, number: int, form: Form) -> bool:
        """Whether a shard is there, as it was written."""
        try:
            note = self._note(number, form)
            with shard_path(self.folder, number).open("rb") as file:
                found = [zlib.crc32(file.read(length)) for length in note["lengths"]]
        except OpenCILError:
            return False
        return bool(found == note["checksums"])

    def _note(self, number: int, form: Form) -> dict[str, Any]:
        """A shard's record; an error where it, or a shard of that length, is not there."""
        path = shard_path(self.folder, number)
        note = read_json(path.with_suffix(".json"), _damaged)
        if (note.get("key"), note.get("form")) != (self.key, form):
            raise _damaged(path, "its record is of another pack")
        if not path.is_file() or path.stat().st_size != sum(note["lengths"]):
            raise _damaged(path, "it is missing or not as long as it was")
        return note

    def _write(self, number: int, form: Form, workers: int, progress: ProgressBar) -> None:
        lengths, checksums, rows = list[int](), list[int](), self._rows(number)

        def fill(temporary: Path) -> None:
            with temporary.open("wb") as file:
                for content in self._contents(rows, form, workers):
                    file.write(content)
                    lengths.append(len(content))
                    checksums.append(zlib.crc32(content))
                    if len(lengths) % _BATCH == 0:
                        progress(rows.start + len(lengths), len(self.source))

        path = shard_path(self.folder, number)
        path.with_suffix(".json").unlink(missing_ok=True)
        write(path, fill)
        note = {"key": self.key, "form": form, "lengths": lengths, "checksums": checksums}
        write_json(path.with_suffix(".json"), note)

    def _contents(self, rows: range, form: Form, workers: int) -> Iterator[memoryview | bytes]:
        """What is stored of each image."""
        if form == "pixels":
            with closing(decoded(self.source, rows, self.side, _BATCH, workers)) as batches:
                for batch in batches:
                    for error in batch.corrupt.values():
                        raise error
                    yield from (memoryview(pixels.reshape(-1)) for pixels in batch.pixels)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="opencil-pack") as pool:
            for start in range(rows.start, rows.stop, _BATCH):
                for content in pool.map(self.source.content, range(start, min(start + _BATCH, rows.stop))):
                    assert content is not None, "a source has the content of all its images, or of none"
                    yield content

    def _refuse_without_room(self, form: Form, missing: int) -> None:
        """Say at once what would else be found out after hours."""
        some = range(0, len(self.source), max(1, len(self.source) // 100))
        sizes = {"pixels": 3.0 * self.side**2}
        if self.source.content(0) is not None:
            sizes["files"] = float(np.mean([len(self.source.content(i) or b"") for i in some]))
        needed = {name: size * min(missing * SHARD, len(self.source)) for name, size in sizes.items()}
        free = shutil.disk_usage(self.folder).free
        if needed[form] > free:
            others = [f"--form {n} takes {size_in_words(s)}" for n, s in needed.items() if n != form]
            raise DiskError(
                f"pack {self.folder} takes {size_in_words(needed[form])} more, and {size_in_words(free)} are "
                f"free: {''.join(f'{other}; ' for other in others)}--cache names another folder"
            )


@dataclass(frozen=True)
class PackedSource(ImageSource):
    """A source's images, from its pack: of each shard where images begin, their lengths and checksums."""

    whole: ImageSource
    folder: Path
    form: Form
    side: int
    starts: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
    lengths: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
    checksums: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
    maps: dict[int, memoryview] = field(default_factory=dict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def at_hand(self, side: int) -> bool:
        """Whether images are decoded, and of that side."""
        return self.form == "pixels" and side == self.side

    def name(self, index: int) -> str:
        """The image's own name."""
        return self.whole.name(index)

    def pixels(self, index: int, side: int) -> Pixels:
        """The image, if it is as it was packed."""
        number, row = divmod(index, SHARD)
        start = int(self.starts[number][row])
        content = self._mapped(number)[start : start + int(self.lengths[number][row])]
        if zlib.crc32(content) != self.checksums[number][row]:
            raise _damaged(
                shard_path(self.folder, number), f"image {self.name(index)} is not as it was packed"
            )
        if self.form == "files":
            return fit(read_image(io.BytesIO(content), self.name(index)), side, self.name(index))
        assert side == self.side
        return np.frombuffer(content, np.uint8).reshape(3, side, side)

    def _mapped(self, number: int) -> memoryview:
        with self.lock:
            if number not in self.maps:
                path = shard_path(self.folder, number)
                # Not by mmap, which keeps each file open: ImageNet has more shards than a process may open.
                with told(path, "read"), path.open("rb") as file:
                    mapped = torch.from_file(str(path), size=file.seek(0, io.SEEK_END), dtype=torch.uint8)
                self.maps[number] = mapped.numpy().data
            return self.maps[number]


def shard_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / f"{number:05}.shard"


def _damaged(path: Path, error: object) -> Damaged:
    return Damaged(
        f"{path} cannot be used ({error}): 'opencil data pack' makes it again; without the folder "
        f"{path.parent} images are read from their own files",
        error,
    )
