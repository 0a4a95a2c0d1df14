"""Show events of runs as they happen: bars on a terminal, lines in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TimeRemainingColumn

from opencil.cli.screen import problems

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.runs.events import Event

_LINES = 30.0  #: seconds between lines about progress, in a log file


@contextmanager
def progress(screen: Console, runs: int, quiet: bool = False) -> Iterator[Callable[["Event"], None]]:
    """Yield a function to show events: a bar for each run on a terminal, lines elsewhere, none if quiet."""
    from opencil.runs.events import Evaluated, Finished, Preparing, Trained, Training

    drawn = screen.is_terminal or screen.is_jupyter
    columns = "{task.description}", BarColumn(bar_width=20), "{task.percentage:>3.0f}%", TimeRemainingColumn()
    place, disable = "{task.fields[place]}", quiet or not drawn
    bars = Progress(*columns, "left", place, console=screen, disable=disable, transient=True)
    whole = bars.add_task(f"all {runs} runs", total=runs, place="", visible=runs > 1)
    tasks: dict[str, TaskID] = {}
    shares: dict[str, float] = {}  # the part of each run that is done
    places: dict[str, str] = {}  # the place in each unfinished run
    losses: dict[tuple[str, int, str], str] = {}  # the last loss of each run's stages
    first = due = time.monotonic() + _LINES

    def show(event: "Event") -> None:
        nonlocal due
        name, now, ended = str(event.run), time.monotonic(), False
        if isinstance(event, Training):
            p = event.progress
            share = (event.step - 1 + (p.epoch - 1 + p.iteration / p.iterations) / p.epochs) / event.steps
            stage = name, event.step, p.stage
            if p.iteration == p.iterations:  # reading the loss waits for the device: once an epoch
                losses[stage] = f" · loss {float(p.loss):.3f}"
            place = f"step {event.step}/{event.steps} · {p.stage} {p.epoch}/{p.epochs}{losses.get(stage, '')}"
        elif isinstance(event, Trained | Evaluated):
            doing = event.detector if isinstance(event, Evaluated) else "trained"
            share, place = event.step / event.steps, f"step {event.step}/{event.steps} · {doing}"
        elif isinstance(event, Preparing):
            share, place = 0.0, str(event.progress)
        else:
            share, place, ended = float(isinstance(event, Finished)), type(event).__name__.lower(), True
        share = shares[name] = max(shares.get(name, 0.0), share)  # a step's later stages begin again at 0
        places[name] = place
        if name not in tasks:
            tasks[name] = bars.add_task(name.partition("/")[2], total=1.0, place="")  # all of one benchmark
        bars.update(tasks[name], completed=share, place=place)
        bars.update(whole, completed=sum(shares.values()))
        if not (drawn or quiet) and now >= (first if ended else due):
            due = now + _LINES
            done = f"{100 * sum(shares.values()) / runs:.0f} % of all runs"
            rest = [f"{run} · {places[run]}" for run in ([name] if ended else places)]
            problems.print(" · ".join([time.strftime("%H:%M:%S"), done, *rest]), markup=False)
        if ended:
            bars.remove_task(tasks.pop(name))
            del places[name]

    with bars:
        yield show
