"""Members of archives from the internet, read without ever unpacking them to disk."""

import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from opencil.errors import BadInput

#: The largest member that is read into memory; CIFAR-100's training pickle has 155 MB.
LARGEST_MEMBER = 2**30
#: The most that is decompressed on the way to a member; CIFAR's archives hold 186 MB.
_LARGEST_WALK = 2 * LARGEST_MEMBER


class NoMember(BadInput):
    """An archive has no member of a name."""


def points_outside(name: str) -> bool:
    """Whether a relative path leads out of the folder that it is meant for."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.drive or windows.root) or ".." in windows.parts


def tar_member(archive: Path, wanted: str) -> bytes:
    """The content of a regular file in a tar archive, plain or compressed."""
    walked = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                walked += member.size
                if walked > _LARGEST_WALK:
                    raise BadInput(f"{archive} is refused: it holds more than {_LARGEST_WALK:,} bytes")
                _refuse_outside(archive, [member.name])
                if member.issym() or member.islnk():
                    raise BadInput(f"{archive} is refused: its member {member.name!r} is a link")
                if PurePosixPath(member.name) == PurePosixPath(wanted):
                    if not member.isfile() or member.size > LARGEST_MEMBER:
                        raise BadInput(
                            f"{archive} is refused: its member {wanted!r} is no file of at most "
                            f"{LARGEST_MEMBER:,} bytes"
                        )
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file, as was checked
                    return content.read()
    except BadInput:
        raise
    except Exception as error:  # headers are text from strangers: a damaged one fails in many ways
        raise BadInput(f"archive {archive} cannot be read: {error}") from None
    raise NoMember(f"archive {archive} has no member {wanted!r}")


def zip_members(archive: Path) -> list[str]:
    """The names of the files in a zip archive."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = content.infolist()
    except (zipfile.BadZipFile, OSError) as error:
        raise BadInput(f"archive {archive} cannot be read: {error}") from None
    _refuse_outside(archive, (member.filename for member in members))
    for member in members:
        if member.file_size > LARGEST_MEMBER:
            raise BadInput(
                f"{archive} is refused: its member {member.filename!r} has more than {LARGEST_MEMBER:,} bytes"
            )
    return [member.filename for member in members if not member.is_dir()]


def _refuse_outside(archive: Path, names: Iterable[str]) -> None:
    for name in names:
        if points_outside(name):
            raise BadInput(f"{archive} is refused: its member {name!r} points outside the archive's folder")
