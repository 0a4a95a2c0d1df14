"""The flags that make a config, declared once for all commands that take them."""

import inspect
from collections.abc import Callable, Container
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opencil.cli.guard import Plugins, guarded, shown
from opencil.errors import BadInput

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.config import Config


def _config_from_flags(
    config: Annotated[
        Path | None, typer.Argument(help="A YML, as 'opencil config' prints it.", show_default=False)
    ] = None,
    benchmark: Annotated[str | None, typer.Option(help="Benchmark: see 'opencil list benchmarks'.")] = None,
    cil: Annotated[str | None, typer.Option(help="CIL methods: icarl,wa or all.", metavar="A,B|all")] = None,
    detector: Annotated[
        str | None, typer.Option(help="Detectors: msp,ber or all.", metavar="A,B|all")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metrics beside the standard ones, on stored runs too: see 'opencil list metrics'.",
            metavar="A,B",
        ),
    ] = None,
    classes_per_step: Annotated[
        str | None, typer.Option(help="Classes per step, k: 10, 50+10 or 20-20-10.", metavar="K,K")
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Seeds, one run each.", metavar="S,S")] = None,
    data_root: Annotated[
        str | None, typer.Option(help="Folder of your downloads.", envvar="OPENCIL_DATA", metavar="DIR")
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Folder that runs are stored in.", metavar="DIR")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = None,
    precision: Annotated[str | None, typer.Option(help="Training on a GPU: bf16, tf32 or fp32.")] = None,
    pack: Annotated[int | None, typer.Option(help="Runs together on one GPU.", metavar="N")] = None,
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
    plugin: Plugins = None,
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
        "outputs_limit": outputs_limit,
        "tensorboard": tensorboard,
    }
    flags["place"] = {name: value for name, value in place.items() if value is not None}
    if metric is not None:
        flags["metric"] = names("--metric", metric)
    if precision is not None:
        flags["training"] = {"precision": precision}
    if epochs_scale is not None:
        flags["cil"] = {"*": {"epochs_scale": epochs_scale}}
    if plugin:
        flags["plugins"] = plugin
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
