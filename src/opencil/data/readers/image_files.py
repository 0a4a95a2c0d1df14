"""Image files: in a folder per class, in a single folder, or named by a list.

Lists are OpenOOD's ``benchmark_imglist``, a user's own, or shipped with the package.
"""

import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np

from opencil.data.images import Split
from opencil.data.readers.source import LARGEST_FILE, SUFFIXES, FileSource, Layout
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

    A broken link counts as a file: reading it raises an error with its name.
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
        raise BadInput(f"{folder} has images outside its folders of classes, such as {stray[0]!r}")
    counts = Counter(name.strip().casefold() for name in names)
    if twice := [name for name in names if counts[name.strip().casefold()] > 1]:
        raise BadInput(f"{folder} has the class {twice[0]!r} twice: the other folder is {twice[1]!r}")
    images = [list(find_images(folder / name)) for name in names]
    if empty := [name for name, paths in zip(names, images, strict=True) if not paths]:
        raise BadInput(f"class {empty[0]!r} of {folder} has no images")
    labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(paths) for paths in images])
    return FileSource(labels, tuple(names), [path for paths in images for path in paths])


def read_part(folder: Path, part: Split, share: float, seed: int) -> FileSource:
    """Read the training or the test images of a folder per class; ``share`` of each class are for testing.

    They are drawn by the seed and the class's name, so another class changes nothing for the others.
    """
    source, rows = read_class_folders(folder), list[int]()
    for label, name in enumerate(source.classes):
        own = np.flatnonzero(source.labels == label)
        if len(own) < 2:
            raise BadInput(f"class {name!r} of {folder} has 1 image: to be split it needs 2 or more")
        held_out = min(max(1, round(share * len(own))), len(own) - 1)
        drawn = np.random.default_rng([seed, *os.fsencode(name)]).permutation(own)
        rows += sorted((drawn[:held_out] if part == "test" else drawn[held_out:]).tolist())
    return FileSource(source.labels[rows], source.classes, [source.paths[row] for row in rows])


def read_flat_folder(folder: Path) -> FileSource:
    """Read all images in a folder and below it as a single class."""
    paths = list(find_images(folder))
    if not paths:
        raise BadInput(f"{folder} has no images")
    return FileSource(np.zeros(len(paths), np.int64), (folder.name,), paths)


def folders(*names: str) -> Layout:
    """Return the layout of a folder per class, in the first of some folders with sub-folders."""

    def fits(folder: Path) -> bool:
        return folder.is_dir() and bool(list_folder(folder)[0])

    return Layout("class folders", names, read_class_folders, fits, inside="/<class>/<image>")


