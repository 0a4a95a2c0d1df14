"""Check the files of stored runs: progress, damage, and leftovers."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opencil.errors import OpenCILError
from opencil.files import find_temporary, read_checked
from opencil.plugins import describe_missing, missing_names
from opencil.runs.reading import describe_damage, expected_steps, place_name, read_records
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
    foreign: bool  #: its models were trained elsewhere


def entry(folder: RunFolder) -> Entry:
    """Return how far a run is; only small files are read."""
    state, detail, config = _state(folder)
    states = list(_file_states(folder.path.resolve()))  # a run may be linked to
    written = max((found.st_mtime for found in states), default=folder.path.stat().st_mtime)
    size = sum(found.st_size for found in states)
    return Entry(state, detail, size, written, bool(config.get("foreign")))


def _state(folder: RunFolder) -> tuple[State, str, dict[str, Any]]:
    config: dict[str, Any] = {}
    try:
        config = folder.stored()
        infos = [step.info() for step in folder.trained()]
        steps = infos[0]["steps"] if infos else expected_steps(config)
    except OpenCILError as error:
        return "damaged", getattr(error, "reason", str(error)), config
    so_far = f"{len(infos)}{f' of {steps}' if steps else ''} steps"
    if folder.locked:
        return "running", so_far, config
    lacking = [name for name in config.get("detector", {}) if any(name not in info["rows"] for info in infos)]
    if len(infos) == steps and not lacking:
        return "finished", so_far, config
    if failure := folder.failure():
        return "failed", f"{so_far}: {failure}", config
    if not infos and not any(folder.path.glob("step*/*")):
        return "waiting", "nothing is done yet", config
    where = f"rows missing of {', '.join(lacking)}" if len(infos) == steps else f"at step {len(infos) + 1}"
    return "unfinished", f"{so_far}, {where}", config


# --- damage ----------------------------------------------------------------------------------------


def check_files(folder: RunFolder) -> tuple[list[str], list[str]]:
    """Read all files of a run that no process writes; return sentences on damage, and other remarks."""
    wrong, remarks = [f"{path} {problem}" for path, problem in damages(folder).items()], []
    state, detail, config = _state(folder)
    if state in ("unfinished", "failed"):
        remarks.append(f"{folder.path} is {state}: {detail}")
    if state != "damaged":
        run, place = name_of(*folder.identity(config)), place_name(folder.path.absolute())
        if place not in ("", run):
            wrong.append(f"{folder.path} is run {run}, in the place of {place}")
        if lacking := missing_names(config.get("plugins")):
            remarks.append(f"to continue {folder.path}: {describe_missing(lacking)}")
    return wrong, [*remarks, *(f"{path} {why}" for path, why in _stale(folder))]


def damages(folder: RunFolder) -> dict[Path, str]:
    """Read all files of a run; return damaged, missing and misplaced files with the problem."""
    try:
        steps, _, found = read_records(folder, folder.stored())
    except (OpenCILError, OSError) as error:
        return {folder.config: describe_damage(error)}
    for step, name in [(step, name) for step, info in steps.items() for name in info["files"]]:
        try:
            step.read(name, steps[step])
        except (OpenCILError, OSError) as error:
            found[step.path / name] = describe_damage(error)
    for step in folder.steps():
        for checkpoint in (step.checkpoint(), *step.path.glob("heads/*.checkpoint")):
            try:
                if checkpoint.exists():
                    read_checked(checkpoint)
            except (OpenCILError, OSError) as error:
                found[checkpoint] = describe_damage(error)
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
        if step.checkpoint().exists():
            yield step.checkpoint(), "is a checkpoint of a training that is done"
        for checkpoint in sorted(step.path.glob("heads/*.checkpoint")):
            if checkpoint.with_suffix(".safetensors").exists():
                yield checkpoint, "is a checkpoint of a tuning that is done"


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


def age(written: float) -> str:
    """Return how long ago a time was, in words."""
    seconds = max(0.0, time.time() - written)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"
