"""What a folder of runs holds: how far each run is, what is wrong with its files, and what could go."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opencil._version import __version__
from opencil.atomic_files import is_temporary
from opencil.errors import OpenCILError
from opencil.locks import Held, Lock, seems_held
from opencil.plugins import missing, told
from opencil.runs import file_formats
from opencil.runs.reading import expected_steps
from opencil.runs.store import DATA, ENVIRONMENT, RunFolder, StepFolder, find_runs
from opencil.runs.verifying import verify
from opencil.seals import Damaged
from opencil.study.records import name_of

State = Literal["finished", "unfinished", "waiting", "failed", "running", "damaged"]


@dataclass(frozen=True)
class Entry:
    """A stored run: how far it is and why no farther, its bytes, and when it was last written."""

    folder: RunFolder
    state: State
    detail: str
    size: int
    written: float  #: seconds since 1970
    foreign: bool = False  #: its models were trained elsewhere


@dataclass(frozen=True)
class Remark:
    """Something about a run that is not as it should be, or could be known better."""

    path: Path
    problem: str
    bad: bool  #: something is wrong; else it is good to know


@dataclass(frozen=True)
class Leftover:
    """A file or folder that can go, and why: nothing is lost that cannot be computed again."""

    path: Path
    why: str

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(found.st_size for found in _file_states(self.path))

    def remove(self) -> None:
        """Delete it."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def entry(folder: RunFolder) -> Entry:
    """How far a run is, by a look at its names and small files; nothing large is read."""
    state, detail, config = _state(folder)
    states = list(_file_states(folder.path.resolve()))  # a run may be linked to
    written = max((found.st_mtime for found in states), default=folder.path.stat().st_mtime)
    size = sum(found.st_size for found in states)
    return Entry(folder, state, detail, size, written, bool(config.get("foreign")))


def _state(folder: RunFolder) -> tuple[State, str, dict[str, Any]]:
    config: dict[str, Any] = {}
    try:
        config, trained = folder.stored(), folder.trained()
        steps = trained[0].info()["steps"] if trained else expected_steps(config)
    except OpenCILError as error:
        # The whole sentence, with what to do, is for who checks.
        problem, bracket, _ = str(error).replace(f"{folder.path}{os.sep}", "").partition("): ")
        return "damaged", f"{problem})" if bracket else problem.partition(": ")[0], config
    of = f" of {steps}" if steps else ""
    so_far = f"{len(trained)}{of} steps"
    if is_held(folder):
        return "running", so_far, config
    lacking = [name for name in config.get("detector", {}) if _lacks(trained, name)]
    if len(trained) == steps and not lacking:
        return "finished", so_far, config
    if failed := folder.failed():
        return "failed", f"{so_far}: {failed}", config
    if not trained and not any(folder.path.glob("step*/*.safetensors")):
        return "waiting", "nothing is done yet", config
    if len(trained) == steps:
        return "unfinished", f"{so_far}, rows missing of {', '.join(lacking)}", config
    return "unfinished", f"{so_far}, at step {len(trained) + 1}", config


def _lacks(trained: list[StepFolder], detector: str) -> bool:
    return any(not step.detector_rows(detector).exists() for step in trained)


def is_held(folder: RunFolder) -> bool:
    """Whether a process is writing the run."""
    try:
        return seems_held(folder.lock().path)
    except OSError:  # of a disk that is read-only, where nobody writes
        return False


@contextmanager
def held(folder: RunFolder) -> Iterator[bool]:
    """Hold a run, so that nobody writes it inside the block; False where somebody does."""
    lock = folder.lock()
    try:
        lock.acquire()
    except Held:
        yield False
        return
    except OSError:  # of a disk that is read-only, where nobody writes
        yield True
        return
    try:
        yield True
    finally:
        lock.release()


# --- what is wrong ---------------------------------------------------------------------------------


def remarks(folder: RunFolder) -> list[Remark]:
    """What is to be said about a run's files, every one of which is read; the run must not be under way."""
    return list(_remarks(folder))


