"""Images named by a list: OpenOOD's ``benchmark_imglist``, a user's own list, or a list of the package."""

import zipfile
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np

from opencil.data.readers.folders import find_images, list_folder
from opencil.data.readers.source import LARGEST_FILE, FileSource, Layout, no_parts
from opencil.errors import BadInput


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
    # Not splitlines(): it also splits at some characters that are allowed in a file name.
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
    """Read the images that a list names, below the first of the folders that has them.

    Labels are the list's; a list without labels takes the images' own folders as classes.
    """
    lines = read_list(path)
    folder = next((f for f in folders if (f / lines[0].path).is_file()), folders[0])
    paths = [folder / line.path for line in lines]
    present = {parent: list_folder(parent)[1] for parent in {p.parent for p in paths} if parent.is_dir()}
    absent = [line for line, p in zip(lines, paths, strict=True) if p.name not in present.get(p.parent, ())]
    if absent:
        raise BadInput(
            f"list {path}, line {absent[0].number} names {absent[0].path!r}, which is not in {folder}: "
            f"{len(absent):,} of its {len(lines):,} images are missing"
        )
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
        Layout("folder, shipped list", folders, read, Path.is_dir, no_parts),
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
        raise BadInput(
            f"{place} has no {absent[0]!r}: {len(absent):,} of the {len(names):,} images are missing"
        )
    return FileSource(np.zeros(len(names), np.int64), (place.stem,), [present[name] for name in names])