def annotated(annotations: str, *names: str) -> Layout:
    """Return the layout of a folder ``images`` and a file whose lines begin with a name and its class."""

    def read(folder: Path) -> FileSource:
        path = folder / annotations
        rows = [line.split() for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        if bad := [number for number, row in enumerate(rows, 1) if len(row) < 2]:
            raise BadInput(f"{path}, line {bad[0]}: the name of an image and its class are expected")
        classes = tuple(sorted({name for _, name, *_ in rows}))
        present = list_folder(folder / "images")[1]
        if absent := [file for file, *_ in rows if file not in present]:
            raise BadInput(f"{path} names {absent[0]!r}, which is not in {folder / 'images'}")
        labels = np.array([classes.index(name) for _, name, *_ in rows], np.int64)
        return FileSource(labels, classes, [folder / "images" / file for file, *_ in rows])

    def fits(folder: Path) -> bool:
        return (folder / annotations).is_file()

    return Layout("annotated folder", names, read, fits, inside=f"/{annotations}")


def flat(*names: str) -> Layout:
    """Return the layout of all images in a folder, the first of some folders with images."""

    def fits(folder: Path) -> bool:
        return folder.is_dir() and any(map(is_image, list_folder(folder)[1]))

    return Layout("flat folder", names, read_flat_folder, fits, inside="/<image>")


class Line(NamedTuple):
    """A line of a list file, ``path`` or ``path label``; ``label`` is None if it is absent or −1."""

    number: int
    path: str
    label: int | None


def read_list(path: Path) -> list[Line]:
    """Read a list file; spaces around a path or a label and empty lines are ignored."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"list {path} is not UTF-8 text: {error}") from None
    lines: list[Line] = []
    seen: dict[PurePosixPath, int] = {}
    # Not splitlines(): it also splits at some characters allowed in file names.
    for number, content in enumerate(map(str.strip, text.split("\n")), 1):
        if not content:
            continue
        try:
            name, label = content.rsplit(maxsplit=1)[0], int(content.rsplit(maxsplit=1)[1])
        except (IndexError, ValueError):
            name, label = content, -1
        where = f"list {path}, line {number}"
        if not -1 <= label < 2**31:
            raise BadInput(f"{where}: label {label} is not allowed: it should be from 0, or -1 for none")
        name = name.replace("\\", "/")
        if PureWindowsPath(name).anchor or ".." in name.split("/"):
            raise BadInput(f"{where}: {name[:200]!r} points outside the folder of images")
        if (first := seen.setdefault(PurePosixPath(name), number)) != number:
            raise BadInput(f"list {path} names {name!r} twice: in lines {first} and {number}")
        lines.append(Line(number, name, None if label == -1 else label))
    if not lines:
        raise BadInput(f"list {path} names no images")
    return lines


def read_listed_images(path: Path, folders: tuple[Path, ...]) -> FileSource:
    """Read the images named by a list, below the first folder with the first image.

    Labels are the list's; a list without labels takes the images' own folders as classes.
    """
    lines = read_list(path)
    folder = next((f for f in folders if (f / lines[0].path).is_file()), folders[0])
    paths = [folder / line.path for line in lines]
    present = {parent: list_folder(parent)[1] for parent in {p.parent for p in paths} if parent.is_dir()}
    absent = [line for line, p in zip(lines, paths, strict=True) if p.name not in present.get(p.parent, ())]
    if absent:
        first, missing = absent[0], f"{len(absent):,} of {len(lines):,} images are missing in {folder}"
        raise BadInput(f"list {path}, line {first.number} names {first.path!r}: {missing}")
    unlabelled = [line for line in lines if line.label is None]
    if unlabelled and len(unlabelled) < len(lines):
        raise BadInput(f"list {path}, line {unlabelled[0].number}: it has no label, but other lines have")
    parents = [image.parent.name for image in paths]
    if unlabelled:
        classes, positions = np.unique(parents, return_inverse=True)
        return FileSource(positions.astype(np.int64), tuple(classes.tolist()), paths)
    labels = np.array([line.label for line in lines], np.int64)
    return FileSource(labels, _class_names(labels.tolist(), parents), paths)


def _class_names(labels: list[int], parents: list[str]) -> tuple[str, ...]:
    """Return the folders as class names if each label has a single folder of its own."""
    pairs = sorted(set(zip(labels, parents, strict=True)))
    names = tuple(name for _, name in pairs)
    known = [label for label, _ in pairs] == list(range(len(pairs))) and len(set(names)) == len(names)
    return names if known else ()


def image_list(*lists: str) -> Layout:
    """Return OpenOOD's layout: list files beside folders of images."""

    def folders(place: Path) -> tuple[Path, ...]:
        root = place.parents[2]
        return tuple(filter(Path.is_dir, (root / "images_classic", root / "images_largescale")))

    return Layout(
        "OpenOOD list",
        tuple(f"benchmark_imglist/{name}.txt" for name in lists),
        lambda place: read_listed_images(place, folders(place)),
        lambda place: place.is_file() and bool(folders(place)),
    )


def shipped_list(chosen: str, archive: str, *folders: str) -> tuple[Layout, Layout]:
    """Return the layouts of the images of a package's list: in a folder, or in a zip archive."""
    read = partial(_read_selection, chosen)
    return (
        Layout("folder, shipped list", folders, read, Path.is_dir),
        Layout("zip, shipped list", (archive,), read),
    )


def read_shipped_list(name: str) -> list[str]:
    """Return the file names in a list of the package."""
    return (resources.files("opencil.data") / "lists" / f"{name}.txt").read_text(encoding="utf-8").split()


def _read_selection(chosen: str, place: Path) -> FileSource:
    present: dict[str, Any]
    if place.is_dir():
        present = {path.name: path for path in find_images(place)}
    else:
        try:
            archive = zipfile.ZipFile(place)  # it locks itself between threads
        except (OSError, zipfile.BadZipFile) as error:
            raise BadInput(f"archive {place} cannot be read: {error}") from None
        members = [m.filename for m in archive.infolist() if m.file_size <= LARGEST_FILE]
        root = zipfile.Path(archive)
        present = {PurePosixPath(member).name: root / member for member in members}
    names = read_shipped_list(chosen)
    if absent := [name for name in names if name not in present]:
        raise BadInput(f"{place} has no {absent[0]!r}: {len(absent):,} of {len(names):,} images are missing")
    return FileSource(np.zeros(len(names), np.int64), (place.stem,), [present[name] for name in names])
