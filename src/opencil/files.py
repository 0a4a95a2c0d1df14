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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from opencil.errors import BadInput, OpenCILError

_TEMPORARY = ".part"
_LONGEST = 50  # letters of a file name: file systems take 255 bytes, and a letter may have 4
_DIGEST = hashlib.sha256().digest_size


class Damaged(OpenCILError):
    """A stored file is not as it was written; ``reason`` says how that shows."""

    def __init__(self, text: str, reason: object) -> None:
        super().__init__(text)
        self.reason = str(reason)


class DiskError(OpenCILError, OSError):
    """The system refuses to write or read a file; the file itself is not damaged."""


# --- writing ---------------------------------------------------------------------------------------


def write(path: Path, fill: Callable[[Path], object], *, flush: bool = True, follow: bool = True) -> None:
    """Let ``fill`` write a file that appears under ``path`` only when it is complete.

    Without ``flush`` a power cut may leave half of it: for files whose checksum is compared when they are
    read. A symbolic link is followed, or replaced without ``follow``. A folder, a pipe or a device is
    refused.
    """
    if path.exists() and not path.is_file() and (follow or not path.is_symlink()):
        raise BadInput(f"{path} is not a file: name a file to write")
    if follow:
        path = Path(os.path.realpath(path))
    # Two processes that write the same report each write a whole file.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    with disk_errors(path):
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fill(partial)
            if flush:
                _flush(partial)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to raise
                partial.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, content: bytes, *, flush: bool = True, follow: bool = True) -> str:
    """Write a file of bytes and return its checksum."""
    write(path, lambda partial: partial.write_bytes(content), flush=flush, follow=follow)
    return checksum(content)


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Write a text file."""
    write_bytes(path, text.encode(), follow=follow)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as JSON that contains its own checksum, and flush its folder."""
    write_bytes(path, _as_json(content), follow=False)
    if os.name != "nt":  # Windows cannot open a folder
        with disk_errors(path):
            _flush(path.parent)


def write_checked(path: Path, content: bytes) -> None:
    """Write bytes, followed by their checksum."""
    write_bytes(path, content + hashlib.sha256(content).digest(), follow=False)


def _as_json(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, indent=2)
    return (json.dumps({**content, "sha256": checksum(body.encode())}, indent=2) + "\n").encode()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ---------------------------------------------------------------------------------------


def read_bytes(path: Path, sha256: str | None = None) -> bytes:
    """Read a stored file, which must have a checksum if one is given."""
    try:
        with disk_errors(path, "read"):
            content = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except IsADirectoryError:
        raise damaged(path, "it is a folder") from None
    if sha256 is not None and checksum(content) != sha256:
        raise damaged(path, "its checksum differs from the recorded checksum")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that ``write_json`` has written."""
    content = read_bytes(path)
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


def read_checked(path: Path) -> bytes:
    """Read bytes that ``write_checked`` has written."""
    content = read_bytes(path)
    body, found = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(body).digest() != found:
        raise damaged(path, "its checksum differs from the checksum in it")
    return body


def checksum(content: bytes) -> str:
    """Return the SHA-256 of bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def damaged(path: Path, reason: object) -> Damaged:
    """Return the error for a stored file that cannot be used."""
    again = path.parent.name in ("detectors", "heads") or "checkpoint" in path.name
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


def remove_temporary(folder: Path) -> None:
    """Delete the half-written files below a folder."""
    for leftover in find_temporary(folder):
        leftover.unlink(missing_ok=True)


# --- disks -----------------------------------------------------------------------------------------

#: What a system reports about a disk rather than a file, with advice.
_TROUBLE = {
    errno.ENOSPC: ("the disk is full", "make room there"),
    errno.EDQUOT: ("the quota there is used up", "make room within it"),
    errno.EFBIG: ("a file may not be that large there", "raise the limit ('ulimit -f')"),
    errno.EROFS: ("the file system is read-only", "name another folder"),
    errno.EIO: ("the disk fails", "look at the system's log and copy what can be read"),
}
#: Libraries that are not written in Python put the system's number into their text.
_NUMBER = re.compile(r"\b(?:os error|errno) (\d+)", re.IGNORECASE)


def disk_error(
    path: Path, error: Exception, doing: Literal["written", "read"] = "written"
) -> DiskError | None:
    """Return the error for a system that refuses a file; None where the system is not the cause."""
    if isinstance(error, DiskError):
        return error
    number = _system_number(error)
    if not number or number in (errno.ENOENT, errno.EISDIR):
        return None
    words = error.strerror if isinstance(error, OSError) else None
    what, advice = _TROUBLE.get(number, (words or str(error), ""))
    room = _free_room(path) if number in (errno.ENOSPC, errno.EDQUOT) else ""
    found = DiskError(f"{path} cannot be {doing}: {what}{room}{advice and f'; {advice}, and start again'}")
    found.errno = number
    return found


def find_disk_error(error: Exception, near: Path) -> DiskError | None:
    """Return the disk error that another error reports, if it does; ``near`` is where it may have been."""
    if not isinstance(error, DiskError) and _system_number(error) not in _TROUBLE:
        return None
    name = getattr(error, "filename", None)
    return disk_error(Path(name) if isinstance(name, str) else near, error)


@contextmanager
def disk_errors(path: Path, doing: Literal["written", "read"] = "written") -> Iterator[None]:
    """Raise ``DiskError`` for what the system refuses inside the block."""
    try:
        yield
    except Exception as error:
        if (refused := disk_error(path, error, doing)) is None or refused is error:
            raise
        raise refused from None


def _system_number(error: Exception) -> int | None:
    """Return the system's number of an error, also where a library has put it into a text."""
    if isinstance(error, OpenCILError):
        return None
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found and int(found[1]) in _TROUBLE else None


def _free_room(path: Path) -> str:
    try:
        usage = shutil.disk_usage(path.parent)
    except OSError:
        return ""
    return f" ({size_in_words(usage.free)} of {size_in_words(usage.total)} are free)"


def size_in_words(size: float) -> str:
    """Return a number of bytes in words: ``0 B``, ``1.4 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
