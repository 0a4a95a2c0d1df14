"""``opencil runs``: list stored runs, check their files, clean up what is stale or damaged."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opencil.cli import completion
from opencil.cli.completion import one_of
from opencil.cli.guard import guarded, problems, say
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:  # imported where they are used, so that --help answers at once
    from opencil.runs.inventory import Leftover
    from opencil.runs.store import RunFolder

app = typer.Typer(
    help="Look after stored runs: list them, check their files, clean up.", no_args_is_help=True
)

Folders = Annotated[
    list[Path] | None,
    typer.Argument(help="Folders of runs, or single runs.", show_default="runs", metavar="FOLDER"),
]
_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "damaged": "red"}
_GOOD, _NOTE, _BAD = ("✓", "green"), ("!", "yellow"), ("✗", "red")


@app.command("list", epilog="Example: opencil runs list runs/digits")
@guarded
def list_runs(folders: Folders = None) -> None:
    """List stored runs: how far each is, its size, and when it was last written.

    A run is finished, unfinished, waiting (nothing is done yet), running (a
    process holds it), failed (error.txt in its folder says more), or damaged
    (what says how far it is cannot be used; 'opencil runs check' reads all).
    """
    from opencil.disk import size_in_words
    from opencil.runs.inventory import age, entry

    screen, total = Console(highlight=False), 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("run", "state", "so far"):
        table.add_column(heading, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("written", no_wrap=True)
    found, counts = _runs(folders), dict[str, int]()
    with _status() as status:
        for number, folder in enumerate(found, start=1):
            status(f"{number} of {len(found)}: {folder.path}")
            run = entry(folder)
            counts[run.state] = counts.get(run.state, 0) + 1
            total += run.size
            so_far = f"{run.detail}, of models from elsewhere" if run.foreign else run.detail
            table.add_row(
                Text(str(folder.path)),
                Text(run.state, style=_STYLES.get(run.state, "")),
                Text(so_far),
                size_in_words(run.size),
                age(run.written),
            )
    wide = Console(width=10_000).measure(table).maximum  # a pipe or a file has no width to keep to
    (screen if screen.is_terminal else Console(width=max(wide, screen.width))).print(table)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    many = f"{len(found)} run{'s' * (len(found) > 1)}"
    screen.print(f"{many} ({states}), {size_in_words(total)}", markup=False)


@app.command(epilog="Example: opencil runs check runs; opencil runs check runs/digits/k2/icarl/seed0 --deep")
@guarded
def check(
    folders: Folders = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Train one step of one run again, and compare all bits.")
    ] = False,
    step: Annotated[
        int | None, typer.Option(help="Step that --deep trains.", min=1, show_default="the last", metavar="N")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device that --deep trains on.",
            show_default="the kind that made the run",
            metavar="NAME",
            autocompletion=one_of(completion.devices),
        ),
    ] = None,
    data_root: Annotated[
        str | None,
        typer.Option(help="Folder of your downloads, for --deep.", envvar="OPENCIL_DATA", metavar="DIR"),
    ] = None,
) -> None:
    """Read every file of stored runs: is something damaged, missing, in a wrong place?

    Nothing is changed. Lines with ! are good to know; with ✗ something is
    wrong. Runs that are being written are left out.

    Exit code 0: nothing is wrong. 1: something is.

    --deep trains a step again, from the stored step before it, beside the run.
    Where the same bits cannot be expected (another device, version of torch …),
    it says why, and a difference is no failure.
    """
    if not deep and (step is not None or device is not None):
        raise BadInput("--step and --device have no use without --deep")
    found = _runs(folders)
    if deep and len(found) > 1:
        raise BadInput(
            f"--deep trains a step of one run, and there are {len(found)}: name one, as {found[0].path}"
        )
    screen = Console(highlight=False)
    bad = _checked(screen, found)
    if bad:
        raise OpenCILError(
            f"something is wrong with {bad} of {len(found)} runs, see above: 'opencil runs clean' removes "
            "what can be computed again, and 'opencil run' computes it"
        )
    if deep:
        _check_deeply(screen, found[0].path, step, device, data_root)


def _checked(screen: Console, found: "list[RunFolder]") -> int:
    """Check some runs, with a line for each; with how many something is wrong."""
    from opencil.runs.inventory import is_held, remarks

    bad = busy = 0
    for number, folder in enumerate(found, start=1):
        with _status() as status:
            status(f"{number} of {len(found)}: {folder.path}")
            free = not is_held(folder)
            notes = remarks(folder) if free else []
        wrong = any(remark.bad for remark in notes)
        bad, busy = bad + wrong, busy + (not free)
        mark = _BAD if wrong else _NOTE if notes or not free else _GOOD
        _line(screen, mark, str(folder.path) + ("" if free else ": it is being written, and left out"))
        for remark in sorted(notes, key=lambda remark: not remark.bad):
            _line(screen, _BAD if remark.bad else _NOTE, remark.problem, indent=4)
    if not bad:
        looked = len(found) - busy
        left = f", {busy} left out" if busy else ""
        screen.print(f"nothing is wrong: {looked} run{'s' * (looked != 1)} checked{left}", markup=False)
    return bad


def _check_deeply(
    screen: Console, path: Path, step: int | None, device: str | None, data_root: str | None
) -> None:
    from opencil.cli.opening import duration
    from opencil.cli.progress import progress
    from opencil.runs.again import place_for, trial

    with _status() as status:
        status("reading the run and its data")
        one = trial(path, place_for(path, device, data_root), step)
    for doubt in one.doubts:
        say(f"the same bits cannot be expected: {doubt}")
    started = time.monotonic()
    with progress(screen, 1) as show:
        training = one.carry_out()
        while True:
            try:
                show(next(training))
            except StopIteration as end:
                again = end.value
                break
    what = f"step {again.step} of {path}, trained again in {duration(time.monotonic() - started)}"
    if not again.differences:
        _line(screen, _GOOD, f"{what}: model, memory and accuracies have the same bits")
        return
    _line(screen, _NOTE if one.doubts else _BAD, f"{what}: it differs from what is stored")
    for difference in again.differences[:_FEW]:
        _line(screen, (" ", ""), difference, indent=4)
    if len(again.differences) > _FEW:
        _line(screen, (" ", ""), f"and {len(again.differences) - _FEW} more", indent=4)
    if not one.doubts:
        raise OpenCILError(f"step {again.step} of {path} does not come out as it is stored")


_FEW = 5  # differences that are told one by one


@app.command(epilog="Example: opencil runs clean runs, and then with --yes")
@guarded
def clean(
    folders: Folders = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what would go.")] = False,
) -> None:
    """Say what is stale, or damaged and computed again; with --yes, delete it.

    Stale are half-written files, checkpoints of steps and heads that are done,
    and damaged files that were set aside.

    Of damaged files, those go that 'opencil run' computes again: rows, a head
    with its rows, or a whole step, not the steps after it. A run that is being
    written is left alone, and so is a config.yml.
    """
    from opencil.disk import size_in_words
    from opencil.runs.inventory import held, leftovers, useless_outputs

    screen, found = Console(highlight=False), _runs(folders)
    total = count = 0
    for number, folder in enumerate(found, start=1):
        with held(folder) as free:
            if not free:
                _line(screen, _NOTE, f"{folder.path}: it is being written, and left alone")
                continue
            with _status() as status:
                status(f"{number} of {len(found)}: {folder.path}")
                going = leftovers(folder)
            total, count = total + _removed(screen, going, yes), count + len(going)
    for root in folders or [Path("runs")]:
        with useless_outputs(root / ".outputs") as going:
            total, count = total + _removed(screen, going, yes), count + len(going)
    if not count:
        screen.print(f"nothing to clean up in {len(found)} run{'s' * (len(found) > 1)}", markup=False)
    elif yes:
        screen.print(f"{count} deleted, {size_in_words(total)}", markup=False)
    else:
        screen.print(f"{count} would go, {size_in_words(total)}: --yes deletes them", markup=False)


def _removed(screen: Console, going: "list[Leftover]", yes: bool) -> int:
    """Name what goes, and delete it if that is wanted; its bytes."""
    from opencil.disk import size_in_words

    total = 0
    for leftover in going:
        size = leftover.size
        if yes:
            leftover.remove()
        _line(screen, (" ", ""), f"{leftover.path} ({size_in_words(size)}) {leftover.why}", indent=0)
        total += size
    return total


def _runs(folders: list[Path] | None) -> "list[RunFolder]":
    from opencil.runs.inventory import runs_below

    roots = folders or [Path("runs")]
    if found := runs_below(*roots):
        return found
    raise BadInput(f"there are no runs below {', '.join(map(str, roots))}: 'opencil run' makes some")


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is looked at just now; elsewhere nothing."""
    with problems.status("") as status:
        yield lambda text: status.update(Text(text))


def _line(screen: Console, mark: tuple[str, str], text: str, indent: int = 0) -> None:
    screen.print(Text.assemble(" " * indent, mark, f" {text}"), soft_wrap=True)
