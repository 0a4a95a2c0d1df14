"""The command line: thin. It turns flags into a config, shows events as they happen, and prints tables."""

import gc
import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from opencil import cli_data, cli_report
from opencil._version import __version__
from opencil.errors import BadInput, OpenCILError

if TYPE_CHECKING:  # imported where they are used, so that --help and --version answer at once
    import pandas as pd

    from opencil.config import Config
    from opencil.detectors.detector import Detector
    from opencil.runs.runner import Event

app = typer.Typer(
    help="Out-of-distribution detection in class-incremental learning: train, detect, compare.",
    epilog="Start with: opencil run --benchmark digits",
    no_args_is_help=True,
    add_completion=False,
)
_problems = Console(stderr=True, soft_wrap=True, highlight=False)
_LINES = 30.0  #: seconds between lines about progress, in a log file


class _Interrupts:
    """Ctrl-C, remembered: native code that it falls into makes an error of its own of it, or swallows it."""

    seen = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice it inside the block, and raise ``KeyboardInterrupt`` as ever."""
        self.seen = False  # of an earlier command in this process
        usual = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        if usual is not signal.default_int_handler or not in_main:  # somebody else's, or ignored
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.seen = True
            signal.default_int_handler(number, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)


_interrupts = _Interrupts()


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose expected errors end in a sentence and an exit code, not in a traceback."""

    @wraps(command)
    def call(*args: Any, **flags: Any) -> None:
        try:
            with _interrupts.watched():
                command(*args, **flags)
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, KeyboardInterrupt) or _interrupts.seen:
                _problems.print(
                    "interrupted: what was finished is stored, and the same command goes on from there"
                )
                raise typer.Exit(130) from None
            if not isinstance(error, (OpenCILError, OSError)):
                raise
            _problem(error)
            raise typer.Exit(error.exit_code if isinstance(error, OpenCILError) else 1) from None

    return call


