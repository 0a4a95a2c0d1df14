"""What is kept of a run that fails: a sentence, and of an error that nobody foresaw its whole traceback."""

import sys
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType

from opencil.atomic_files import write_text
from opencil.disk import trouble_of_disk
from opencil.engine.determinism import refused_operation
from opencil.errors import BadInput, OpenCILError
from opencil.runs.events import Failed
from opencil.runs.plan import RunSpec
from opencil.runs.store import RunFolder

#: What computes for us: an error in it is shown from the code that called it.
_MACHINERY = {"opencil", "torch", "triton", "numpy", "pandas", "pyarrow", "sklearn", "safetensors"}


class Unforeseen(OpenCILError):
    """An error that nobody foresaw, in a sentence; its cause is the error itself."""

    own_code = ""  #: of one from another process, which has no cause here: its traceback_of_own_code


def in_words(error: Exception) -> str:
    """An error as part of a sentence: one that is not ours is named."""
    if operation := refused_operation(error):
        return (
            f"torch has no deterministic implementation of {operation} on this device: leave this method "
            "out, or --deterministic"
        )
    return str(error) if isinstance(error, OpenCILError) else f"{type(error).__name__}: {error}"


def unforeseen(errors: Iterable[Exception]) -> Exception | None:
    """The first of some errors that nobody foresaw, or that one of them was raised for."""
    for error in errors:
        cause = error.__cause__ if isinstance(error, Unforeseen) else error
        ours = isinstance(cause, OpenCILError) or refused_operation(cause)
        if isinstance(cause, Exception) and not ours:
            return cause
    return None


def without_rows(problems: Mapping[str, tuple[int, Exception]]) -> OpenCILError:
    """The error of a run some of whose detectors have no rows: for each, the step and what went wrong."""
    reasons: dict[str, list[str]] = {}
    for name, (step, error) in problems.items():
        reasons.setdefault(f"step {step}: {in_words(error)}", []).append(name)
    told = "; ".join(f"{', '.join(names)} has no rows: {why}" for why, names in reasons.items())
    cause = unforeseen(error for _, error in problems.values())
    return OpenCILError(told) if cause is None else _unforeseen(told, cause)


def failed(spec: RunSpec, folder: RunFolder, error: Exception, held: bool = True) -> Failed:
    """The event of a run that an error has ended, which is left in its folder.

    Of an unforeseen one that is the traceback; of others their sentence, if the run was ``held``: else it may
    be another process's.
    """
    error = trouble_of_disk(error, folder.path) or error
    if refused_operation(error) and not isinstance(error, OpenCILError):
        error = OpenCILError(f"{spec.cil}: {in_words(error)}")
    cause = unforeseen([error])
    text = f"{error}\n" if cause is None else "".join(traceback.format_exception(cause))
    if held or cause is not None:
        with suppress(OSError, OpenCILError):  # a full disk may be what has ended it
            write_text(folder.error, text, follow=False)
    if cause is None:
        assert isinstance(error, OpenCILError)
        return Failed(spec, error)
    where = f" (traceback: {folder.error})" if folder.error.exists() else ""
    return Failed(spec, _unforeseen(f"{in_words(error)}{where}", cause))


def traceback_of_own_code(error: OpenCILError) -> str:
    """The traceback from the first place on that is neither ours nor a library's; empty where none is."""
    cause = unforeseen([error])
    if cause is None:
        return error.own_code if isinstance(error, Unforeseen) else ""
    place = cause.__traceback__
    while place and _machinery(place):
        place = place.tb_next
    return "".join(traceback.format_exception(type(cause), cause, place)) if place else ""


def portable(error: OpenCILError) -> OpenCILError:
    """An error for another process: its kind and words, and of an unforeseen one the traceback, as text."""
    if isinstance(error, Unforeseen):
        told = Unforeseen(str(error))
        told.own_code = traceback_of_own_code(error)
        return told
    return BadInput(str(error)) if isinstance(error, BadInput) else OpenCILError(str(error))


def _machinery(place: TracebackType) -> bool:
    room = str(place.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return room in _MACHINERY or room in sys.stdlib_module_names


def _unforeseen(text: str, cause: Exception) -> Unforeseen:
    error = Unforeseen(text)
    error.__cause__ = cause
    return error
