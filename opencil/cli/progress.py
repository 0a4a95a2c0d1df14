"""Events of runs as they happen: bars on a terminal, lines in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from opencil.cli.guard import problems

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.runs.events import Event

_LINES = 30.0  #: seconds between lines about progress, in a log file


@contextmanager
def progress(screen: Console, runs: int) -> Iterator[Callable[["Event"], None]]:
    """A function that shows events: two bars (all runs, this step), or lines if the output is no terminal."""
    from opencil.runs.events import Evaluated, Failed, Finished, Training

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
    )
    drawn = screen.is_terminal or screen.is_jupyter
    with Progress(*columns, TimeRemainingColumn(), console=screen, disable=not drawn) as bars:
        whole, part = bars.add_task("all runs", total=runs), bars.add_task("")
        shares: dict[str, float] = {}  # of each run that is done; packed runs advance together
        places: dict[str, str] = {}  # where each run is that is under way
        losses: dict[tuple[str, str], str] = {}  # of each run's stages, as last read
        first = due = time.monotonic() + _LINES

        def show(event: "Event") -> None:
            nonlocal due
            name, now = str(event.run), time.monotonic()
            completed = 1.0
            if isinstance(event, (Finished, Failed)):
                # What a failed run did not do is not done.
                share, where = float(isinstance(event, Finished)), type(event).__name__.lower()
            elif isinstance(event, Evaluated):
                share, where = event.step / event.steps, f"step {event.step}/{event.steps} · {event.detector}"
            elif isinstance(event, Training):
                p = event.progress
                completed = (p.epoch - 1 + p.iteration / p.iterations) / p.epochs
                share = (event.step - 1 + completed) / event.steps
                if p.epoch == 1:
                    losses.pop((name, p.stage), None)
                if p.iteration == p.iterations:  # reading the loss waits for the device: once an epoch
                    losses[name, p.stage] = f" · loss {float(p.loss):.3f}"
                where = f"step {event.step}/{event.steps} · {p.stage} {p.epoch}/{p.epochs}"
                where += losses.get((name, p.stage), "")
            else:
                return
            shares[name] = max(shares.get(name, 0.0), share)  # a step's later stages begin again at 0
            places[name] = where
            bars.update(part, description=where, completed=completed, total=1)
            bars.update(whole, description=name, completed=sum(shares.values()))
            ended = isinstance(event, (Finished, Failed))
            if not drawn and now >= (first if ended else due):
                due = now + _LINES
                told = [name] if ended else places
                done = f"{100 * sum(shares.values()) / runs:.0f} % of all runs"
                texts = [time.strftime("%H:%M:%S"), done, *(f"{run} · {places[run]}" for run in told)]
                problems.print(" · ".join(texts), markup=False)
            if ended:
                del places[name]

        yield show
