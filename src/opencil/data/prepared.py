"""Prepared images: a split decoded once into one file, and mapped into memory by every later start.

The file is in the Safetensors format: ``checksums`` int64 [N], the CRC-32 of each image or −1 for a corrupt
one, and ``images`` uint8 [N, 3, side, side]. Labels and classes are those of the original files, whose key is
in the header with the file's own name: files that are renamed to each other are noticed.
"""

import hashlib
import json
import logging
import os
import shutil
import zlib
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from opencil.data.images import Progress
from opencil.data.readers.source import ImageSource, Labels, Pixels, SplitOnDisk
from opencil.data.streamed import decode_batches
from opencil.errors import BadInput, OpenCILError
from opencil.files import DiskError, size_in_words, write

_BATCH, _CORRUPT = 256, -1
_log = logging.getLogger("opencil.data")


def cache_folder(root: Path | None, chosen: str | None = None) -> Path:
    """Return the folder of prepared images: chosen, $OPENCIL_CACHE, or ``.opencil-cache`` in the data root.

    Where the data root is read-only, as on shared disks, it is the user's own cache folder.
    """
    if folder := chosen or os.environ.get("OPENCIL_CACHE"):
        return Path(folder).expanduser()
    if root is not None and os.access(root, os.W_OK):
        return root / ".opencil-cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opencil"


@dataclass(frozen=True)
class PreparedSource(ImageSource):
    """Images of a prepared file; each is compared with its checksum when it is read.

    ``images`` and ``checksums`` are those of all images, and ``rows`` are the images that are not corrupt.
    """

    place: Path
    images: Pixels
    checksums: Labels
    rows: Labels
    left_out: dict[int, str]  #: the names of the corrupt images by their index

    def name(self, index: int) -> str:
        """Return the file and the image's number in it."""
        return f"{self.place}[{self.rows[index]}]"

    def pixels(self, index: int, side: int) -> Pixels:
        """Return an image without decoding anything."""
        image: Pixels = self.images[self.rows[index]]
        if zlib.crc32(image.data) != self.checksums[self.rows[index]]:
            raise OpenCILError(f"{self.name(index)} is damaged: 'opencil data prepare' makes the file again")
        return image


@dataclass(frozen=True)
class PreparedFile:
    """The prepared images of a split at one size: where they are stored and what they are made from."""

    path: Path
    on_disk: SplitOnDisk
    side: int

    @cached_property
    def key(self) -> str:
        """Return a digest of the source files' names, sizes and times, and of the images' side.

        Names are relative to the split's place: the spelling of the data root does not matter.
        """
        parts = [f"{self.on_disk.layout.name}:{self.side}"]
        place, folders = self.on_disk.place.resolve(), dict[Path, str]()
        for path in self.on_disk.files():
            state = path.stat()
            if path.parent not in folders:
                folders[path.parent] = os.path.relpath(path.parent.resolve(), place)
            parts.append(f"{folders[path.parent]}/{path.name}:{state.st_size}:{state.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()

    def load(self, *, verify: bool = False, writable: bool = False) -> PreparedSource | None:
        """Map the file; return None, and log why, where it is absent, damaged or made from other files.

        ``verify`` compares all images with their checksums at once. ``writable`` copies pages when they are
        written to, as torch requires of an array.
        """
        if not self.path.is_file():
            return None
        header, original = self._header(), self.on_disk.source
        start = len(header) + 8 * len(original)
        try:
            # Not writable unless necessary: the system refuses to map more than it has memory for.
            content = np.memmap(self.path, np.uint8, "c" if writable else "r")
            if content[: len(header)].tobytes() != header:
                raise ValueError("it was made from other files")
            checksums = np.array(content[len(header) : start].view("<i8"), np.int64)
            images = content[start:].reshape(len(original), 3, self.side, self.side)
            rows, plain = np.flatnonzero(checksums != _CORRUPT), np.asarray(images)
            if verify and any(zlib.crc32(plain[row].data) != checksums[row] for row in rows):
                raise ValueError("an image differs from its checksum")
        except (OSError, ValueError) as error:
            _log.warning("%s is prepared again: %s", self.path, error)
            return None
        labels, corrupt = original.labels[rows], np.flatnonzero(checksums == _CORRUPT).tolist()
        left_out = {index: original.name(index) for index in corrupt}
        return PreparedSource(labels, original.classes, self.path, images, checksums, rows, left_out)

    def make(
        self, workers: int, skip_corrupt: bool = False, progress: Progress = lambda *_: None
    ) -> PreparedSource:
        """Decode the split into the file, which replaces an older file only when it is complete."""
        needed = len(self.on_disk.source) * 3 * self.side**2
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if needed > (free := shutil.disk_usage(self.path.parent).free):
                raise OSError(
                    f"{self.path}: {size_in_words(needed)} are needed, {size_in_words(free)} are free"
                )
            write(self.path, lambda partial: self._write(partial, workers, skip_corrupt, progress))
        except OSError as error:
            raise DiskError(f"{error}; --cache or $OPENCIL_CACHE names another folder") from None
        source = self.load()
        assert source is not None, "the file was just written"
        return source

    def _write(self, path: Path, workers: int, skip_corrupt: bool, progress: Progress) -> None:
        source, header, checksums = self.on_disk.source, self._header(), list[int]()
        decoding = decode_batches(source, range(len(source)), self.side, _BATCH, workers)
        with path.open("wb") as file, closing(decoding) as batches:
            file.seek(len(header) + 8 * len(source))
            for pixels, corrupt in batches:
                if corrupt and not skip_corrupt:
                    raise next(iter(corrupt.values()))
                array = pixels.numpy()
                array[list(corrupt)] = 0
                checksums += [
                    _CORRUPT if i in corrupt else zlib.crc32(image.data) for i, image in enumerate(array)
                ]
                file.write(array.data)
                progress(len(checksums), len(source))
            if max(checksums) == _CORRUPT:
                raise BadInput(f"{self.on_disk.place} has no image that can be decoded")
            file.seek(0)
            file.write(header + np.array(checksums, "<i8").tobytes())

    def _header(self) -> bytes:
        """Return the file's first bytes, which the original files and the side determine."""
        count = len(self.on_disk.source)
        shape, middle = [count, 3, self.side, self.side], 8 * count
        ends = [middle, middle + count * 3 * self.side**2]
        header = {
            # Other images may have files of the same names, sizes and times.
            "__metadata__": {"file": self.path.name, "key": self.key},
            "checksums": {"dtype": "I64", "shape": [count], "data_offsets": [0, middle]},
            "images": {"dtype": "U8", "shape": shape, "data_offsets": ends},
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text
