"""Declare the flags of a config once, for all commands that take one."""

import inspect
from collections.abc import Callable, Container
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opencil.cli import options
from opencil.cli.options import argument, completing, option, switch
from opencil.errors import BadInput

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.config import Config


_STEPS, _SCALE, _SHIPPED = "benchmark.classes_per_step", "cil.*.epochs_scale", "the benchmark's"
#: By panel of the help: each flag's key in the config, metavar, default in words, and help.
_PANELS = {
    "What to run": {
        "benchmark": ("benchmark.name", "NAME", "digits", "Benchmark: see 'opencil list benchmarks'."),
        "cil": ("cil", "A,B|all", "all", "CIL methods, as icarl,wa@short, or groups, as paper."),
        "detector": ("detector", "A,B|all", "all", "Detectors, as msp,ber@mine, or groups, as post-hoc."),
        "metric": ("metric", "A,B", "", "Metrics beside the standard ones: see 'opencil list metrics'."),
        "classes_per_step": (_STEPS, "K,K", _SHIPPED, "Classes per step, k: 10, 50+10 or 20-20-10."),
        "seed": ("seed.runs", "S,S", "0", "Seeds, one run each."),
    },
    "Where": {
        "data_root": ("place.data_root", "DIR", "", "Folder of your downloads."),
        "runs": ("place.runs", "DIR", "runs", "Folder that runs are stored in."),
        "tensorboard": ("place.tensorboard", "DIR", "", "Write training curves for TensorBoard there."),
    },
    "How": {
        "device": ("place.device", "NAME", "auto", "auto, cpu, gpu, cuda:1, mps …; cuda:0,cuda:1 are two."),
        "precision": ("training.precision", "NAME", "bf16", "Training on a GPU: bf16, tf32 or fp32."),
        "pack": ("place.pack", "N", "1", "Runs together on one GPU."),
        "jobs": ("place.jobs", "N|auto", "1", "Runs at once on a CPU, a process each; auto: one per core."),
        "launcher": ("place.launcher", "local|ray", "local", "ray: a worker on each GPU or core, or N jobs."),
        "address": ("place.address", "HOST:PORT", "$RAY_ADDRESS, or this machine's", "Of the Ray cluster."),
        "epochs_scale": (_SCALE, "FACTOR", _SHIPPED, "Scale every schedule, as by 0.1."),
    },
}
_KEYS = {name: row[0] for flags in _PANELS.values() for name, row in flags.items()}
_COMPLETE = {
    "benchmark": options.benchmark_names,
    "cil": options.learner_names,
    "detector": options.detector_names,
    "metric": options.metric_names,
    "device": options.device_names,
    "precision": completing(lambda: ("bf16", "tf32", "fp32")),
    "launcher": completing(lambda: ("local", "ray")),
}
_SET = option(
    "KEY=VALUE",
    "Any value of the config, as cil.icarl.epochs=5; may be repeated.",
    None,
    "--set",
    complete=options.config_keys,
    rich_help_panel="What to run",
)
_DETERMINISTIC = switch(
    "--deterministic", "Refuse operations that cannot give the same bits every time.", rich_help_panel="How"
)
#: Flags whose text is read as YML: a value, or the values of a list.
_YML = {"classes_per_step": "[{}]", "seed": "[{}]", "pack": "{}", "jobs": "{}", "epochs_scale": "{}"}


def names(flag: str, text: str | None) -> list[str] | None:
    """Return the names in a flag's text, each once; None without the flag."""
    if text is None:
        return None
    if found := text.replace(",", " ").split():
        return list(dict.fromkeys(found))
    raise BadInput(f"{flag} {text!r} names nothing: allowed are names with commas between them")


def takes_config(command: Callable[..., None], without: Container[str] = ()) -> Callable[..., None]:
    """Give a command the flags of a config beside its own; ``without`` names flags to leave out."""
    taken = {p.name: p for p in _parameters() if p.name not in without}
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "config"]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *taken.values())]

    @wraps(command)
    def call(**flags: Any) -> None:
        config = _resolve({name: flags.pop(name) for name in taken})
        command(config=config, **flags)

    del call.__wrapped__  # typer reads the flags from the signature
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _parameters() -> list[inspect.Parameter]:
    """Return a parameter for each flag of a config."""
    yml = argument("FILE.yml", "A YML, as 'opencil config' prints it.", None, show_default=False)
    declared: dict[str, tuple[Any, Any]] = {"config": (Path | None, yml)}
    for panel, flags in _PANELS.items():
        for name, (_, metavar, default, text) in flags.items():
            more: dict[str, Any] = {"complete": _COMPLETE.get(name), "rich_help_panel": panel}
            more |= {"envvar": "OPENCIL_DATA"} if name == "data_root" else {}
            declared[name] = str | None, option(metavar, text, show_default=default or True, **more)
    declared |= {"settings": (list[str] | None, _SET), "plugin": (options.Plugins, options.PLUGIN)}
    declared["deterministic"] = bool, _DETERMINISTIC
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=d, annotation=a) for name, (a, d) in declared.items()]


def _resolve(given: dict[str, Any]) -> "Config":
    """Return the config of a command's flags."""
    from opencil.config import read_yaml, resolve
    from opencil.config.short_forms import nest
    from opencil.config.yml import load
    from opencil.validation import merge

    values: dict[str, Any] = {"plugins": given["plugin"] or None}
    if given["deterministic"]:
        values |= {"training": {"deterministic": True}, "place": {"only_deterministic": True}}
    chosen = {kind: names(f"--{kind}", given.get(kind)) for kind in ("cil", "detector")}
    for name, key in _KEYS.items():
        value: Any = given.get(name)
        if value is None or name in chosen:
            continue
        if name in _YML:
            value = load(_YML[name].format(value), f"--{name.replace('_', '-')} {value!r}")
        elif name == "metric":
            value = names("--metric", value)
        values = merge(values, nest(key.split("."), value))
    user = read_yaml(given["config"]) if given["config"] else {}
    return resolve(user, flags=values, settings=given["settings"] or (), **chosen)
