"""List files: one image a line, ``path`` or ``path label``, as OpenOOD's ``benchmark_imglist`` has them."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from opencil.data.readers.archives import points_outside
from opencil.data.readers.folders import contents
from opencil.data.readers.source import FileSource, Layout, SplitOnDisk
from opencil.errors import BadInput

_BLANK = " \t\r"
_LABELS = 2**31
#: Bytes of a file's name and of a path, as Linux has them.
_LONGEST_NAME, _LONGEST_PATH = 255, 4000


class Line(NamedTuple):
    """A line of a list file; ``label`` is None where there is none, or −1, which means the same."""

    number: int
    path: str
    label: int | None


def read_list(path: Path) -> list[Line]:
    """The lines of a list file; spaces around a path or a label and empty lines do not count."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"list {path} is not UTF-8 text: {error}") from None
    lines: list[Line] = []
    seen: dict[tuple[str, ...], int] = {}
    # Not splitlines(), to which some characters that a file name may have end a line too.
    for number, content in enumerate(text.split("\n"), 1):
        content = content.strip(_BLANK)
        if not content:
            continue
        cut = max(map(content.rfind, _BLANK)) + 1
        try:
            name, label = content[:cut].strip(_BLANK), int(content[cut:])
        except ValueError:
            name, label = content, -1
        if not name or not -1 <= label < _LABELS:
            raise BadInput(
                f"list {path}, line {number}: {content[:200]!r} is not understood: allowed is a path, then a "
                f"label from 0 to {_LABELS - 1}, or -1 for none"
            )
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if any(len(part.encode()) > _LONGEST_NAME for part in parts) or len(name.encode()) > _LONGEST_PATH:
            raise BadInput(f"list {path}, line {number}: the name {name[:40]!r}… is too long for a file")
        if points_outside(name):
            raise BadInput(f"list {path}, line {number}: {name!r} points outside the folder of images")
        if parts in seen:
            raise BadInput(f"list {path} names {name!r} twice: in lines {seen[parts]} and {number}")
        seen[parts] = number
        lines.append(Line(number, name, None if label == -1 else label))
    if not lines:
        raise BadInput(f"list {path} names no images")
    return lines


def listed_source(path: Path, folders: tuple[Path, ...]) -> FileSource:
    """The images that a list names, below the first of the folders that has them.

    Labels are the list's; where it has none, the images' own folders are the classes.
    """
    lines = read_list(path)
    paths = _present(path, lines, folders)
    unlabelled = [line for line in lines if line.label is None]
    if unlabelled and len(unlabelled) < len(lines):
        raise BadInput(f"list {path}, line {unlabelled[0].number}: it has no label, and other lines have one")
    parents = [image.parent.name for image in paths]
    if unlabelled:
        classes = tuple(sorted(set(parents)))
        position = {name: label for label, name in enumerate(classes)}
        return FileSource(np.array([position[parent] for parent in parents], np.int64), classes, paths)
    labels = np.array([line.label for line in lines], np.int64)
    return FileSource(labels, _class_names(labels.tolist(), parents), paths)


def _present(path: Path, lines: list[Line], folders: tuple[Path, ...]) -> list[Path]:
    """The images' paths; one that is not there is an error. Folders are listed once, not asked per image."""
    folder = next((f for f in folders if (f / lines[0].path).is_file()), folders[0])
    present: dict[str, frozenset[str]] = {}
    paths, absent = [], []
    for line in lines:
        parent, _, name = line.path.replace("\\", "/").rpartition("/")
        if parent not in present:
            where = folder / parent
            present[parent] = frozenset(contents(where)[1]) if where.is_dir() else frozenset()
        if name not in present[parent]:
            absent.append(line)
        paths.append(folder / parent / name)
    if absent:
        more = f", and {len(absent) - 1:,} more of its {len(lines):,}" if len(absent) > 1 else ""
        raise BadInput(
            f"list {path}, line {absent[0].number} names {absent[0].path!r}, which is not in {folder}{more}"
        )
    return paths


def _class_names(labels: list[int], parents: list[str]) -> tuple[str, ...]:
    """The folders of the labels' images where each label has one of its own; else the names are not known."""
    folders = defaultdict(set)
    for label, parent in zip(labels, parents, strict=True):
        folders[label].add(parent)
    names = [folder for label in sorted(folders) for folder in folders[label]]
    known = sorted(folders) == list(range(len(names))) and len(set(names)) == len(names)
    return tuple(names) if known else ()


@dataclass(frozen=True)
class ImageList(Layout):
    """OpenOOD's layout: list files beside folders of images."""

    lists: tuple[str, ...]
    folders: tuple[str, ...] = ("images_classic", "images_largescale")

    @property
    def places(self) -> tuple[str, ...]:
        """The lists it may be."""
        return tuple(f"benchmark_imglist/{name}" for name in self.lists)

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first of the lists, where a folder of images stands beside it."""
        folders = tuple(base / name for name in self.folders if (base / name).is_dir())
        place = next((base / name for name in self.places if (base / name).is_file()), None)
        if not folders or not place:
            return None
        return split_by_list("OpenOOD list", place, folders)


def split_by_list(layout: str, place: Path, folders: tuple[Path, ...]) -> SplitOnDisk:
    """A list of images that lie in the first of the folders that has them."""
    return SplitOnDisk(layout, place, partial(listed_source, place, folders), (place,), separate=True)
