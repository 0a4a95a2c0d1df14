"""What a disk refuses, in sentences: one that is full, over a quota, read-only, or fails."""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from opencil.errors import OpenCILError

#: What a system says of a disk, not of a file: what is the matter, and what to do about it.
_TROUBLE = {
    errno.ENOSPC: ("the disk is full", "make room there"),
    errno.EDQUOT: ("the quota there is used up", "make room within it"),
    errno.EFBIG: ("a file may not be that large there", "raise the limit ('ulimit -f')"),
    errno.EROFS: ("the file system is read-only", "name another folder"),
    errno.EIO: ("the disk fails", "look at the system's log and keep a copy of what can be read"),
}
#: Those of them that more room would help against.
_OF_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: Libraries that are not written in Python put the system's number into a text of theirs.
_NUMBER = re.compile(r"\b(?:os error|errno) (\d+)", re.IGNORECASE)

Doing = Literal["written", "read"]


class DiskError(OpenCILError, OSError):
    """A file cannot be written or read, for a reason that is not in the file; nothing of it is damaged."""


def disk_error(path: Path, error: Exception, doing: Doing = "written") -> DiskError | None:
    """The error for a system that refuses to write or read a file; None where it is no matter of the system.

    A file that is absent is none, nor what a library finds wrong with a file's content.
    """
    if isinstance(error, DiskError):
        return error
    number = _number(error)
    if not number or number == errno.ENOENT:
        return None
    what, advice = _TROUBLE.get(number, (_words(error), ""))
    room = _free(path) if number in _OF_ROOM else ""
    told = DiskError(f"{path} cannot be {doing}: {what}{room}{advice and f'; {advice}, and start again'}")
    told.errno = number
    return told


def trouble_of_disk(error: Exception, near: Path) -> DiskError | None:
    """The same for an error from anywhere, if it speaks of a disk; ``near`` is where it may have been."""
    if not isinstance(error, DiskError) and _number(error) not in _TROUBLE:
        return None
    name = getattr(error, "filename", None)
    return disk_error(Path(name) if isinstance(name, str) else near, error)


@contextmanager
def told(path: Path, doing: Doing = "written") -> Iterator[None]:
    """Inside the block, what the system refuses about a file is a ``DiskError``."""
    try:
        yield
    except Exception as error:
        if (refused := disk_error(path, error, doing)) is None or refused is error:
            raise
        raise refused from None


def _number(error: Exception) -> int | None:
    """The system's number of an error, also where a library has put it into a text."""
    if isinstance(error, OpenCILError):
        return None
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found and int(found[1]) in _TROUBLE else None


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _free(path: Path) -> str:
    """`` (12.3 MiB of 1.0 GiB are free)``, or nothing where that cannot be known."""
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        usage = shutil.disk_usage(there)
    except (OSError, StopIteration):
        return ""
    return f" ({size_in_words(usage.free)} of {size_in_words(usage.total)} are free)"


def size_in_words(size: float) -> str:
    """Bytes as a few letters: ``0 B``, ``1.4 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
