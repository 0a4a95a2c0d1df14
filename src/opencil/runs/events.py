"""Events of runs, and the errors of failed runs: as a sentence, and in ``error.txt`` with a traceback."""

import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from opencil.engine.arithmetic import refused_operation
from opencil.engine.loop import Progress
from opencil.errors import OpenCILError
from opencil.files import find_disk_error, write_text
from opencil.runs.features import Computing
from opencil.runs.spec import RunSpec
from opencil.runs.store import LockedRun, RunFolder

#: Packages to leave out of the traceback for the user.
_MACHINERY = {
    *("opencil", "torch", "triton", "numpy", "pandas", "pyarrow", "sklearn", "safetensors"),
    *sys.stdlib_module_names,
}


@dataclass(frozen=True)
class Event:
    """Something happened in a run."""

    run: RunSpec


@dataclass(frozen=True)
class Preparing(Event):
    """More features are stored, which the run reads."""

    progress: Computing


@dataclass(frozen=True)
class Training(Event):
    """One more training iteration of a step is done."""

    step: int
    steps: int
    progress: Progress


@dataclass(frozen=True)
class Trained(Event):
    """A step's model is stored; ``values`` are its metrics on the test images of all classes seen."""

    step: int
    steps: int
    values: dict[str, float]


@dataclass(frozen=True)
class Evaluated(Event):
    """A detector's rows of a step are stored; ``values`` are means of metrics over its OOD sets."""

    step: int
    steps: int
    detector: str
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished(Event):
    """A run is complete; ``already``: nothing was left to do."""

    already: bool


@dataclass(frozen=True)
class Failed(Event):
    """A run stopped with an error; what it had stored stays, and other runs go on."""

    error: OpenCILError
    own_code: str = ""  #: traceback of an unexpected error, from the user's own code on


@dataclass(frozen=True)
class Lost(Event):
    """The worker of a run has ended; another worker resumes the run from where it is stored."""

    reason: str


class Unexpected(OpenCILError):
    """An unexpected error in a sentence; its cause is the error itself."""


def in_words(error: Exception) -> str:
    """Return an error as part of a sentence, with the type of an unexpected error."""
    if operation := refused_operation(error):
        return f"torch cannot compute {operation} deterministically: leave this out, or --deterministic"
    return str(error) if isinstance(error, OpenCILError) else f"{type(error).__name__}: {error}"


def find_unexpected(*errors: Exception) -> Exception | None:
    """Return the first unexpected error among some errors and their causes."""
    for error in errors:
        cause = error.__cause__ if isinstance(error, Unexpected) else error
        ours = isinstance(cause, OpenCILError) or refused_operation(cause)
        if isinstance(cause, Exception) and not ours:
            return cause
    return None


def describe_failures(problems: Mapping[str, tuple[int, Exception]]) -> OpenCILError:
    """Return the error of a run with detectors without rows, with the step and reason for each."""
    reasons: dict[str, list[str]] = {}
    for name, (step, error) in problems.items():
        reasons.setdefault(f"step {step}: {in_words(error)}", []).append(name)
    text = "; ".join(f"{', '.join(names)} has no rows: {why}" for why, names in reasons.items())
    return _describe(text, find_unexpected(*(error for _, error in problems.values())))


def failed(spec: RunSpec, folder: RunFolder, error: Exception) -> Failed:
    """Return the event of a failed run, and write the error into the run's folder."""
    error = find_disk_error(error, folder.path) or error
    cause, text = find_unexpected(error), in_words(error)
    trace = "" if cause is None else "".join(traceback.format_exception(cause))
    if folder.writes and not isinstance(error, LockedRun):
        with suppress(OSError, OpenCILError):  # a full disk may be the reason
            write_text(folder.error, f"{text}\n{trace}")
    if cause is None:
        return Failed(spec, error if isinstance(error, OpenCILError) else OpenCILError(text))
    place = cause.__traceback__
    while place and str(place.tb_frame.f_globals.get("__name__")).partition(".")[0] in _MACHINERY:
        place = place.tb_next
    own_code = "".join(traceback.format_exception(type(cause), cause, place)) if place else ""
    return Failed(spec, _describe(f"{text} (traceback: {folder.error})", cause), own_code)


def _describe(text: str, cause: Exception | None) -> OpenCILError:
    error = OpenCILError(text) if cause is None else Unexpected(text)
    error.__cause__ = cause
    return error
