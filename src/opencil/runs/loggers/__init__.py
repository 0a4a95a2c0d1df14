"""Log runs: losses by epoch, accuracies and AUCs by step, from the events of runs alone.

A logger is a module here, named as in ``place.log``. Its ``connect(place)`` returns a function that opens the
``Log`` of a run; a missing package is refused there, before anything runs.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Protocol

from opencil.config import PlaceConfig
from opencil.errors import BadInput, OpenCILError
from opencil.runs.events import Evaluated, Event, Failed, Finished, Trained, Training
from opencil.runs.spec import RunSpec


class Log(Protocol):
    """The log of one run."""

    def write(self, values: dict[str, float], axis: str, at: int) -> None:
        """Write values at a place of an axis: at an epoch of a stage, or at a step."""

    def close(self, failed: bool) -> None:
        """End the log."""


def read_values(event: Event) -> tuple[dict[str, float], str, int]:
    """Return what an event measures, with its axis and place; the loss is read where an epoch ends."""
    if isinstance(event, Training) and event.progress.epoch_ends:
        p, where = event.progress, f"step{event.step:02d}/{event.progress.stage}"
        return {f"{where}/loss": p.mean_loss, f"{where}/learning rate": p.lr}, "epoch", p.epoch
    return (event.values, "step", event.step) if isinstance(event, Trained | Evaluated) else ({}, "", 0)


@contextmanager
def logging(place: PlaceConfig) -> Iterator[Callable[[Event], None]]:
    """Yield a function that writes events to all loggers of a place; a resumed run adds to its log."""
    modules = {name: import_module(f"{__name__}.{name}") for name in place.loggers}
    openers: dict[str, Callable[[RunSpec], Log]] = {n: module.connect(place) for n, module in modules.items()}
    logs: dict[str, dict[str, Log]] = {}

    def write(event: Event) -> None:
        run, (values, axis, at) = str(event.run), read_values(event)
        if values and run not in logs:
            logs[run] = {}
            for name, opened in openers.items():
                try:
                    logs[run][name] = opened(event.run)
                except Exception as error:  # of another library: a server that does not answer, a wrong key
                    raise OpenCILError(f"{name} cannot log {run}: {error}") from error
        ends = isinstance(event, Finished | Failed)
        for name, log in list(logs.get(run, {}).items()):
            try:
                if ends:
                    log.close(isinstance(event, Failed))
                elif values:
                    log.write(values, axis, at)
            except Exception as error:  # a run is worth more than its log
                warnings.warn(f"{name} logs no more of {run}: {error}", stacklevel=2)
                del logs[run][name]
        if ends:
            logs.pop(run, None)

    try:
        yield write
    finally:
        for log in [log for of_run in logs.values() for log in of_run.values()]:
            log.close(True)


def identify(place: PlaceConfig, spec: RunSpec) -> str:
    """Return the name by which a resumed run finds its log: other folders have other runs of its name."""
    return hashlib.sha256(str(Path(place.runs).absolute() / spec.folder).encode()).hexdigest()[:16]


def missing_package(name: str) -> BadInput:
    """Return the error for a logger whose package is not installed."""
    return BadInput(f"the logger {name} needs a package: pip install 'opencil[{name}]'")
