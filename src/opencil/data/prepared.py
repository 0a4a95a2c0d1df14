"""Prepared images: a split decoded once into one file, and mapped into memory by every later start.

The file is in the Safetensors format: ``images`` uint8 [N, 3, side, side], ``labels``, a CRC-32 of each image
(``checksums``), and which images are ``corrupt``. Its metadata are the class names and a key of the original
files. ``sha256`` covers everything but the images.
"""

import hashlib
import json
import logging
import math
import os
import shutil
import zlib
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from opencil.data.images import Progress
from opencil.data.readers.source import ImageSource, Pixels, SplitOnDisk
from opencil.data.streamed import decode_batches
from opencil.errors import BadInput, OpenCILError
from opencil.files import DiskError, size_in_words, write

_BATCH = 256
_TYPES = {"I64": "<i8", "U8": "u1", "U32": "<u4"}  # of Safetensors, and of numpy
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


def compute_checksums(images: Pixels) -> list[int]:
    """Return the CRC-32 of each image."""
    return [zlib.crc32(image.data) for image in images]


@dataclass(frozen=True)
class PreparedSource(ImageSource):
    """Images of a prepared file; each is compared with its checksum when it is read.

    ``images`` are all images of the file, and ``rows`` are those that are not corrupt.
    """

    place: Path
    images: Pixels
    checksums: np.ndarray[Any, np.dtype[np.uint32]]
    rows: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def left_out(self) -> list[int]:
        """Return the indices of the corrupt images in the original split."""
        return sorted({*range(len(self.images))}.difference(self.rows.tolist()))

    def name(self, index: int) -> str:
        """Return the file and the image's number in it."""
        return f"{self.place}[{self.rows[index]}]"

    def pixels(self, index: int, side: int) -> Pixels:
        """Return an image without decoding anything."""
        row = int(self.rows[index])
        image: Pixels = self.images[row]
        if zlib.crc32(image.data) != self.checksums[row]:
            raise OpenCILError(
                f"prepared image {self.name(index)} is damaged: 'opencil data prepare' makes the file again"
            )
        return image

    def array(self) -> Pixels:
        """Return all images but the corrupt ones, uint8 [N, 3, side, side]."""
        return self.images[self.rows] if self.left_out else self.images


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

        ``verify`` compares all images with their checksums at once. ``writable`` copies
        pages when they are written to, as torch requires of an array.
        """
        if not self.path.is_file():
            return None
        try:
            # Not writable unless necessary: the system refuses to map more than it has memory for.
            source = self._parse(np.memmap(self.path, np.uint8, "c" if writable else "r"))
            if verify and compute_checksums(np.asarray(source.images)) != source.checksums.tolist():
                raise ValueError("an image differs from its checksum")
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning("%s is prepared again: %s", self.path, error)
            return None
        return source

    def make(
        self, workers: int, skip_corrupt: bool = False, progress: Progress = lambda *_: None
    ) -> PreparedSource:
        """Decode the split into the file, which replaces an older file only when it is complete."""
        needed = len(self.on_disk.source) * 3 * self.side**2
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if needed > (free := shutil.disk_usage(self.path.parent).free):
                raise OSError(
                    f"{self.path} takes {size_in_words(needed)}, and {size_in_words(free)} are free"
                )
            write(self.path, lambda partial: self._write(partial, workers, skip_corrupt, progress))
        except OSError as error:
            raise DiskError(f"{error}; --cache or $OPENCIL_CACHE names another folder") from None
        source = self.load()
        assert source is not None, "the file was just written"
        return source

    def _write(self, path: Path, workers: int, skip_corrupt: bool, progress: Progress) -> None:
        source, done = self.on_disk.source, 0
        count = len(source)
        checksums, corrupt = np.zeros(count, "<u4"), np.zeros(count, np.uint8)
        head = self._header(count) + source.labels.astype("<i8").tobytes()
        decoding = decode_batches(source, range(count), self.side, _BATCH, workers)
        with path.open("wb") as file, closing(decoding) as batches:
            file.write(head)
            for pixels, errors in batches:
                array = pixels.numpy()
                for position, error in errors.items():
                    if not skip_corrupt:
                        raise error
                    corrupt[done + position], array[position] = 1, 0
                checksums[done : done + len(array)] = compute_checksums(array)
                file.write(array.data)
                done += len(array)
                progress(done, count)
            if corrupt.all():
                raise BadInput(f"{self.on_disk.place} has no image that can be decoded")
            tail = checksums.tobytes() + corrupt.tobytes()
            file.write(tail + hashlib.sha256(head + tail).digest())

    def _header(self, count: int) -> bytes:
        metadata = {"key": self.key, "classes": json.dumps(self.on_disk.source.classes)}
        header: dict[str, Any] = {"__metadata__": metadata}
        end = 0
        for name, kind, shape in (
            ("labels", "I64", [count]),
            ("images", "U8", [count, 3, self.side, self.side]),
            ("checksums", "U32", [count]),
            ("corrupt", "U8", [count]),
            ("sha256", "U8", [32]),
        ):
            start, end = end, end + math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def _parse(self, content: Pixels) -> PreparedSource:
        """Return the images in the bytes of a file; raise an error if they are others or damaged."""
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:start].tobytes())
        metadata = header["__metadata__"]
        del header["__metadata__"]
        if metadata["key"] != self.key:
            raise ValueError("it was made from other files")
        found: dict[str, np.ndarray[Any, Any]] = {}
        for name, value in header.items():
            begin, end = (start + offset for offset in value["data_offsets"])
            found[name] = content[begin:end].view(_TYPES[value["dtype"]]).reshape(value["shape"])
        labels, images, checksums, corrupt, sha256 = found.values()
        rest = (content[:start], labels, checksums, corrupt)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in rest)).digest()
        if digest != sha256.tobytes() or images.shape[1:] != (3, self.side, self.side):
            raise ValueError("its labels or its header are damaged")
        rows, classes = np.flatnonzero(corrupt == 0), tuple(json.loads(metadata["classes"]))
        own = np.array(labels[rows], np.int64)
        return PreparedSource(own, classes, self.path, images, np.array(checksums), rows)
