"""Whether the files of a run are as they were written and where they belong."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

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


def readers(folder: RunFolder) -> Iterator[tuple[Path, Callable[[], object]]]:
    """The files that a run stores, each with what reads it and raises where it is damaged or misplaced.

    What should be there and is not has a reader too. A step whose notes are damaged has that of the notes.
    """
    config: dict[str, Any] = {}
    run = None
    yield folder.config, lambda: folder.identity(folder.stored())
    with suppress(OpenCILError):
        config = folder.stored()
        run = folder.identity(config)
    for name in (ENVIRONMENT, DATA):
        if _there(folder.path / name):
            yield folder.path / name, partial(folder.record, name, run)
    for step in folder.steps():
        if os.access(step.path, os.R_OK | os.X_OK):
            yield from _of_step(step, run, config)
        else:
            yield step.path, partial(_refuse, step.path)


def _findings(folder: RunFolder) -> Iterator[Finding]:
    for path, read in readers(folder):
        try:
            read()
            if read_sealed(path, file_formats.damaged)[1] is None:
                yield Finding(path, "unsealed", f"{path} is from before files had checksums")
        except OpenCILError as error:
            yield Finding(path, "unreadable" if isinstance(error, DiskError) else "damaged", str(error))
    for path in sorted(folder.path.rglob(f"*{file_formats.SET_ASIDE}")):
        yield Finding(path, "set aside", f"{path} was damaged, and what it was for has been computed again")


def _refuse(path: Path) -> None:
    raise DiskError(f"{path} cannot be looked into: its permissions do not allow it")


def _of_step(
    step: StepFolder, run: Identity | None, config: dict[str, Any]
) -> Iterator[tuple[Path, Callable[[], object]]]:
    heads = sorted((step.path / "heads").glob("*.safetensors"))
    middles = [path for path in heads if path.name.endswith(".checkpoint.safetensors")]
    for path in (step.checkpoint, *middles):
        if _there(path):  # whoever goes on from it looks what it is of
            yield path, partial(file_formats.read_checked, path)
    if not _there(step.path / "step.json"):
        return
    yield step.path / "step.json", partial(step.info, run, config)
    try:
        info = step.info(run, config)
    except OpenCILError:
        return
    model = str(info.get("weights_sha256"))
    yield step.model, partial(step.weights, model)
    # Rows are measured with a head: where a detector has one in any step, its rows say that it had one here.
    anywhere = step.path.parent.glob("step*/heads/*.safetensors")
    tuned = {path.stem for path in anywhere if not path.name.endswith(".checkpoint.safetensors")}
    used = {step.head(name) for name in tuned if step.detector_rows(name).exists()}
    for path in sorted(used.union(heads).difference(middles)):
        yield path, partial(step.head_tensors, path.stem, model)
    yield step.memory_file, partial(step.memory, 0, info.get("memory_sha256"))
    for table in step.placed(step.tables(), run, info):
        yield table.path, partial(measured_metrics, table, file_formats.damaged)


def _there(path: Path) -> bool:
    """Whether anything lies in a place: a link that leads nowhere is not nothing."""
    return path.exists() or path.is_symlink()
