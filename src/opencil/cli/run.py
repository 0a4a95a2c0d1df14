"""``opencil run``, ``evaluate`` and ``config``: carry out a config, on given models too, or print it."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opencil.cli.flags import argument, option, switch, takes_config
from opencil.cli.guard import interrupts
from opencil.cli.progress import progress
from opencil.cli.report import show
from opencil.cli.screen import borderless_table, print_error, print_line, print_note, problems
from opencil.errors import BadInput, OpenCILError, printable, shown

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    from opencil.config import Config
    from opencil.runs.outlook import Outlook
    from opencil.runs.spec import RunSpec

_FEW = 6  # names that a line has room for
DRY_RUN = switch("--dry-run", "Say what would run, what is done, and how long it takes; write nothing.")
QUIET = option(None, "Show nothing but problems: no progress, no tables.", False, "--quiet", "-q")
ONLY = option("N/M", "One of M shares of the runs: each run is in one.", show_default="all")


@takes_config
def show_config(config: "Config") -> None:
    """Print one YML with every value that 'opencil run' with the same flags will use."""
    typer.echo(config.to_yaml(), nl=False)


@takes_config
def run(
    config: "Config",
    only: str | None = ONLY,
    dry_run: bool = DRY_RUN,
    quiet: bool = QUIET,
    overwrite: bool = switch("--overwrite", "Make stored runs again that have other values than now."),
) -> None:
    """Train, evaluate and store what of a config is not done yet; then show the table.

    Called again, it resumes where it stopped; a finished run answers at once.
    """
    from opencil.runs.launch import overwrite as overwrite_runs
    from opencil.runs.spec import plan_share

    planned = plan_share(only)
    if overwrite and not dry_run:
        for spec in overwrite_runs(config, planned(config)):
            print_note(f"run {spec} has other values or classes, and is made again")
    _carry_out(config, planned, dry_run, quiet, overwrite)


def _evaluate(
    config: "Config",
    folder: Path = argument("FOLDER", "Folder of checkpoints, one a step."),
    factory: str = option("FILE.py:NAME", "Makes a model: make(classes) or make(path, classes).", ...),
    name: str = option("NAME", "Name of the method, in folders and tables.", ...),
    memory: str = option("herding|none|FILE", "Exemplars: a JSON file has indices for each step.", "herding"),
    class_order: str | None = option("A,B|FILE", "Labels in the order of learning, or a JSON file."),
    outputs: Literal["stream", "labels"] = option(None, "Logits are of classes seen or of all.", "stream"),
    dry_run: bool = DRY_RUN,
    quiet: bool = QUIET,
) -> None:
    """Evaluate models that were trained elsewhere: a folder of checkpoints, one a step.

    They go through the whole protocol into a stored run, which every report reads. Files of weights are read
    as data, never as code. Called again, it resumes.
    """
    from opencil.runs.foreign import GivenModels, left_out, plan_foreign
    from opencil.runs.model_files import ModelFiles, find_factory

    models = GivenModels(ModelFiles(folder, find_factory(factory)))
    exemplars: Any = memory if memory in ("herding", "none") else _listed("--memory", memory)
    order = None if class_order is None else _listed("--class-order", class_order)
    values: dict[str, Any] = {"memory": exemplars, "class_order": order, "outputs": outputs}
    planned = partial(plan_foreign, name=name, models=models, **values)
    for reason, names in left_out(config, exemplars).items():
        print_note(f"{name} goes without {', '.join(names)}: {reason}")
    _carry_out(config, planned, dry_run, quiet)


evaluate = takes_config(_evaluate, without=("cil", "epochs_scale", "pack", "jobs", "launcher", "address"))


def _listed(flag: str, text: str) -> list[Any]:
    """Return a flag's list: of a JSON file, or numbers with commas between them."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else f"[{text}]")
        if isinstance(content, list):
            return content
    raise BadInput(f"{flag} {shown(text)} is not understood: a JSON file with a list is needed")


