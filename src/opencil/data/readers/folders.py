"""Trees of image files: a folder per class, or all in one."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from opencil.data.readers.decode import SUFFIXES
from opencil.data.readers.source import FileSource, Layout, SplitOnDisk
from opencil.errors import BadInput


def listing(folder: Path) -> list[str]:
    """The sorted names in a folder, those that begin with a dot left out."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except OSError as error:
        raise BadInput(f"folder {folder} cannot be read: {error.strerror}") from None


def is_image(name: str) -> bool:
    """Whether a file name ends like an image's."""
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122


def images_below(folder: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """The image files in a folder and its sub-folders, sorted within each.

    ``above`` are the device and number of the folders that led here: a link back to one of them is refused.
    """
    folders, files = contents(folder)
    state = folder.stat()
    here = state.st_dev, state.st_ino
    if here in above:
        raise BadInput(
            f"folder {folder} is a link to a folder that it lies in: images would repeat endlessly"
        )
    images = {name for name in files if is_image(name)}
    for name in sorted(images.union(folders)):
        if name in images:
            yield folder / name
        else:
            yield from images_below(folder / name, above | {here})


def contents(folder: Path) -> tuple[list[str], list[str]]:
    """Sorted names of the folders and of the regular files in a folder; no pipes, devices or dotted names.

    A link to nowhere counts as a file, so that it is named when it is read and not silently left out.
    """
    folders, files = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file() or not os.path.exists(entry.path):  # noqa: PTH110
                    files.append(entry.name)
    except OSError as error:
        raise BadInput(f"folder {folder} cannot be read: {error.strerror}") from None
    return sorted(folders), sorted(files)


def class_folders(folder: Path) -> FileSource:
    """A folder per class: labels follow the sorted names of the folders."""
    names, files = contents(folder)
    stray = [name for name in files if is_image(name)]
    if not names:
        raise BadInput(f"{folder} has no folders of classes")
    if stray:
        raise BadInput(
            f"{folder} has images outside its {len(names)} folders of classes, such as {stray[0]!r}"
        )
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.strip().casefold(), name)
        if other != name:
            raise BadInput(f"{folder} has the class {name!r} twice: the other folder is {other!r}")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        images = list(images_below(folder / name))
        if not images:
            raise BadInput(f"class {name!r} of {folder} is empty: it has no images")
        paths += images
        labels += [label] * len(images)
    return FileSource(np.array(labels, np.int64), tuple(names), paths)


def flat_folder(folder: Path) -> FileSource:
    """All images in a folder and below it, as one class."""
    paths = list(images_below(folder))
    if not paths:
        raise BadInput(f"{folder} has no images")
    return FileSource(np.zeros(len(paths), np.int64), (folder.name,), paths)


@dataclass(frozen=True)
class Folders(Layout):
    """A folder per class, at any of some places."""

    folders: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """Where it looks."""
        return tuple(f"{folder}/<class>/<image>" for folder in self.folders)

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first of the places that has a folder in it."""
        for folder in (base / name for name in self.folders):
            if folder.is_dir() and any((folder / name).is_dir() for name in listing(folder)):
                return split_in_folder("class folders", folder, class_folders)
        return None


@dataclass(frozen=True)
class Flat(Layout):
    """All images in one folder, at any of some places."""

    folders: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """Where it looks."""
        return tuple(f"{folder}/<image>" for folder in self.folders)

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first of the places that has an image in it."""
        for folder in (base / name for name in self.folders):
            if folder.is_dir() and any(map(is_image, listing(folder))):
                return split_in_folder("flat folder", folder, flat_folder)
        return None


def split_in_folder(layout: str, folder: Path, read: Callable[[Path], FileSource]) -> SplitOnDisk:
    """A folder of images, to be read in one of the two ways."""
    return SplitOnDisk(layout, folder, partial(read, folder), separate=True)
