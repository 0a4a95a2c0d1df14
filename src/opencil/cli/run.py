"""``opencil run`` and ``opencil config``: carry out a config, or print it."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opencil.cli.flags import takes_config
from opencil.cli.guard import interrupts
from opencil.cli.options import option, switch
from opencil.cli.progress import progress
from opencil.cli.report import show
from opencil.cli.screen import borderless_table, print_error, print_line, print_note, problems
from opencil.errors import OpenCILError

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    from opencil.config import Config
    from opencil.runs.outlook import Outlook
    from opencil.runs.spec import RunSpec

_FEW = 6  # names that a line has room for
DRY_RUN = switch("--dry-run", "Say what would run and what is done; run and write nothing.")
QUIET = option(None, "Show nothing but problems: no progress, no tables.", False, "--quiet", "-q")
ONLY = option("N/M", "One of M shares of the runs: each run is in one.", show_default="all")


@takes_config
def show_config(config: "Config") -> None:
    """Print one YML with every value that 'opencil run' with the same flags will use."""
    typer.echo(config.to_yaml(), nl=False)


@takes_config
def run(config: "Config", only: str | None = ONLY, dry_run: bool = DRY_RUN, quiet: bool = QUIET) -> None:
    """Train, evaluate and store what of a config is not done yet; then show the table.

    Called again, it resumes where it stopped; a finished run answers at once.
    """
    from opencil.runs.spec import plan_share

    carry_out(config, plan_share(only), dry_run, quiet)


def carry_out(
    config: "Config", planned: Callable[["Config"], "list[RunSpec]"], dry_run: bool, quiet: bool
) -> None:
    """Do the missing work of a config's runs, showing progress; then show the tables."""
    from opencil.engine.ranks import is_first_rank
    from opencil.plugins import describe_changed
    from opencil.report.order import Top
    from opencil.report.tables import summaries
    from opencil.report.writing import shorten_tables
    from opencil.runs.events import Failed, Lost
    from opencil.runs.launch import execute
    from opencil.runs.outlook import outlook
    from opencil.runs.reading import study_so_far
    from opencil.runs.tensorboard import training_curves

    failures: list[Failed] = []

    def troubled(event: Failed | Lost) -> None:
        if isinstance(event, Lost):
            print_note(f"{event.reason}; run {event.run} is taken up by another worker")
            return
        failures.append(event)
        problems.print(event.own_code, markup=False, end="")
        print_error(f"run {event.run} stopped: {event.error}")

    if not is_first_rank():  # rank 0 shows what all of them do
        try:
            # Where there is nothing to run, rank 0 says so and leaves: it is not to be waited for.
            for _ in () if dry_run or not planned(config) else execute(config, planned):
                pass
        except (KeyboardInterrupt, OpenCILError):
            if interrupts.seen:
                raise SystemExit(interrupts.exit_code) from None
            raise
        return
    screen, ahead, runs = Console(), outlook(config, planned), config.place.runs
    if not ahead.runs:
        print_note("there is nothing to run: the shares are more than the runs, and this one has none")
        return
    _print_skipped(config, [run.spec for run in ahead.runs if run.spec.cil in config.cil])
    if dry_run:
        print_line(opening(ahead, runs))
        screen.print(dry_run_table(ahead))
        return
    if not quiet:
        print_note(opening(ahead, runs))
    shown = progress(screen, len(ahead.runs), quiet, troubled)
    events = closing(execute(config, planned))  # an interrupt checkpoints the runs at once
    with training_curves(config.place.tensorboard) as write, shown as advance, events as happening:
        for event in happening:
            if interrupts.seen:  # native code swallowed the exception, or a run failed of it
                raise KeyboardInterrupt
            advance(event)
            write(event)
    study = study_so_far([Path(runs) / run.spec.folder for run in ahead.runs], config.detector)
    if not quiet and not study.rows.empty:
        show(screen, shorten_tables(summaries(study), study, Top()))
    for sentence in [*describe_changed(study.runs), *study.problems]:
        print_note(sentence)
    if failures:
        failed = f"{len(failures)} of {len(ahead.runs)} runs failed"
        raise OpenCILError(f"{failed}; finished work is stored in {runs}")
    if not quiet:
        print_line(f"runs are stored in {runs}")


def _print_skipped(config: "Config", specs: "list[RunSpec]") -> None:
    """Print the detectors left out, with the methods and the reason."""
    skipped: dict[str, list[str]] = {}
    for spec in specs:
        for reason, detectors in config.left_out(spec.cil, spec.classes_per_step).items():
            methods = skipped.setdefault(f"without {', '.join(detectors)}: {reason}", [])
            methods += [spec.cil] if spec.cil not in methods else []
    for without, methods in skipped.items():
        print_note(f"{', '.join(methods)} {'goes' if len(methods) == 1 else 'go'} {without}")


def opening(outlook: "Outlook", folder: str) -> str:
    """Describe the runs: their number, how many are done, device, folder, and an estimate of the time."""
    from opencil.engine.ranks import world_size  # torch

    count, specs = len(outlook.runs), [run.spec for run in outlook.runs]
    done = {0: "", count: ", all done"}.get(outlook.done, f", {outlook.done} done")
    cil = _several([spec.cil for spec in specs], "CIL methods")
    k = _several([str(spec.classes_per_step) for spec in specs], "of them")
    seeds = _several([str(spec.seeds.run) for spec in specs], "of them")
    plural = "s" * (seeds != str(specs[0].seeds.run))
    parts = [
        f"{cil} on {specs[0].benchmark.name} (k = {k}; seed{plural} {seeds})",
        _several([name for spec in specs for name in spec.detectors], "detectors"),
        f"on {outlook.device}",
        f"{outlook.at_once} runs at a time" * (outlook.at_once > 1),
        f"on {world_size()} ranks together" * (world_size() > 1),
        f"stored in {folder}",
        f"about {duration(outlook.seconds)}, as like runs took" if outlook.seconds else "",
    ]
    return f"{count} run{'s' * (count > 1)}{done}: {'; '.join(filter(None, parts))}"


def dry_run_table(outlook: "Outlook") -> Table:
    """Return a table of the runs: work done and work to do."""
    table = borderless_table("run", "so far", "to do")
    for run in outlook.runs:
        steps, todo = "all steps" if run.steps is None else f"steps {run.trained + 1} to {run.steps}", []
        if run.steps is None or run.trained < run.steps:
            todo.append(f"{steps} with {_several(list(run.spec.detectors), 'detectors') or 'no detectors'}")
        if run.lacking:
            todo.append(f"{_several(list(run.lacking), 'detectors')} on trained steps")
        took = f", about {duration(run.seconds)}" if run.seconds else ""
        so_far = f"{run.trained} of {run.steps or '?'} steps" if run.trained else "nothing"
        to_do = "nothing" if run.done else ("; ".join(todo) or "further metrics") + took
        table.add_row(*map(Text, (str(run.spec), "done" if run.done else so_far, to_do)))
    return table


def _several(names: list[str], what: str) -> str:
    """Return names, each once, or how many there are."""
    names = list(dict.fromkeys(names))
    return ", ".join(names) if len(names) <= _FEW else f"{len(names)} {what}"


def duration(seconds: float) -> str:
    """Return seconds as people say them, to two digits or so."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
