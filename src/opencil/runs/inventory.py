"""Check the files of stored runs: progress, damage, and leftovers."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opencil.errors import OpenCILError
from opencil.files import find_temporary, read_checked
from opencil.plugins import describe_missing
from opencil.runs.reading import expected_steps, note_damage, place_name, read_records
from opencil.runs.store import RunFolder
from opencil.study.records import name_of

State = Literal["finished", "unfinished", "waiting", "failed", "running", "damaged"]


@dataclass(frozen=True)
class Entry:
    """A stored run: its progress, its bytes, and when it was last written."""

    state: State
    detail: str
    size: int
    written: float  #: seconds since 1970


def entry(folder: RunFolder) -> Entry:
    """Return how far a run is; only small files are read."""
    states = list(_file_states(folder.path.resolve()))  # a run may be linked to
    written = max((found.st_mtime for found in states), default=0.0)
    return Entry(*_state(folder), sum(found.st_size for found in states), written)


def _state(folder: RunFolder) -> tuple[State, str]:
    try:
        config, infos = folder.stored(), [step.info() for step in folder.trained()]
        steps = infos[0]["steps"] if infos else expected_steps(config)
    except OpenCILError as error:
        return "damaged", getattr(error, "reason", str(error))
    elsewhere = ", of models from elsewhere" if config.get("foreign") else ""
    so_far = f"{len(infos)}{f' of {steps}' if steps else ''} steps{elsewhere}"
    if folder.locked:
        return "running", so_far
    lacking = [name for name in config.get("detector", {}) if any(name not in info["rows"] for info in infos)]
    if len(infos) == steps and not lacking:
        return "finished", so_far
    if failure := folder.failure():
        return "failed", f"{so_far}: {failure}"
    if not infos and not any(folder.path.glob("step*/*")):
        return "waiting", "nothing is done yet"
    where = f"rows missing of {', '.join(lacking)}" if len(infos) == steps else f"at step {len(infos) + 1}"
    return "unfinished", f"{so_far}, {where}"


# --- damage ----------------------------------------------------------------------------------------


def check_files(folder: RunFolder) -> tuple[list[str], list[str]]:
    """Read all files of a run that no process writes; return sentences on damage, and other remarks."""
    wrong, remarks = [f"{path} {problem}" for path, problem in damages(folder).items()], []
    state, detail = _state(folder)
    if state in ("unfinished", "failed"):
        remarks.append(f"{folder.path} is {state}: {detail}")
    if state != "damaged":
        config = folder.stored()
        run, place = name_of(*folder.identity(config)), place_name(folder.path.absolute())
        if place not in ("", run):
            wrong.append(f"{folder.path} is run {run}, in the place of {place}")
        if hint := describe_missing(config.get("plugins", {})):
            remarks.append(f"to continue {folder.path}: {hint}")
    return wrong, [*remarks, *(f"{path} {why}" for path, why in _stale(folder))]


def damages(folder: RunFolder) -> dict[Path, str]:
    """Read all files of a run; return damaged, missing and misplaced files with the problem."""
    found: dict[Path, str] = {}
    with note_damage(found, folder.config):
        steps, _, wrong = read_records(folder, folder.stored())
        found |= wrong
        for step, name in [(step, name) for step, info in steps.items() for name in info["files"]]:
            with note_damage(found, step.path / name):
                step.read(name, steps[step])
        for checkpoint in folder.path.glob("step*/**/*checkpoint"):
            with note_damage(found, checkpoint):
                read_checked(checkpoint)
    return found


# --- leftovers -------------------------------------------------------------------------------------


def leftovers(folder: RunFolder) -> dict[Path, str]:
    """Return the files and folders to delete in a locked run, each with the reason.

    They are stale, or damaged and computed again by 'opencil run'. A step whose record, model or memory is
    damaged goes as a whole, unless its model was trained elsewhere.
    """
    found, broken = dict(_stale(folder)), damages(folder)
    if folder.config in broken:  # it is not computed again
        return found
    foreign = folder.stored().get("foreign")
    for path, problem in broken.items():
        if path.name in ("step.json", "model.safetensors", "memory.safetensors"):
            if not foreign:
                found[path.parent] = f"{path.name} {problem}: the step is computed again"
        elif path.exists():
            found[path] = f"{problem}: it is computed again"
    return {path: why for path, why in found.items() if not found.keys() & set(path.parents)}


def _stale(folder: RunFolder) -> Iterator[tuple[Path, str]]:
    for path in find_temporary(folder.path):
        yield path, "is half-written: its writer was stopped"
    for step in folder.trained():
        heads = [head.with_suffix(".checkpoint") for head in sorted(step.path.glob("heads/*.safetensors"))]
        for checkpoint in filter(Path.exists, [step.checkpoint(), *heads]):
            yield checkpoint, "is a checkpoint of a training that is done"


def measure_size(path: Path) -> int:
    """Return the number of bytes of a file, or of all files below a folder."""
    return sum(found.st_size for found in _file_states(path))


def remove(path: Path) -> None:
    """Delete a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _file_states(path: Path) -> Iterator[os.stat_result]:
    """Yield the state of a file, or of all files below a folder."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(OSError):  # deleted in the meantime
            if file.is_file():
                yield file.lstat()
