"""``opencil runs``: list stored runs, check their files, clean up stale or damaged files."""

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from opencil.cli.flags import DATA_ROOT, PLUGIN, RUNS, Plugins, switch
from opencil.cli.progress import progress
from opencil.cli.screen import borderless_table, print_line, print_note, print_table, problems
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:  # imported where they are used, so that --help answers at once
    from opencil.runs.store import RunFolder

app = typer.Typer(
    help="Look after stored runs: list them, check their files, clean up.", no_args_is_help=True
)

_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "damaged": "red"}
_FEW = 5  # differences that are shown


@app.command("list", epilog="Example: opencil runs list runs/digits")
def list_runs(folders: list[Path] = RUNS, _plugin: Plugins = PLUGIN) -> None:
    """List stored runs: how far each is, its size, and when it was last written.

    A run is finished, unfinished, waiting (nothing is done yet), running (a process writes it), failed
    (error.txt in its folder says more), or damaged ('opencil runs check' reads all files).
    """
    from opencil.files import size_in_words
    from opencil.runs.inventory import entry

    table, total, counts = borderless_table("run", "state", "so far", "size", "written"), 0, Counter[str]()
    for folder in _runs(folders):
        run = entry(folder)
        counts[run.state] += 1
        total += run.size
        state, size = Text(run.state, style=_STYLES.get(run.state, "")), size_in_words(run.size)
        date = f"{datetime.fromtimestamp(run.written):%Y-%m-%d %H:%M}"
        table.add_row(Text(str(folder.path)), state, Text(run.detail), size, date)
    print_table(table)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    print_line(f"{_count(counts.total())} ({states}), {size_in_words(total)}")


@app.command(epilog="Example: opencil runs check runs; opencil runs check runs/digits/k2/icarl/seed0 --deep")
def check(
    folders: list[Path] = RUNS,
    deep: bool = switch("--deep", "Train the last step of one run again, and compare all bits."),
    data_root: str | None = DATA_ROOT,
    _plugin: Plugins = PLUGIN,
) -> None:
    """Read every file of stored runs, and name damaged, missing and misplaced ones.

    Nothing is changed, and runs that are being written are left out. Lines with ! are good to know; with ✗
    something is wrong. Exit code 0: nothing is wrong. 1: something is.

    --deep trains a step from the stored step before it, beside the run. Where the same bits cannot be
    expected (another device, version of torch …), it says why, and a difference is no failure.
    """
    from opencil.runs.inventory import check_files

    found, bad, busy = _runs(folders), 0, 0
    if deep and len(found) > 1:
        raise BadInput(f"--deep trains a step of one run, and there are {len(found)}: name one of them")
    for folder in found:
        if folder.locked:
            busy += 1
            print_line(f"{folder.path}: it is being written, and left out", "note")
            continue
        with problems.status(Text(str(folder.path))):
            wrong, remarks = check_files(folder)
        bad += bool(wrong)
        print_line(str(folder.path), "bad" if wrong else "note" if remarks else "good")
        for mark, lines in (("bad", wrong), ("note", remarks)):
            for line in lines:
                print_line(line, mark, indent=4)
    if bad:
        hint = "'opencil runs clean' and 'opencil run' repair what can be computed again"
        raise OpenCILError(f"something is wrong with {bad} of {len(found)} runs: {hint}")
    left = f", {busy} left out" if busy else ""
    print_line(f"nothing is wrong: {_count(len(found) - busy)} checked{left}")
    if deep:
        _check_deeply(found[0].path, data_root)


def _check_deeply(path: Path, data_root: str | None) -> None:
    """Train a step again, and compare it with the stored one."""
    from opencil.runs.again import plan_trial

    with problems.status("reading the run and its data"):
        trial = plan_trial(path, data_root)
    for doubt in trial.doubts:
        print_note(f"the same bits cannot be expected: {doubt}")
    with progress(problems, 1) as show:
        for event in trial.carry_out():
            show(event)
    again = f"step {trial.number} of {path}, trained again"
    if not trial.differences:
        print_line(f"{again}: model and memory have the same bits", "good")
        return
    print_line(f"{again}: it differs from what is stored", "note" if trial.doubts else "bad")
    for difference in trial.differences[:_FEW]:
        print_line(difference, indent=6)
    if not trial.doubts:
        raise OpenCILError(f"step {trial.number} of {path} differs from what is stored")


@app.command(epilog="Example: opencil runs clean runs, and then with --yes")
def clean(
    folders: list[Path] = RUNS,
    yes: bool = switch("--yes", "Delete; without it, only say what would go."),
    failed: bool = switch("--failed", "Also whole runs that failed, with the steps that they have finished."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Name stale files, and damaged ones that can be computed again; with --yes, delete them.

    Stale are half-written files, and checkpoints of steps and heads that are done. Of damaged files, those go
    that 'opencil run' computes again: rows, a head, or a whole step, not the steps after it. A run that is
    being written is left alone, and so is a config.yml.
    """
    from opencil.files import size_in_words
    from opencil.runs.inventory import entry, leftovers, measure_size, remove
    from opencil.runs.store import LockedRun

    found, sizes = _runs(folders), list[int]()
    for folder in found:
        state = entry(folder)  # before it is locked: a locked run is running
        whole = {folder.path: f"failed, {state.detail}"} if failed and state.state == "failed" else None
        try:
            with folder.lock():
                for path, why in (whole or leftovers(folder)).items():
                    sizes.append(measure_size(path))
                    print_line(f"{path} ({size_in_words(sizes[-1])}) {why}", indent=2)
                    if yes and not whole:
                        remove(path)
                    elif yes:
                        folder.clear()
            if whole and yes:
                remove(folder.path)  # with its lock, which is released
        except LockedRun:
            print_line(f"{folder.path}: it is being written, and left alone", "note")
    if not sizes:
        print_line(f"nothing to clean up in {_count(len(found))}")
        return
    done, hint = ("deleted", "") if yes else ("would go", ": --yes deletes them")
    print_line(f"{len(sizes)} {done}, {size_in_words(sum(sizes))}{hint}")


def _runs(folders: list[Path]) -> "list[RunFolder]":
    from opencil.runs.store import find_runs

    if found := dict.fromkeys(run for folder in folders for run in find_runs(folder)):
        return list(found)
    raise BadInput(f"there are no runs below {', '.join(map(str, folders))}: 'opencil run' makes some")


def _count(runs: int) -> str:
    return f"{runs} run{'s' * (runs != 1)}"
