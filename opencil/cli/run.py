"""``opencil run``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from opencil.cli.flags import takes_config
from opencil.cli.guard import interrupts, problems, tell
from opencil.cli.progress import progress
from opencil.cli.report import show
from opencil.errors import OpenCILError

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    from opencil.config import Config
    from opencil.runs.plan import RunSpec


@takes_config
def run(config: "Config") -> None:
    """Train, evaluate and store whatever of a config is not done yet; then show the table.

    Started again, it goes on where it stopped; a finished run answers at once.
    """
    from opencil.runs.plan import plan

    for method in config.cil:
        if left_out := sorted(set(config.detector) - set(config.detectors_of(method))):
            problems.print(
                f"{method} goes without {', '.join(left_out)}: it sees no images of old classes again, "
                "and they draw on them",
                highlight=False,
            )
    carry_out(config, plan)


def carry_out(config: "Config", planned: Callable[["Config"], "list[RunSpec]"]) -> None:
    """Do what a config's runs still lack, showing how it goes; then show what they have come to."""
    from opencil.plugins import changed
    from opencil.report.tables import summaries
    from opencil.runs.events import Failed
    from opencil.runs.failures import traceback_of_own_code
    from opencil.runs.reading import study_so_far
    from opencil.runs.runner import execute
    from opencil.runs.tensorboard import training_curves

    screen, failures, specs = Console(), 0, planned(config)
    with training_curves(config.place.tensorboard) as write, progress(screen, len(specs)) as advance:
        for event in execute(config, planned):
            if interrupts.seen:  # and a run has failed of it, or nobody has noticed
                raise KeyboardInterrupt
            advance(event)
            write(event)
            if isinstance(event, Failed):
                failures += 1
                if own := traceback_of_own_code(event.error):
                    problems.print(own, markup=False, end="")
                tell(f"run {event.run} stopped: {event.error}")
    folders = [Path(config.place.runs) / spec.folder for spec in specs]
    study = study_so_far(folders, config.detector)
    if not study.rows.empty:
        show(screen, summaries(study))
    for plugin, makers in changed(study.runs).items():
        problems.print(
            f"{plugin} has changed since rows of {', '.join(makers)} were made, and they are kept: for "
            "new ones delete a detector's files in step*/detectors and step*/heads, or a model's run",
            markup=False,
        )
    screen.print(f"runs are stored in {config.place.runs}", highlight=False)
    if failures:
        raise OpenCILError(f"{failures} of {len(folders)} runs failed; what they had finished is stored")
