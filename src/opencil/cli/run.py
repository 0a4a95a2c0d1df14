"""``opencil run``."""

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from opencil.cli.flags import takes_config
from opencil.cli.guard import interrupts, problems, say, tell
from opencil.cli.opening import dry_run_table, opening
from opencil.cli.progress import progress
from opencil.cli.report import show
from opencil.errors import OpenCILError
from opencil.runs.starting import start_ahead

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    from opencil.config import Config
    from opencil.runs.plan import RunSpec

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would run and what is done; run and write nothing.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show nothing but problems: no progress, no tables.")
]
Only = Annotated[
    str | None,
    typer.Option(
        help="One of M shares of the runs: 1/3, 2/3 and 3/3 on three machines do all, and none twice.",
        metavar="N/M",
        show_default="all",
    ),
]


def _expect_workers(flags: dict[str, Any]) -> None:
    """Start workers now, where there will be some, so that they import while this process does.

    That is a guess from flags, as a config takes seconds to make: those that it has no use for are let go.
    """
    from opencil.data.decoding import workers_here

    jobs = flags["jobs"] or "1"
    count = workers_here() if jobs == "auto" else int(jobs) if jobs.isdecimal() else 1
    here = flags["launcher"] in (None, "local") and flags["device"] in (None, "auto", "cpu")
    if count > 1 and here and not flags["dry_run"] and "torch" not in sys.modules:
        start_ahead(min(count, workers_here()))  # more than there are cores would keep each other waiting


@partial(takes_config, first=_expect_workers)
def run(config: "Config", only: Only = None, dry_run: DryRun = False, quiet: Quiet = False) -> None:
    """Train, evaluate and store whatever of a config is not done yet; then show the table.

    Started again, it goes on where it stopped; a finished run answers at once.
    """
    from opencil.runs.shares import planned_share

    carry_out(config, planned_share(only), dry_run, quiet)


def carry_out(
    config: "Config",
    planned: Callable[["Config"], "list[RunSpec]"],
    dry_run: bool = False,
    quiet: bool = False,
) -> None:
    """Do what a config's runs still lack, showing how it goes; then show what they have come to."""
    from opencil.engine.ranks import follows
    from opencil.plugins import outdated
    from opencil.report.tables import summaries
    from opencil.report.top import Top, shortened
    from opencil.runs.events import Failed, Lost
    from opencil.runs.failures import traceback_of_own_code
    from opencil.runs.outlook import outlook
    from opencil.runs.reading import study_so_far
    from opencil.runs.runner import execute
    from opencil.runs.tensorboard import training_curves

    failures: list[Failed] = []

    def troubled(event: Failed | Lost) -> None:
        if isinstance(event, Lost):
            say(f"{event.reason}; run {event.run} is taken up by another")
            return
        failures.append(event)
        if own := traceback_of_own_code(event.error):
            problems.print(own, markup=False, end="")
        tell(f"run {event.run} stopped: {event.error}")

    if follows():  # rank 0 shows what all of them do, and tells of an interruption
        try:
            # Where there is nothing to run, rank 0 says so and leaves: it is not to be waited for.
            for _ in () if dry_run or not planned(config) else execute(config, planned):
                interrupts.take_back()
        except (KeyboardInterrupt, OpenCILError):
            if interrupts.seen:
                raise SystemExit(interrupts.exit_code) from None
            raise
        return
    screen, ahead, runs = Console(), outlook(config, planned), config.place.runs
    if not ahead.runs:
        say("there is nothing to run: the shares are more than the runs, and this one has none")
        return
    alike: dict[str, list[str]] = {}
    grids = dict.fromkeys(
        (run.spec.cil, run.spec.classes_per_step) for run in ahead.runs if run.spec.cil in config.cil
    )
    for method, k in grids:
        for reason, detectors in config.left_out(method, k).items():
            every_k = all(reason in config.left_out(method, one) for one in config.benchmark.classes_per_step)
            which = method if every_k else f"{method} (k = {k})"
            named = alike.setdefault(f"without {', '.join(detectors)}: {reason}", [])
            named += [which] if which not in named else []
    for goes_without, methods in alike.items():
        say(f"{', '.join(methods)} {'goes' if len(methods) == 1 else 'go'} {goes_without}")
    if dry_run:
        screen.print(opening(ahead, runs), dry_run_table(ahead), sep="\n", markup=False, highlight=False)
        return
    if not quiet:
        say(opening(ahead, runs))
    shown = progress(screen, len(ahead.runs), quiet, troubled)
    # Whoever is interrupted leaves the runs at once, checkpointed, and not when Python gets round to it.
    events = closing(execute(config, planned))
    with training_curves(config.place.tensorboard) as write, shown as advance, events as happening:
        for event in happening:
            interrupts.take_back()
            if interrupts.seen:  # and a run has failed of it, or nobody has noticed
                raise KeyboardInterrupt
            advance(event)
            write(event)
    study = study_so_far([Path(runs) / run.spec.folder for run in ahead.runs], config.detector)
    if not quiet and not study.rows.empty:
        show(screen, shortened(summaries(study), study.rows, Top()))
    for sentence in [*outdated(study.runs), *study.problems]:
        say(sentence)
    if failures:
        raise OpenCILError(
            f"{len(failures)} of {len(ahead.runs)} runs failed; what they had finished is stored in {runs}"
        )
    if not quiet:
        screen.print(f"runs are stored in {runs}", markup=False, highlight=False)