def _config_from_flags(
    config: Annotated[
        Path | None, typer.Argument(help="A YML, as 'opencil config' prints it.", show_default=False)
    ] = None,
    benchmark: Annotated[str | None, typer.Option(help="Benchmark: see 'opencil list benchmarks'.")] = None,
    cil: Annotated[str | None, typer.Option(help="CIL methods: icarl,wa or all.", metavar="A,B|all")] = None,
    detector: Annotated[
        str | None, typer.Option(help="Detectors: msp,energy or all.", metavar="A,B|all")
    ] = None,
    classes_per_step: Annotated[str | None, typer.Option(help="Classes per step, k.", metavar="K,K")] = None,
    seed: Annotated[str | None, typer.Option(help="Seeds, one run each.", metavar="S,S")] = None,
    data_root: Annotated[
        str | None, typer.Option(help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="DIR")
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Folder that runs are stored in.", metavar="DIR")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = None,
    precision: Annotated[str | None, typer.Option(help="Training on a GPU: bf16, tf32 or fp32.")] = None,
    pack: Annotated[
        int | None, typer.Option(help="Runs that advance together on one GPU.", metavar="N")
    ] = None,
    tensorboard: Annotated[
        str | None, typer.Option(help="Write training curves for TensorBoard there.", metavar="DIR")
    ] = None,
    epochs_scale: Annotated[
        float | None, typer.Option(help="Scale every schedule, for a quick look.", metavar="0.1")
    ] = None,
    outputs_limit: Annotated[
        str | None,
        typer.Option(help="Models' outputs to keep on disk at most, as 2GB; 0: none.", metavar="SIZE"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any value of the config, as cil.icarl.epochs=5; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> "Config":
    from opencil.config import read_yaml, resolve

    flags: dict[str, Any] = {"benchmark": {}, "seed": {}, "place": {}}
    if benchmark is not None:
        flags["benchmark"]["name"] = benchmark
    if classes_per_step is not None:
        flags["benchmark"]["classes_per_step"] = _numbers("--classes-per-step", classes_per_step)
    if seed is not None:
        flags["seed"]["runs"] = _numbers("--seed", seed)
    place = {
        "data_root": data_root,
        "runs": runs,
        "device": device,
        "pack": pack,
        "outputs_limit": outputs_limit,
        "tensorboard": tensorboard,
    }
    flags["place"] = {name: value for name, value in place.items() if value is not None}
    if precision is not None:
        flags["training"] = {"precision": precision}
    if epochs_scale is not None:
        flags["cil"] = {"*": {"epochs_scale": epochs_scale}}
    return resolve(
        read_yaml(config) if config else None,
        flags=flags,
        cil=_names("--cil", cil),
        detector=_names("--detector", detector),
        settings=settings or (),
    )


def takes_config(command: Callable[["Config"], None]) -> Callable[..., None]:
    """Give a command the flags that make a config, so that they are declared once."""

    @wraps(command)
    def call(**flags: Any) -> None:
        command(_config_from_flags(**flags))

    signature = inspect.signature(_config_from_flags)
    del call.__wrapped__
    call.__signature__ = signature.replace(return_annotation=None)  # type: ignore[attr-defined]
    call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return guarded(call)


@app.command(
    epilog="Example: opencil run --benchmark digits --cil icarl --detector all --set cil.icarl.epochs=5"
)
@takes_config
def run(config: "Config") -> None:
    """Train, evaluate and store whatever of a config is not done yet; then show the table.

    Started again, it goes on where it stopped; a finished run answers at once.
    """
    from opencil.runs.plan import plan
    from opencil.runs.runner import Failed, execute
    from opencil.runs.tensorboard import training_curves

    screen, failures = Console(), 0
    for method in config.cil:
        if left_out := sorted(set(config.detector) - set(config.detectors_of(method))):
            _problems.print(
                f"{method} goes without {', '.join(left_out)}: it sees no images of old classes again, "
                "and they draw on them",
                highlight=False,
            )
    with training_curves(config.place.tensorboard) as write, _progress(screen, len(plan(config))) as show:
        for event in execute(config):
            if _interrupts.seen:  # and a run has failed of it, or nobody has noticed
                raise KeyboardInterrupt
            show(event)
            write(event)
            if isinstance(event, Failed):
                failures += 1
                _problem(f"run {event.run} stopped: {event.error}")
    folders = [Path(config.place.runs) / spec.folder for spec in plan(config)]
    rows = _rows([folder for folder in folders if any(folder.glob("step*/step.json"))])
    if rows is not None:
        from opencil.report.tables import summaries

        cli_report.show(screen, summaries(rows[rows["detector"].isin(["", *config.detector])]))
    screen.print(f"runs are stored in {config.place.runs}", highlight=False)
    if failures:
        raise OpenCILError(f"{failures} of {len(folders)} runs failed; what they had finished is stored")


@app.command(
    "config", epilog="Example: opencil config --benchmark digits --cil icarl --detector msp,energy > my.yml"
)
@takes_config
def show_config(config: "Config") -> None:
    """Print one YML with every value that 'opencil run' with the same flags will use."""
    typer.echo(config.to_yaml(), nl=False)


@app.command("list", epilog="Example: opencil list detectors '*norm*'")
@guarded
def show_list(
    what: Annotated[Literal["benchmarks", "cil", "detectors", "datasets", "backbones"], typer.Argument()],
    pattern: Annotated[str, typer.Argument(help="Shell pattern for names.")] = "*",
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="As Markdown; of detectors also what they read, and their values."),
    ] = False,
) -> None:
    """List what there is, with where it was published."""
    from fnmatch import filter as matching

    from opencil.config import list_benchmarks, resolve
    from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS

    lines: list[dict[str, str]] = []
    if what == "benchmarks":
        for name in matching(list_benchmarks(), pattern):
            b = resolve(flags={"benchmark": name}).benchmark
            line = {"name": name, "ID data": b.id}
            line |= {"classes per step": ", ".join(map(str, b.classes_per_step)), "memory": str(b.memory)}
            lines.append(line | {"near OOD": ", ".join(b.near), "far OOD": ", ".join(b.far)})
    else:
        registry = {"cil": LEARNERS, "detectors": DETECTORS, "datasets": DATASETS, "backbones": BACKBONES}[
            what
        ]
        for name in registry.names(pattern):
            entry = registry.entry(name)
            line = {"name": name, "what it is": entry.about}
            if markdown and what == "detectors":
                line |= _of_detector(registry.create(name))
            if what in ("cil", "detectors"):
                paper = entry.paper
                line["paper"] = f"{paper.title}, {paper.year} {paper.link}".strip() if paper else ""
            lines.append(line)
    if not lines:
        raise BadInput(f"none of the {what} matches {pattern!r}")
    if markdown:
        cells = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
        typer.echo(
            "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
        )
        return
    table = Table()
    for column in lines[0]:
        table.add_column(column, overflow="fold")  # a name or a link is of no use without its end
    for line in lines:
        table.add_row(*map(escape, line.values()))
    Console().print(table)


def _of_detector(detector: "Detector") -> dict[str, str]:
    """What a detector reads, to score and in its set-up, and the default values that are its own."""
    from opencil.validation import plain

    family = next(base for base in type(detector).__mro__ if "family" in vars(base))
    shared = {f.name for f in fields(family)}  # by the whole family: said once, in the docs
    values = ", ".join(f"{key} = {value}" for key, value in plain(detector).items() if key not in shared)
    set_up = ", ".join(sorted(detector.reads_to_set_up)) if detector.needs_setup else "–"
    reads = ", ".join(sorted(detector.reads))
    return {"family": detector.family, "reads": reads, "set-up reads": set_up, "values": values or "–"}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"opencil {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    pass


cli_data.register(app, guarded)
cli_report.register(app, guarded)


def main() -> None:
    """Entry point of the ``opencil`` command."""
    gc.freeze()  # what is imported stays to the end: to go through it again took a tenth of a report
    app()


def _problem(error: object) -> None:
    _problems.print(f"[red]error:[/] {escape(str(error))}")


def _names(flag: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = text.replace(",", " ").split()
    if not names:
        raise BadInput(f"{flag} {text!r} names nothing: allowed are names with commas between them, or all")
    return names


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(
            f"{flag} {text!r} is not understood: allowed are whole numbers with commas between them"
        ) from None


def _rows(folders: list[Path]) -> "pd.DataFrame | None":
    import pandas as pd

    from opencil.runs.store import read_rows

    return pd.concat([read_rows(folder) for folder in folders], ignore_index=True) if folders else None


@contextmanager
def _progress(screen: Console, runs: int) -> Iterator[Callable[["Event"], None]]:
    """A function that shows events: two bars (all runs, this step), or lines if the output is no terminal."""
    from opencil.runs.runner import Evaluated, Failed, Finished, Training

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=screen, disable=not screen.is_terminal) as bars:
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
                share, where = 1.0, type(event).__name__.lower()
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
            if not screen.is_terminal and now >= (first if ended else due):
                due = now + _LINES
                told = [name] if ended else places
                done = f"{100 * sum(shares.values()) / runs:.0f} % of all runs"
                texts = [time.strftime("%H:%M:%S"), done, *(f"{run} · {places[run]}" for run in told)]
                _problems.print(" · ".join(texts), markup=False)
            if ended:
                del places[name]

        yield show


if __name__ == "__main__":
    main()
