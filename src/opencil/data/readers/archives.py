"""Members of archives from the internet, read without ever unpacking them to disk."""

import gzip
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from opencil.errors import BadInput, one_line

#: The largest member that is read into memory; CIFAR-100's training pickle has 155 MB.
LARGEST_MEMBER = 2**30
#: The most that is decompressed on the way to a member; CIFAR's archives hold 186 MB.
_LARGEST_WALK = 2 * LARGEST_MEMBER
#: How many times its length a compressed file may hold: pixels shrink to a half or a tenth, a bomb to a
#: thousandth. What is within the allowance is read anyhow.
_GROWTH, _ALLOWANCE = 200, 2**26
#: The longest header of a tar's member, a long name or a comment; its parsing takes the square of it.
_LONGEST_HEADER = 2**12


class NoMember(BadInput):
    """An archive has no member of a name."""


def most_within(length: int, allowance: int = _ALLOWANCE) -> int:
    """The most that is taken out of a compressed file of so many bytes."""
    return max(allowance, _GROWTH * length)


def points_outside(name: str) -> bool:
    """Whether a relative path leads out of the folder that it is meant for."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.drive or windows.root) or ".." in windows.parts


class _Bounded:
    """An archive's stream: to read more than ``longest`` at once, or beyond ``most``, is refused."""

    def __init__(self, archive: Path, stream: IO[bytes], most: int) -> None:
        self._archive, self._stream, self._most, self.longest = archive, stream, most, _LONGEST_HEADER

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.longest:
            raise BadInput(f"{self._archive} is refused: it has a header of more than {self.longest:,} bytes")
        self._refuse(self.tell() + size)
        return self._stream.read(size)

    def seek(self, position: int) -> int:
        self._refuse(position)
        return self._stream.seek(position)

    def tell(self) -> int:
        return self._stream.tell()

    def _refuse(self, position: int) -> None:
        if position > self._most:
            raise BadInput(f"{self._archive} is refused: it announces more than {self._most:,} bytes")


def tar_member(archive: Path, wanted: str) -> bytes:
    """The content of a regular file in a tar archive, plain or compressed by gzip."""
    try:
        with archive.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            most = min(_LARGEST_WALK, most_within(archive.stat().st_size))
            bounded = _Bounded(archive, gzip.GzipFile(fileobj=file) if packed else file, most)  # type: ignore[arg-type]
            with tarfile.open(fileobj=bounded, mode="r:") as tar:  # type: ignore[call-overload]
                for member in tar:
                    _refuse_outside(archive, [member.name])
                    if member.size < 0:  # the next one would be this one, for ever
                        raise BadInput(f"{archive} is refused: its member {member.name!r} has a size below 0")
                    if member.issym() or member.islnk():
                        raise BadInput(f"{archive} is refused: its member {member.name!r} is a link")
                    if PurePosixPath(member.name) == PurePosixPath(wanted):
                        # A sparse one holds a few bytes and announces any number of zeros beside them.
                        if not member.isfile() or member.issparse() or member.size > LARGEST_MEMBER:
                            raise BadInput(
                                f"{archive} is refused: its member {wanted!r} is no file of at most "
                                f"{LARGEST_MEMBER:,} bytes"
                            )
                        bounded.longest = member.size
                        content: IO[bytes] | None = tar.extractfile(member)
                        assert content is not None  # a regular file, as was checked
                        return content.read()
    except BadInput:
        raise
    except Exception as error:  # headers are text from strangers: a damaged one fails in many ways
        raise BadInput(f"archive {archive} cannot be read: {one_line(error)}") from None
    raise NoMember(f"archive {archive} has no member {wanted!r}")


def zip_members(archive: Path) -> list[str]:
    """The names of the files in a zip archive, whose members must fit in it."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = content.infolist()
        length = archive.stat().st_size
    except Exception as error:  # as with tars
        raise BadInput(f"archive {archive} cannot be read: {one_line(error)}") from None
    _refuse_outside(archive, (member.filename for member in members))
    if (announced := sum(member.compress_size for member in members)) > length:
        raise BadInput(
            f"{archive} is refused: its members announce {announced:,} bytes, and it has {length:,}"
        )
    for member in members:
        most = min(LARGEST_MEMBER, most_within(member.compress_size))
        if member.file_size > most:
            raise BadInput(
                f"{archive} is refused: its member {member.filename!r} has more than {most:,} bytes"
            )
    return [member.filename for member in members if not member.filename.endswith("/")]


def _refuse_outside(archive: Path, names: Iterable[str]) -> None:
    for name in names:
        if points_outside(name):
            raise BadInput(f"{archive} is refused: its member {name!r} points outside the archive's folder")
