"""Files that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from opencil.disk import told
from opencil.errors import BadInput
from opencil.locks import confirm

_TEMPORARY = ".part"
_LONGEST = 50  # letters of a name: file systems take 255 bytes, and a letter may have 4


def write(path: Path, fill: Callable[[Path], None], *, flush: bool = True, follow: bool = True) -> None:
    """Let ``fill`` write a file that appears under ``path`` only when it is complete and on disk.

    Without ``flush`` a power cut may leave half of it: for what is checked when it is read. A link stays, and
    what it points to is written; without ``follow`` the link is replaced. A folder, a pipe or a device is
    refused: it would be lost. Where a disk refuses, with a ``DiskError``, the file that was there stays.
    """
    if path.exists() and not path.is_file() and (follow or not path.is_symlink()):
        raise BadInput(f"{path} is no file but {_kind(path)}: name a file to write")
    if follow:
        path = Path(os.path.realpath(path))
    # A name of this call's own: two processes that write one report at a time each write a whole file.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fill(partial)
            if flush:
                _flush(partial)
            confirm(path)  # whoever holds what it belongs to may have been halted for long
            partial.replace(path)
            if flush:
                _flush(path.parent)
        finally:
            with suppress(OSError):  # what went wrong first is to be told
                partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, flush: bool = True, follow: bool = True) -> None:
    """Write a file of bytes."""
    write(path, lambda temporary: _fill(temporary, content), flush=flush, follow=follow)


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Write a text file."""
    write_bytes(path, text.encode(), follow=follow)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def file_name(name: str) -> str:
    """A name as that of a file, without an ending, on every file system; different names stay different.

    Letters, digits and ``-_@+`` stay; a name that has others, or is long, gets a part of its checksum.
    """
    plain = re.sub(r"[^\w@+-]", "_", name)[:_LONGEST]
    if plain == name:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def temporary(folder: Path) -> Iterator[Path]:
    """What is being written below a folder, or was left half-written by an interrupted process."""
    return filter(is_temporary, folder.rglob(f"*{_TEMPORARY}"))


def remove_temporary(folder: Path) -> None:
    """Delete what an interrupted process left half-written."""
    for leftover in temporary(folder):
        leftover.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a file is one that is being written, or whose writer was stopped."""
    return path.suffix == _TEMPORARY and path.is_file()


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    return "a pipe" if path.is_fifo() else "a device or a socket"


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
