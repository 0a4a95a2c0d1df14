"""Whether the files of a run are as they were written and where they belong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from opencil.disk import DiskError
from opencil.errors import OpenCILError
from opencil.runs import file_formats
from opencil.runs.store import DATA, ENVIRONMENT, RunFolder, StepFolder
from opencil.seals import read_sealed
from opencil.study.records import Identity
from opencil.study.rows import measured_metrics


@dataclass(frozen=True)
class Finding:
    """A file of a run that is not as it should be.

    ``damaged``: it cannot be used, and ``problem`` is the sentence that says why and what to do.
    ``unreadable``: a disk or its permissions keep it from being read, and it may be whole.
    ``unsealed``: it is from before files had checksums, so only what its format shows is known of it.
    ``set aside``: it was damaged and has been computed again.
    """

    path: Path
    state: Literal["damaged", "unreadable", "unsealed", "set aside"]
    problem: str


def verify(folder: RunFolder) -> list[Finding]:
    """What is wrong with the files of a run; every one is read, and nothing is changed."""
    return list(_findings(folder))


def _findings(folder: RunFolder) -> Iterator[Finding]:
    config, run = folder.path / "config.yml", None
    if config.exists():
        try:
            run = folder.identity(folder.stored())
        except OpenCILError as error:
            yield _trouble(config, error)
        else:
            yield from _unsealed(config)
    for name in (ENVIRONMENT, DATA):
        yield from _of(folder.path / name, partial(folder.record, name, run))
    for path in sorted(folder.path.glob("step*")):
        yield from _of_step(StepFolder(path), run)
    for path in sorted(folder.path.rglob(f"*{file_formats.SET_ASIDE}")):
        yield Finding(path, "set aside", f"{path} was damaged, and what it was for has been computed again")


def _of_step(step: StepFolder, run: Identity | None) -> Iterator[Finding]:
    tensors = [step.checkpoint, *sorted((step.path / "heads").glob("*.safetensors"))]
    for path in tensors:
        yield from _of(path, partial(file_formats.read_checked, path))
    if not step.trained:
        return
    try:
        info = step.info()
    except OpenCILError as error:
        yield _trouble(step.path / "step.json", error)
        return
    yield from _unsealed(step.path / "step.json")
    yield from _of(step.model, partial(step.weights, str(info.get("weights_sha256"))), needed=True)
    yield from _of(step.memory_file, partial(step.memory, 0, info.get("memory_sha256")), needed=True)
    for table in step.placed(step.tables(), run, info):
        yield from _of(table.path, partial(measured_metrics, table, file_formats.damaged), needed=True)


def _of(path: Path, read: Callable[[], object], *, needed: bool = False) -> Iterator[Finding]:
    if not path.exists() and not needed:
        return
    try:
        read()
    except OpenCILError as error:
        yield _trouble(path, error)
    else:
        yield from _unsealed(path)


def _trouble(path: Path, error: OpenCILError) -> Finding:
    return Finding(path, "unreadable" if isinstance(error, DiskError) else "damaged", str(error))


def _unsealed(path: Path) -> Iterator[Finding]:
    if read_sealed(path, file_formats.damaged)[1] is None:
        yield Finding(path, "unsealed", f"{path} is from before files had checksums")
