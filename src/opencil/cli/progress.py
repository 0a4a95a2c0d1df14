"""Events of runs as they happen: bars on a terminal, lines in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from opencil.cli.guard import problems

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.runs.events import Event, Failed, Lost

_LINES = 30.0  #: seconds between lines about progress, in a log file


@contextmanager
def progress(
    screen: Console, runs: int, quiet: bool = False, troubled: Callable[["Failed | Lost"], None] | None = None
) -> Iterator[Callable[["Event"], None]]:
    """A function that shows events: bars on a terminal, which are gone at the end, or lines elsewhere.

    Neither where it is to be ``quiet``; but ``troubled`` is called with every run that fails or is lost.
    """
    from opencil.runs.events import Evaluated, Failed, Finished, Lost, Training

    drawn = screen.is_terminal or screen.is_jupyter
    with _Bars(screen, runs, drawn and not quiet) as bars:
        shares: dict[str, float] = {}  # of each run that is done; packed runs advance together
        places: dict[str, str] = {}  # where each run is that is under way
        losses: dict[tuple[str, str], str] = {}  # of each run's stages, as last read
        measured: dict[tuple[str, int], int] = {}  # detectors of each run's steps
        first = due = time.monotonic() + _LINES

        def show(event: "Event") -> None:
            nonlocal due
            name, now = str(event.run), time.monotonic()
            ended = isinstance(event, (Finished, Failed))
            if ended:
                # What a failed run did not do is not done.
                share, where = float(isinstance(event, Finished)), type(event).__name__.lower()
                bars.end(name)
            elif isinstance(event, Evaluated):
                step = f"step {event.step}/{event.steps}"
                share, where = event.step / event.steps, f"{step} · {event.detector}"
                measured[name, event.step] = measured.get((name, event.step), 0) + 1
                part = measured[name, event.step] / max(1, len(event.run.detectors))
                bars.show(name, event.step, f"{step} · evaluation", part, event.detector)
                # Fewer come where some were there already, or failed: then the next step's end this one.
                bars.end(name, before=event.step + (part == 1))
            elif isinstance(event, Training):
                p, step = event.progress, f"step {event.step}/{event.steps}"
                completed = (p.epoch - 1 + p.iteration / p.iterations) / p.epochs
                share = (event.step - 1 + completed) / event.steps
                if not event.run.detectors:  # nothing comes after it
                    bars.end(name, before=event.step)
                if p.epoch == 1:
                    losses.pop((name, p.stage), None)
                if p.iteration == p.iterations:  # reading the loss waits for the device: once an epoch
                    losses[name, p.stage] = f"loss {float(p.loss):.3f}"
                loss = losses.get((name, p.stage), "")
                where = " · ".join(filter(None, (step, f"{p.stage} {p.epoch}/{p.epochs}", loss)))
                bars.show(name, event.step, f"{step} · {p.stage}", completed, loss)
            else:
                if troubled and isinstance(event, Lost):
                    bars.end(name)
                    with bars.aside():
                        troubled(event)
                return
            shares[name] = max(shares.get(name, 0.0), share)  # a step's later stages begin again at 0
            places[name] = where
            bars.all(sum(shares.values()))
            if not (drawn or quiet) and now >= (first if ended else due):
                due = now + _LINES
                told = [name] if ended else places
                done = f"{100 * sum(shares.values()) / runs:.0f} % of all runs"
                texts = [time.strftime("%H:%M:%S"), done, *(f"{run} · {places[run]}" for run in told)]
                problems.print(" · ".join(texts), markup=False)
            if ended:
                del places[name]
            if troubled and isinstance(event, Failed):
                with bars.aside():
                    troubled(event)

        yield show


class _Narrow(Progress):
    """Bars that leave room for the ^C that a terminal shows: on a line of its own it would push them up."""

    def get_renderable(self) -> RenderableType:
        """The bars, narrower than the screen."""
        return _Inset(super().get_renderable())


class _Inset:
    """Something drawn narrower than there is room, with no blanks behind it."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        yield from screen.render(self.inner, options.update(width=options.max_width - 3))


class _Bars:
    """A bar for all runs and one for each that is under way: of what it is a part of is what it is called."""

    def __init__(self, screen: Console, runs: int, drawn: bool) -> None:
        self._bars = _Narrow(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[note]}", markup=False),
            console=screen,
            disable=not drawn,
            transient=True,
        )
        self._whole = self._bars.add_task(f"all {runs} runs" if runs > 1 else "the run", total=runs, note="")
        self._parts: dict[tuple[str, int], tuple[TaskID, str]] = {}

    def __enter__(self) -> "_Bars":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Off the screen inside the block: what is printed there would run into them."""
        self._bars.stop()
        yield
        self._bars.start()

    def all(self, done: float) -> None:
        """So many runs are done, in all."""
        self._bars.update(self._whole, completed=done)

    def show(self, run: str, step: int, part: str, done: float, note: str) -> None:
        """So much of a part of a step is done; one may be evaluated beside the training of the next."""
        label = f"{run.partition('/')[2]} · {part}"  # all are of one benchmark
        if (run, step) not in self._parts:
            self._parts[run, step] = self._bars.add_task(label, total=1.0, note=note), label
        task, before = self._parts[run, step]
        if label != before:  # its pace says nothing of the next part's
            self._bars.reset(task, description=label, total=1.0, note=note)
            self._parts[run, step] = task, label
        self._bars.update(task, completed=done, note=note)

    def end(self, run: str, before: int | None = None) -> None:
        """Steps before one, or a whole run, are under way no more."""
        for key in [k for k in self._parts if k[0] == run and (before is None or k[1] < before)]:
            self._bars.remove_task(self._parts.pop(key)[0])
