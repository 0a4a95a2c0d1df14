"""The flags that make a config, declared once for all commands that take them."""

import inspect
from collections.abc import Callable, Container
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opencil.cli import completion
from opencil.cli.completion import one_of, some_of
from opencil.cli.guard import Plugins, guarded, shown
from opencil.errors import BadInput
from opencil.importing import importing

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.config import Config


_WHERE, _HOW = "Where", "How"


def _flag(panel: str, metavar: str, text: str, default: str = "", known: Any = None, *names: str) -> Any:
    """A flag that takes a value: ``default`` says in words what holds without it, ``known`` completes it."""
    return typer.Option(
        *names,
        help=text,
        metavar=metavar,
        show_default=default or True,
        autocompletion=known,
        rich_help_panel=panel,
    )


_what, _where, _how = (partial(_flag, panel) for panel in ("What to run", _WHERE, _HOW))


def _config_from_flags(
    config: Annotated[
        Path | None,
        typer.Argument(help="A YML, as 'opencil config' prints it.", show_default=False, metavar="FILE.yml"),
    ] = None,
    benchmark: Annotated[
        str | None,
        _what("NAME", "Benchmark: see 'opencil list benchmarks'.", "digits", one_of(completion.benchmarks)),
    ] = None,
    cil: Annotated[
        str | None,
        _what(
            "A,B|all",
            "CIL methods: icarl,wa, or paper, or all; icarl@short under values of its own.",
            "all",
            some_of(completion.learners),
        ),
    ] = None,
    detector: Annotated[
        str | None,
        _what(
            "A,B|all",
            "Detectors: msp,ber, or paper, post-hoc, all; ber@mine under values of its own.",
            "all",
            some_of(completion.detectors),
        ),
    ] = None,
    metric: Annotated[
        str | None,
        _what(
            "A,B",
            "Metrics beside the standard ones, on stored runs too: see 'opencil list metrics'.",
            known=some_of(completion.metrics),
        ),
    ] = None,
    classes_per_step: Annotated[
        str | None, _what("K,K", "Classes per step, k: 10, 50+10 or 20-20-10.", "the benchmark's")
    ] = None,
    seed: Annotated[str | None, _what("S,S", "Seeds, one run each.", "0")] = None,
    settings: Annotated[
        list[str] | None,
        _what(
            "KEY=VALUE",
            "Any value of the config, as cil.icarl.epochs=5; may be repeated.",
            "",
            completion.settings,
            "--set",
        ),
    ] = None,
    plugin: Plugins = None,
    data_root: Annotated[
        str | None,
        typer.Option(
            help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="DIR", rich_help_panel=_WHERE
        ),
    ] = None,
    runs: Annotated[str | None, _where("DIR", "Folder that runs are stored in.", "runs")] = None,
    tensorboard: Annotated[str | None, _where("DIR", "Write training curves for TensorBoard there.")] = None,
    outputs_limit: Annotated[
        str | None, _where("SIZE", "Models' outputs to keep on disk at most; 0: none.", "2GB")
    ] = None,
    device: Annotated[
        str | None,
        _how(
            "NAME",
            "auto, cpu, gpu, cuda:1, mps …; auto takes a GPU that has float64; cuda:0,cuda:1 both.",
            "auto",
            one_of(completion.devices),
        ),
    ] = None,
    precision: Annotated[
        str | None,
        _how(
            "NAME", "Training on a GPU: bf16, tf32 or fp32.", "bf16", one_of(lambda: ("bf16", "tf32", "fp32"))
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
    pack: Annotated[int | None, _how("N", "Runs together on one GPU.", "1")] = None,
    jobs: Annotated[
        str | None,
        _how("N|auto", "Runs at once, on a CPU in processes of one thread each; auto: one a processor.", "1"),
    ] = None,
    launcher: Annotated[
        str | None,
        _how(
            "local|ray",
            "ray: a worker on each GPU of a Ray cluster, or core, or --jobs N of them.",
            "local",
            one_of(lambda: ("local", "ray")),
        ),
    ] = None,
    address: Annotated[
        str | None, _how("HOST:PORT", "Of the Ray cluster, as HOST:6379.", "$RAY_ADDRESS, or this machine's")
    ] = None,
    epochs_scale: Annotated[
        float | None, _how("FACTOR", "Scale every schedule, as by 0.1 for a quick look.", "the benchmark's")
    ] = None,
) -> "Config":
    with importing():
        from opencil.config import read_yaml, resolve

    sizes = [int(k) if k.isdecimal() else k for k in names("--classes-per-step", classes_per_step) or ()]
    flags = {
        "benchmark": _given(name=benchmark, classes_per_step=sizes or None),
        "seed": _given(runs=None if seed is None else _numbers("--seed", seed)),
        "place": _given(
            data_root=data_root,
            runs=runs,
            device=device,
            pack=pack,
            jobs=int(jobs) if jobs and jobs.removeprefix("-").isdecimal() else jobs,
            launcher=launcher,
            address=address,
            outputs_limit=outputs_limit,
            tensorboard=tensorboard,
            only_deterministic=deterministic or None,
        ),
        "training": _given(precision=precision, deterministic=deterministic or None),
        **_given(
            metric=names("--metric", metric),
            cil=None if epochs_scale is None else {"*": {"epochs_scale": epochs_scale}},
            plugins=plugin or None,
        ),
    }
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


def _given(**values: Any) -> dict[str, Any]:
    """Those of some values that are there."""
    return {name: value for name, value in values.items() if value is not None}


def _refuse_name(word: str, given: dict[str, str | None]) -> None:
    """Refuse a word that stands where a file should, and is a name for one of some flags."""
    known = (completion.benchmarks, completion.learners, completion.detectors)
    for (flag, before), names_known in zip(given.items(), known, strict=True):
        if word.partition("@")[0] in names_known():
            several = f"{before}," if before and flag != "--benchmark" else ""
            raise BadInput(f"there is no file {word}, to read as a YML; did you mean {flag} {several}{word}?")


def takes_config(
    command: Callable[..., None],
    without: Container[str] = (),
    first: Callable[[dict[str, Any]], None] | None = None,
) -> Callable[..., None]:
    """Give a command the flags that make a config beside its own, so that they are declared once.

    ``without`` names those that mean nothing to it. ``first`` is called with all of them before the config is
    made, which takes seconds.
    """
    own = {name: p for name, p in inspect.signature(command).parameters.items() if name != "config"}
    taken = inspect.signature(_config_from_flags).parameters
    taken_here = {name: p for name, p in taken.items() if name not in without}

    @wraps(command)
    def call(**flags: Any) -> None:
        if first is not None:
            first(flags)
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
