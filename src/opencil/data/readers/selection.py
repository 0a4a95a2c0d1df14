"""Some images of a download, chosen by a list of file names that comes with the package."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from opencil.data.readers.archives import zip_members
from opencil.data.readers.folders import images_below
from opencil.data.readers.source import FileSource, Layout, SplitOnDisk, ZipSource
from opencil.errors import BadInput

T = TypeVar("T")


def shipped_list(name: str) -> list[str]:
    """The file names in one of the package's lists."""
    return (resources.files("opencil.data") / "lists" / name).read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class Selection(Layout):
    """The images of a shipped list, below one of some folders or in one of some zip archives."""

    chosen: str
    folders: tuple[str, ...]
    zips: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """The folders, then the archives."""
        return self.folders + self.zips

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first of the folders, else of the archives."""
        for folder in (base / name for name in self.folders):
            if folder.is_dir():
                read = partial(self._from_folder, folder)
                return SplitOnDisk("folder, shipped list", folder, read, separate=True)
        for archive in (base / name for name in self.zips):
            if archive.is_file():
                return SplitOnDisk("zip, shipped list", archive, partial(self._from_zip, archive), (archive,))
        return None

    def _from_folder(self, folder: Path) -> FileSource:
        kept = self._kept({path.name: path for path in images_below(folder)}, folder)
        return FileSource(np.zeros(len(kept), np.int64), (folder.name,), kept)

    def _from_zip(self, archive: Path) -> ZipSource:
        kept = self._kept(_by_name(zip_members(archive)), archive)
        return ZipSource(np.zeros(len(kept), np.int64), (archive.stem,), archive, kept)

    def _kept(self, present: dict[str, T], where: Path) -> list[T]:
        names = shipped_list(self.chosen)
        absent = [name for name in names if name not in present]
        if absent:
            raise BadInput(
                f"{where} has no {absent[0]!r}: {len(absent):,} of the {len(names):,} images to keep lack"
            )
        return [present[name] for name in names]


def _by_name(members: Iterable[str]) -> dict[str, str]:
    return {PurePosixPath(member).name: member for member in members}
