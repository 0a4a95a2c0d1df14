"""The flags that make a config, declared once for all commands that take them."""

import inspect
from collections.abc import Callable, Container
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opencil.cli import completion
from opencil.cli.completion import one_of, some_of
from opencil.cli.guard import Plugins, guarded, shown
from opencil.errors import BadInput

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.config import Config


_WHAT, _WHERE, _HOW = "What to run", "Where", "How"


def _config_from_flags(
    config: Annotated[
        Path | None,
        typer.Argument(help="A YML, as 'opencil config' prints it.", show_default=False, metavar="FILE.yml"),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="Benchmark: see 'opencil list benchmarks'.",
            metavar="NAME",
            show_default="digits",
            autocompletion=one_of(completion.benchmarks),
            rich_help_panel=_WHAT,
        ),
    ] = None,
    cil: Annotated[
        str | None,
        typer.Option(
            help="CIL methods: icarl,wa, or paper, or all; icarl@short under values of its own.",
            metavar="A,B|all",
            show_default="all",
            autocompletion=some_of(completion.learners),
            rich_help_panel=_WHAT,
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="Detectors: msp,ber, or paper, post-hoc, all; ber@mine under values of its own.",
            metavar="A,B|all",
            show_default="all",
            autocompletion=some_of(completion.detectors),
            rich_help_panel=_WHAT,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metrics beside the standard ones, on stored runs too: see 'opencil list metrics'.",
            metavar="A,B",
            autocompletion=some_of(completion.metrics),
            rich_help_panel=_WHAT,
        ),
    ] = None,
    classes_per_step: Annotated[
        str | None,
        typer.Option(
            help="Classes per step, k: 10, 50+10 or 20-20-10.",
            metavar="K,K",
            show_default="the benchmark's",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="Seeds, one run each.", metavar="S,S", show_default="0", rich_help_panel=_WHAT),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any value of the config, as cil.icarl.epochs=5; may be repeated.",
            metavar="KEY=VALUE",
            autocompletion=completion.settings,
            rich_help_panel=_WHAT,
        ),
    ] = None,
    plugin: Plugins = None,
    data_root: Annotated[
        str | None,
        typer.Option(
            help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="DIR", rich_help_panel=_WHERE
        ),
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(
            help="Folder that runs are stored in.", metavar="DIR", show_default="runs", rich_help_panel=_WHERE
        ),
    ] = None,
    tensorboard: Annotated[
        str | None,
        typer.Option(
            help="Write training curves for TensorBoard there.", metavar="DIR", rich_help_panel=_WHERE
        ),
    ] = None,
    outputs_limit: Annotated[
        str | None,
        typer.Option(
            help="Models' outputs to keep on disk at most; 0: none.",
            metavar="SIZE",
            show_default="2GB",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="auto, cpu, gpu, cuda:1, mps …; auto takes a GPU that has float64; cuda:0,cuda:1 both.",
            metavar="NAME",
            show_default="auto",
            autocompletion=one_of(completion.devices),
            rich_help_panel=_HOW,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Training on a GPU: bf16, tf32 or fp32.",
            metavar="NAME",
            show_default="bf16",
            autocompletion=one_of(lambda: ("bf16", "tf32", "fp32")),
            rich_help_panel=_HOW,
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Refuse, before anything runs, operations that cannot give the same bits every time here.",
            rich_help_panel=_HOW,
        ),
    ] = False,
    pack: Annotated[
        int | None,
        typer.Option(help="Runs together on one GPU.", metavar="N", show_default="1", rich_help_panel=_HOW),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            help="Runs at once, on a CPU in processes of one thread each; auto: one a processor.",
            metavar="N|auto",
            show_default="1",
            rich_help_panel=_HOW,
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="ray: a worker on each GPU of a Ray cluster, or core, or --jobs N of them.",
            metavar="local|ray",
            show_default="local",
            autocompletion=one_of(lambda: ("local", "ray")),
            rich_help_panel=_HOW,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the Ray cluster, as HOST:6379.",
            metavar="HOST:PORT",
            show_default="$RAY_ADDRESS, or this machine's",
            rich_help_panel=_HOW,
        ),
    ] = None,
    epochs_scale: Annotated[
        float | None,
        typer.Option(
            help="Scale every schedule, as by 0.1 for a quick look.",
            metavar="FACTOR",
            show_default="the benchmark's",
            rich_help_panel=_HOW,
        ),
    ] = None,
) -> "Config":
    from opencil.config import read_yaml, resolve

    flags: dict[str, Any] = {"benchmark": {}, "seed": {}, "place": {}}
    if benchmark is not None:
        flags["benchmark"]["name"] = benchmark
    if classes_per_step is not None:
        flags["benchmark"]["classes_per_step"] = [
            int(k) if k.isdecimal() else k for k in names("--classes-per-step", classes_per_step) or ()
        ]
    if seed is not None:
        flags["seed"]["runs"] = _numbers("--seed", seed)
    place = {
        "data_root": data_root,
        "runs": runs,
        "device": device,
        "pack": pack,
        "jobs": int(jobs) if jobs and jobs.isdecimal() else jobs,
        "launcher": launcher,
        "address": address,
        "outputs_limit": outputs_limit,
        "tensorboard": tensorboard,
        "only_deterministic": deterministic or None,
    }
    flags["place"] = {name: value for name, value in place.items() if value is not None}
    if metric is not None:
        flags["metric"] = names("--metric", metric)
    training = {"precision": precision, "deterministic": deterministic or None}
    flags["training"] = {name: value for name, value in training.items() if value is not None}
    if epochs_scale is not None:
        flags["cil"] = {"*": {"epochs_scale": epochs_scale}}
    if plugin:
        flags["plugins"] = plugin
    if config and not config.exists():
        _refuse_name(str(config), {"--benchmark": benchmark, "--cil": cil, "--detector": detector})
    user = read_yaml(config) if config else {}
    try:
        return resolve(
            user,
            flags=flags,
            cil=names("--cil", cil),
            detector=names("--detector", detector),
            settings=settings or (),
        )
    except BadInput as error:
        from opencil.runs.store import plugins_noted

        written = user.get("place")
        stored = runs or (written.get("runs") if isinstance(written, dict) else None) or "runs"
        if hint := plugins_noted(Path(str(stored)), str(error)):
            raise BadInput(f"{error}\n{hint}") from None
        raise


