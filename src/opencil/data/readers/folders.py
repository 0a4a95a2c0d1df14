"""Trees of image files: a folder per class, or a single folder."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from opencil.data.readers.source import SUFFIXES, FileSource, Layout, no_parts
from opencil.errors import BadInput


def is_image(name: str) -> bool:
    """Return whether a file name has an image's ending."""
    return name.lower().endswith(SUFFIXES)


def find_images(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the image files in a folder and its sub-folders, sorted within each; ``above``: its parents."""
    folders, files = list_folder(folder)
    if (here := folder.resolve()) in above:
        raise BadInput(f"folder {folder} is a link to a parent folder: images would repeat endlessly")
    for name in sorted([*folders, *filter(is_image, files)]):
        if name in files:
            yield folder / name
        else:
            yield from find_images(folder / name, (*above, here))


def list_folder(folder: Path) -> tuple[list[str], set[str]]:
    """Return the sorted names of the folders and the names of the files in a folder, without hidden ones.

    A broken link counts as a file, so that reading it raises an error that names it.
    """
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInput(f"folder {folder} cannot be read: {error.strerror}") from None
    folders = sorted(entry.name for entry in visible if entry.is_dir())
    return folders, {e.name for e in visible if e.is_file() or e.is_symlink()}.difference(folders)


def read_class_folders(folder: Path) -> FileSource:
    """Read a folder per class: labels follow the sorted names of the folders."""
    names, files = list_folder(folder)
    if not names:
        raise BadInput(f"{folder} has no folders of classes")
    if stray := sorted(filter(is_image, files)):
        raise BadInput(
            f"{folder} has images outside its {len(names)} folders of classes, such as {stray[0]!r}"
        )
    counts = Counter(name.strip().casefold() for name in names)
    if twice := [name for name in names if counts[name.strip().casefold()] > 1]:
        raise BadInput(f"{folder} has the class {twice[0]!r} twice: the other folder is {twice[1]!r}")
    images = [list(find_images(folder / name)) for name in names]
    for name, paths in zip(names, images, strict=True):
        if not paths:
            raise BadInput(f"class {name!r} of {folder} is empty: it has no images")
    labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(paths) for paths in images])
    return FileSource(labels, tuple(names), [path for paths in images for path in paths])


def read_flat_folder(folder: Path) -> FileSource:
    """Read all images in a folder and below it as a single class."""
    paths = list(find_images(folder))
    if not paths:
        raise BadInput(f"{folder} has no images")
    return FileSource(np.zeros(len(paths), np.int64), (folder.name,), paths)


def folders(*names: str) -> Layout:
    """Return the layout of a folder per class, in the first of some folders that has sub-folders."""

    def fits(folder: Path) -> bool:
        return folder.is_dir() and bool(list_folder(folder)[0])

    return Layout("class folders", names, read_class_folders, fits, no_parts, "/<class>/<image>")


def flat(*names: str) -> Layout:
    """Return the layout of all images in a folder, the first of some folders that has images."""

    def fits(folder: Path) -> bool:
        return folder.is_dir() and any(map(is_image, list_folder(folder)[1]))

    return Layout("flat folder", names, read_flat_folder, fits, no_parts, "/<image>")
