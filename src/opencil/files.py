"""Files that are whole or absent, with their checksums, and one error for what a disk refuses.

A file is written under a temporary name, flushed and renamed. Checksums are SHA-256. A JSON file and a
checkpoint contain their own; the checksums of a step's other files are in its ``step.json``.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from opencil.errors import BadInput, OpenCILError

_TEMPORARY = ".part"
_MOST_TEXT = 2**30  # bytes of a JSON file or a config: files may be anyone's
_LONGEST = 50  # letters of a file name: file systems take 255 bytes, and a letter may have 4


class Damaged(OpenCILError):
    """A stored file is not as it was written; ``reason`` says how that shows."""

    def __init__(self, text: str, reason: object) -> None:
        super().__init__(text)
        self.reason = str(reason)


class DiskError(OpenCILError, OSError):
    """The system refuses to write or read a file; the file itself is not damaged."""


# --- writing ---------------------------------------------------------------------------------------


def write(path: Path, fill: Callable[[Path], object], *, flush: bool = True) -> None:
    """Let ``fill`` write a file that appears under ``path`` only when it is complete.

    A symbolic link is replaced; a folder, a pipe or a device is refused. Without ``flush`` a power cut may
    leave half of the file: for files that are compared with a checksum and can be computed again.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is not a file: remove it, or name another file to write")
    # Two processes that write the same report each write a whole file.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    with disk_errors(path):
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fill(partial)
            if flush:
                with partial.open("rb+") as file:
                    os.fsync(file)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to raise
                partial.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, content: bytes, *, flush: bool = True) -> str:
    """Write a file of bytes and return its checksum."""
    write(path, lambda partial: partial.write_bytes(content), flush=flush)
    return checksum(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as JSON that contains its own checksum."""
    write_bytes(path, _as_json(content))


def write_checked(path: Path, content: bytes, title: str = "") -> None:
    """Write bytes below a line of a title and their checksum."""
    write_bytes(path, f"{title}{checksum(content)}\n".encode() + content)


def _as_json(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, indent=2)
    return (json.dumps({**content, "sha256": checksum(body.encode())}, indent=2) + "\n").encode()


# --- reading ---------------------------------------------------------------------------------------


def read_bytes(path: Path, sha256: str | None = None, most: int | None = None) -> bytes:
    """Read a stored file of at most some bytes, which must have a checksum if one is given."""
    try:
        with disk_errors(path, "read"):
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):  # a pipe would wait for its writer
                raise damaged(path, "it is not a file")
            if most is not None and found.st_size > most:
                raise damaged(path, f"it is larger than {size_in_words(most)}")
            content = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    if sha256 is not None and checksum(content) != sha256:
        raise damaged(path, "its checksum differs from the recorded checksum")
    return content


def read_plain(path: Path) -> bytes:
    """Read a user's file; raise OSError for a pipe or a device, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file")
    return path.read_bytes()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that ``write_json`` has written."""
    content = read_bytes(path, most=_MOST_TEXT)
    try:
        found = json.loads(content.decode())
        if not isinstance(found, dict):
            raise ValueError("it is not a mapping")
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    found.pop("sha256", None)
    if _as_json(found) != content:
        raise damaged(path, "its checksum differs from the checksum in it")
    return found


def read_checked(path: Path, title: str = "") -> bytes:
    """Read bytes that ``write_checked`` has written below the same title."""
    first, _, content = read_bytes(path, most=_MOST_TEXT if title else None).partition(b"\n")
    if first != f"{title}{checksum(content)}".encode():
        raise damaged(path, "it is not as written, or of another format")
    return content


def checksum(content: bytes) -> str:
    """Return the SHA-256 of bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def damaged(path: Path, reason: object) -> Damaged:
    """Return the error for a stored file that cannot be used."""
    again = path.parent.name in ("detectors", "heads", "statistics") or "checkpoint" in path.name
    way = "'opencil run' makes it again" if again else f"delete the folder {path.parent} to compute it again"
    return Damaged(f"{path} cannot be used ({reason}): {way}", reason)


# --- names and leftovers ---------------------------------------------------------------------------


def file_name(name: str) -> str:
    """Return a name that every file system takes, without an ending; different names stay different.

    Letters, digits and ``-_@+`` stay. A name with other characters, or a long name, gets part of its
    checksum.
    """
    plain = re.sub(r"[^\w@+-]", "_", name)[:_LONGEST]
    return plain if plain == name else f"{plain}-{checksum(name.encode('utf-8', 'surrogatepass'))[:8]}"


def find_temporary(folder: Path) -> list[Path]:
    """Return the half-written files below a folder."""
    return sorted(path for path in folder.rglob(f"*{_TEMPORARY}") if path.is_file())


# --- disks -----------------------------------------------------------------------------------------

#: What a system reports of a disk, not of a file: it is full, over a quota or a limit, read-only, or fails.
_OF_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


@contextmanager
def disk_errors(path: Path, doing: str = "written") -> Iterator[None]:
    """Raise ``DiskError`` for what the system refuses inside the block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskError) or error.errno in (None, errno.ENOENT, errno.EISDIR):
            raise
        raise _disk_error(path, error.errno, doing) from None


def find_disk_error(error: Exception, near: Path) -> DiskError | None:
    """Return the disk error that another error reports, if it does; ``near`` is where it may have been."""
    if isinstance(error, OSError) and not isinstance(error, DiskError) and error.errno in _OF_DISKS:
        return _disk_error(Path(error.filename or near), error.errno)
    return error if isinstance(error, DiskError) else None


def _disk_error(path: Path, number: int, doing: str = "written") -> DiskError:
    room = ""
    if number in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            usage = shutil.disk_usage(path.parent)
            room = f" ({size_in_words(usage.free)} of {size_in_words(usage.total)} are free)"
    error = DiskError(f"{path} cannot be {doing}: {os.strerror(number)}{room}")
    error.errno = number
    return error


def size_in_words(size: float) -> str:
    """Return a number of bytes in words: ``0 B``, ``1.4 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