def _remarks(folder: RunFolder) -> Iterator[Remark]:
    unsealed = []
    for finding in verify(folder):
        if finding.state == "unsealed":
            unsealed.append(finding.path)
        else:
            bad = finding.state in ("damaged", "unreadable")
            yield Remark(finding.path, finding.problem, bad)
    if unsealed:
        many = f"{len(unsealed)} files are" if len(unsealed) > 1 else "a file is"
        yield Remark(
            folder.path, f"{many} from before files had checksums: damage shows only in their form", False
        )
    yield from _misplaced(folder)
    yield from _incomplete(folder)
    yield from _unfinished(folder)
    yield from _versions(folder)
    for leftover in _stale(folder):
        if not leftover.path.name.endswith(file_formats.SET_ASIDE):  # that has been said
            yield Remark(leftover.path, f"{leftover.path} {leftover.why}", bad=False)


def _misplaced(folder: RunFolder) -> Iterator[Remark]:
    """A run in the place of another: where its folder's names are those of a run."""
    with suppress(OpenCILError):
        run = name_of(*folder.identity(folder.stored()))
        parts = folder.path.absolute().parts[-4:]
        named = len(parts) == 4 and parts[1].startswith("k") and parts[3].startswith("seed")
        if named and (place := "/".join(parts)) != run:
            yield Remark(folder.path, f"{folder.path} is run {run}, in the place of {place}", bad=True)


def _incomplete(folder: RunFolder) -> Iterator[Remark]:
    """Steps that are missing though they were trained, or that there cannot be."""
    numbers = {step.number: step for step in folder.trained()}
    known = {}
    for number, step in numbers.items():
        with suppress(OpenCILError):
            known[number] = step.info()
    for step in folder.lost():
        path = step.path / "step.json"
        said = f"{path} is missing, though rows or later steps are there: 'opencil run' makes the step again"
        yield Remark(path, said, bad=True)
    if len({info["steps"] for info in known.values()}) > 1:
        yield Remark(folder.path, f"the steps in {folder.path} differ in how many there are", True)
    for number, info in known.items():
        path = numbers[number].path
        earlier = known.get(number - 1, {}).get("weights_sha256")
        if earlier and info.get("before", earlier) != earlier:  # it was not noted once
            said = f"{path} was trained after another model than that of step {number - 1}: one of them is of"
            yield Remark(path, f"{said} another run, or was computed anew with other bits", True)
        if number > info["steps"]:
            yield Remark(path, f"{path} is of no use: there are {info['steps']} steps", True)


def _unfinished(folder: RunFolder) -> Iterator[Remark]:
    """What a run has not come to, or has lost: from its files alone nobody can tell which."""
    state, detail, _ = _state(folder)
    if state in ("unfinished", "failed"):
        yield Remark(folder.path, f"{folder.path} is {state}: {detail}", bad=False)
    for path in (folder.path / name for name in (ENVIRONMENT, DATA) if folder.trained()):
        if not path.exists():
            yield Remark(path, f"{path} is missing: what it noted of the run is not known", bad=False)


def _versions(folder: RunFolder) -> Iterator[Remark]:
    with suppress(OpenCILError):
        config, environment = folder.stored(), folder.record(ENVIRONMENT)
        if _version(environment.get("opencil")) > _version(__version__):
            then = environment["opencil"]
            said = f"{folder.path} was last written by opencil {then}, which is newer than {__version__} here"
            yield Remark(folder.path, said, bad=False)
        if lacking := missing(config.get("plugins")):
            yield Remark(folder.path, f"to go on with {folder.path}: {told(lacking)}", bad=False)


def _version(text: object) -> list[int]:
    return [int(part) for part in str(text).split(".") if part.isdecimal()]


# --- what can go -----------------------------------------------------------------------------------