def _carry_out(
    config: "Config",
    planned: Callable[["Config"], "list[RunSpec]"],
    dry_run: bool,
    quiet: bool,
    overwrite: bool = False,
) -> None:
    """Do the missing work of a config's runs, showing progress; then show the tables."""
    from opencil.engine.ranks import is_first_rank
    from opencil.plugins import describe_changed
    from opencil.report.order import Top
    from opencil.report.tables import summaries
    from opencil.report.writing import shorten_tables
    from opencil.runs.events import Failed, Lost
    from opencil.runs.launch import execute
    from opencil.runs.loading import expect_features
    from opencil.runs.loggers import logging
    from opencil.runs.outlook import measure, outlook
    from opencil.runs.reading import study_so_far

    if not is_first_rank():  # rank 0 shows what all of them do
        if not dry_run and planned(config):  # else rank 0 says so and leaves: it is not to be waited for
            for _ in execute(config, planned):
                pass
        return
    ahead, runs, failed = outlook(config, planned, overwrite), config.place.runs, 0
    if not ahead.runs:
        print_note("there is nothing to run: the shares are more than the runs, and this one has none")
        return
    _print_skipped(config, [run.spec for run in ahead.runs if run.spec.cil in config.cil])
    if dry_run:
        if ahead.seconds is None:
            with problems.status("timing a few iterations"):
                ahead = measure(config, ahead)
        print_line(opening(ahead, runs))
        if ahead.done < len(ahead.runs) and (features := expect_features(config)) is not None:
            count, seconds = features
            took = f": about {timedelta(seconds=ceil(seconds))}, once for all runs" if count else ""
            print_line(f"features of {count:,} images to compute{took}")
        Console().print(dry_run_table(ahead))
        return
    if not quiet:
        print_note(opening(ahead, runs))
    shown = progress(problems, len(ahead.runs), quiet)
    events = closing(execute(config, planned))  # an interrupt checkpoints the runs at once
    with logging(config.place) as write, shown as advance, events as happening:
        for event in happening:
            if interrupts.seen:  # native code swallowed the exception, or a run failed of it
                raise KeyboardInterrupt
            advance(event)
            write(event)
            if isinstance(event, Lost):
                print_note(f"{event.reason}; run {event.run} is taken up by another worker")
            elif isinstance(event, Failed):
                failed += 1
                problems.print(printable(event.own_code), markup=False, end="")
                print_error(f"run {event.run} stopped: {event.error}")
    study = study_so_far([Path(runs) / run.spec.folder for run in ahead.runs], config.detector)
    if not quiet and not study.rows.empty:
        show(Console(), shorten_tables(summaries(study), study, Top()))
    for sentence in [*describe_changed(study.runs), *study.problems]:
        print_note(sentence)
    if failed:
        raise OpenCILError(f"{failed} of {len(ahead.runs)} runs failed; finished work is stored in {runs}")
    if not quiet:
        print_line(f"runs are stored in {runs}")


def _print_skipped(config: "Config", specs: "list[RunSpec]") -> None:
    """Print the detectors left out, with the methods and the reason."""
    skipped: dict[str, dict[str, None]] = {}
    for spec in specs:
        for reason, detectors in config.left_out(spec.cil, spec.classes_per_step).items():
            skipped.setdefault(f"without {', '.join(detectors)}: {reason}", {})[spec.cil] = None
    for without, methods in skipped.items():
        print_note(f"{', '.join(methods)} {'goes' if len(methods) == 1 else 'go'} {without}")


def opening(outlook: "Outlook", folder: str) -> str:
    """Describe the runs: their number, how many are done, device, folder, and an estimate of the time."""
    from opencil.engine.ranks import world_size  # torch

    count, specs = len(outlook.runs), [run.spec for run in outlook.runs]
    done = {0: "", count: ", all done"}.get(outlook.done, f", {outlook.done} done")
    cil = _several((spec.cil for spec in specs), "CIL methods")
    k = _several((str(spec.classes_per_step) for spec in specs), "of them")
    seeds = _several((str(spec.seeds.run) for spec in specs), "of them")
    plural = "s" * (seeds != str(specs[0].seeds.run))
    parts = [
        f"{cil} on {specs[0].benchmark.name} (k = {k}; seed{plural} {seeds})",
        _several((name for spec in specs for name in spec.detectors), "detectors"),
        f"on {outlook.device}",
        f"{outlook.at_once} runs at a time" * (outlook.at_once > 1),
        f"on {world_size()} ranks together" * (world_size() > 1),
        f"stored in {folder}",
        f"about {timedelta(seconds=ceil(outlook.seconds))}, as like runs took" if outlook.seconds else "",
    ]
    if outlook.training:
        time = timedelta(seconds=ceil(outlook.training))
        parts.append(f"training about {time}, by a few timed iterations; detectors take time beside it")
    return f"{count} run{'s' * (count > 1)}{done}: {'; '.join(filter(None, parts))}"


def dry_run_table(outlook: "Outlook") -> Table:
    """Return a table of the runs: work done and work to do."""
    table = borderless_table("run", "so far", "to do")
    for run in outlook.runs:
        so_far = f"{run.trained} of {run.steps or '?'} steps" if run.trained else "nothing"
        so_far = "made again" if run.again else so_far
        todo = []
        if run.steps is None or run.trained < run.steps:
            steps = f"steps {run.trained + 1} to {run.steps}" if run.steps else "all steps"
            todo.append(f"{steps} with {_several(run.spec.detectors, 'detectors') or 'no detectors'}")
        if run.lacking:
            todo.append(f"{_several(run.lacking, 'detectors')} on trained steps")
        took = f", about {timedelta(seconds=ceil(run.seconds))}" if run.seconds else ""
        to_do = ("; ".join(todo) or "further metrics") + took
        cells = (str(run.spec), "done", "nothing") if run.done else (str(run.spec), so_far, to_do)
        table.add_row(*map(Text, cells))
    return table


def _several(names: Iterable[str], what: str) -> str:
    """Return names, each once, or how many there are."""
    names = dict.fromkeys(names)
    return ", ".join(names) if len(names) <= _FEW else f"{len(names)} {what}"