def _refuse_name(word: str, given: dict[str, str | None]) -> None:
    """Refuse a word that stands where a file should, and is a name for one of some flags."""
    known = (completion.benchmarks, completion.learners, completion.detectors)
    for (flag, before), names_known in zip(given.items(), known, strict=True):
        if word.partition("@")[0] in names_known():
            several = f"{before}," if before and flag != "--benchmark" else ""
            raise BadInput(f"there is no file {word}, to read as a YML; did you mean {flag} {several}{word}?")


def takes_config(command: Callable[..., None], without: Container[str] = ()) -> Callable[..., None]:
    """Give a command the flags that make a config beside its own, so that they are declared once.

    ``without`` names those that mean nothing to it.
    """
    own = {name: p for name, p in inspect.signature(command).parameters.items() if name != "config"}
    taken = inspect.signature(_config_from_flags).parameters
    taken_here = {name: p for name, p in taken.items() if name not in without}

    @wraps(command)
    def call(**flags: Any) -> None:
        config = _config_from_flags(**{name: flags[name] for name in taken_here})
        command(config=config, **{name: flags[name] for name in own})

    named = [p.replace(kind=p.KEYWORD_ONLY) for p in (own | taken_here).values()]
    shown(call, inspect.Signature(named))
    return guarded(call)


def names(flag: str, text: str | None) -> list[str] | None:
    """The names that a flag has, without repetitions; None where the flag is not there."""
    if text is None:
        return None
    found = text.replace(",", " ").split()
    if not found:
        raise BadInput(f"{flag} {text!r} names nothing: allowed are names with commas between them")
    return list(dict.fromkeys(found))


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(
            f"{flag} {text!r} is not understood: allowed are whole numbers with commas between them"
        ) from None