def leftovers(folder: RunFolder) -> list[Leftover]:
    """What can go of a run: stale files, and damaged ones that 'opencil run' makes again; it must be held.

    Every file is read. A step whose model, memory or notes are damaged goes as a whole, as it is trained
    again as a whole; the steps after it stay. One that was trained elsewhere stays: none here makes it again.
    """
    found = {leftover.path: leftover for leftover in _stale(folder)}
    damaged = [finding.path for finding in verify(folder) if finding.state == "damaged"]
    if folder.config in damaged or not folder.config.exists():
        return list(found.values())  # nobody but the user knows what could be computed again
    foreign = bool(folder.stored().get("foreign"))
    for bad in damaged:
        state = "damaged" if bad.exists() else "missing"
        for path in _goes_with(bad, folder):
            if foreign and path.is_dir():
                continue
            why = f"is {state}" if path == bad else f"goes with {bad.name}, which is {state}"
            found.setdefault(path, Leftover(path, f"{why}: it is computed again"))
    whole = {path for path in found if path.is_dir()}
    return [one for path, one in found.items() if not whole & set(path.parents)]


@contextmanager
def useless_outputs(folder: Path) -> Iterator[list[Leftover]]:
    """What can go of a folder of models' outputs, which nobody writes to inside the block.

    Nothing while somebody holds it, who may be halted, or where it is read-only.
    """
    if not folder.is_dir():
        yield []
        return
    lock = Lock(folder / ".held", timeout=1)
    try:
        lock.acquire()
    except OSError:
        yield []
        return
    try:
        found = []
        for path in sorted(folder.iterdir()):
            if is_temporary(path):
                found.append(Leftover(path, _HALF))
            elif path.suffix == ".safetensors":
                try:
                    file_formats.read_checked(path)
                except Damaged:
                    found.append(Leftover(path, "is damaged: such outputs are computed again"))
        yield found
    finally:
        lock.release()


def _stale(folder: RunFolder) -> Iterator[Leftover]:
    for path in sorted(folder.path.rglob("*")):
        if is_temporary(path):
            yield Leftover(path, _HALF)
        elif path.name.endswith(file_formats.SET_ASIDE):
            yield Leftover(path, "was damaged, and what it was for has been computed again")
    for step in folder.trained():
        if step.checkpoint.exists():
            yield Leftover(step.checkpoint, "is a checkpoint of a training that is done")
        for checkpoint in sorted((step.path / "heads").glob("*.checkpoint.safetensors")):
            if step.head(checkpoint.name.removesuffix(".checkpoint.safetensors")).exists():
                yield Leftover(checkpoint, "is a checkpoint of a tuning that is done")


_HALF = "is half-written: its writer was stopped"
#: Files of a step that are made again by themselves.
_ALONE = ("checkpoint.safetensors", "accuracy.parquet")


def _goes_with(path: Path, folder: RunFolder) -> list[Path]:
    """What has to go for a damaged file to be computed again; nothing where nothing has to."""
    if path.parent == folder.path or path.parent.name == "detectors" or path.name.endswith(_ALONE):
        return [path] if path.exists() else []
    step = StepFolder(path.parent)
    if path.parent.name == "heads":  # rows are made with their head
        rows = StepFolder(path.parents[1]).detector_rows(path.stem)
        return [path, *([rows] if rows.exists() else [])]
    if path == step.model and path.exists():
        try:
            file_formats.read_checked(path, str(step.info().get("weights_sha256")))
            return []  # what it refers to is damaged, in another step, and comes back as it was
        except OpenCILError:
            pass
    return [step.path]


def _file_states(path: Path) -> Iterator[os.stat_result]:
    """What the system knows of a file, or of all below a folder."""
    for file in path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]:
        with suppress(OSError):  # gone meanwhile
            if file.is_file():
                yield file.lstat()


def age(written: float) -> str:
    """How long ago something was, in words."""
    seconds = max(0.0, time.time() - written)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"


def runs_below(*roots: Path) -> list[RunFolder]:
    """The runs at or below some folders, each once; folders of runs that were only begun are among them."""
    return list(dict.fromkeys(run for root in roots for run in find_runs(root)))
