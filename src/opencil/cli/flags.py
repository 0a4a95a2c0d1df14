"""Declare flags and arguments with their completion in a shell, and once the flags of a config."""

import inspect
from collections.abc import Callable, Container, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from opencil.cli.guard import importing
from opencil.errors import BadInput
from opencil.plugins import load_plugin
from opencil.registry import DATASETS, DETECTORS, LEARNERS, METRICS

if TYPE_CHECKING:  # imported where it is used, so that --help and --version answer at once
    from opencil.config import Config


def option(
    metavar: str | None, text: str, default: Any = None, *names: str, complete: Any = None, **more: Any
) -> Any:
    """Return a flag with its help; ``names`` replace the name of its parameter."""
    return typer.Option(default, *names, help=text, metavar=metavar, autocompletion=complete, **more)


def switch(name: str, text: str, **more: Any) -> Any:
    """Return a flag without a value; its default is False."""
    return typer.Option(False, name, help=text, **more)


def argument(metavar: str, text: str, default: Any = ..., complete: Any = None, **more: Any) -> Any:
    """Return a positional argument with its help; it is required unless it has a default."""
    return typer.Argument(default, help=text, metavar=metavar, autocompletion=complete, **more)


def completing(known: Callable[[], Iterable[str]], several: bool = False) -> Callable[[str], list[str]]:
    """Return a function to complete a name or, with ``several``, the last of names with commas between."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        given = before.split(",")
        return [f"{before}{comma}{n}" for n in known() if n.startswith(last) and n not in given]

    return complete


def names(flag: str, text: str | None) -> list[str]:
    """Return the names in a flag's text, each once, or none without the flag."""
    found = list(dict.fromkeys((text or "").replace(",", " ").split()))
    if text is not None and not found:
        raise BadInput(f"{flag} {text!r} names nothing: allowed are names with commas between them")
    return found


def _load_all(plugins: list[str] | None) -> list[str] | None:
    for plugin in plugins or ():
        load_plugin(plugin)
    return plugins


benchmark_names = completing(lambda: import_module("opencil.config").list_benchmarks())
dataset_names = completing(DATASETS.names)
detector_names = completing(lambda: [*DETECTORS.names(), *DETECTORS.groups()], several=True)
cil_names = completing(lambda: [*LEARNERS.names(), *LEARNERS.groups()], several=True)
metric_names = completing(METRICS.names, several=True)
table_names = completing(lambda: [*import_module("opencil.report.tables").KINDS, "all"], several=True)

#: Flags of several commands.
BENCHMARK = option("NAME", "Benchmark: see 'opencil list benchmarks'.", complete=benchmark_names)
DATA_ROOT = option("DIR", "Folder of your downloads.", envvar="OPENCIL_DATA")
PLUGIN = option("FILE.py", "Your Python file or module; repeatable.", None, "--plugin", callback=_load_all)
RUNS = argument("FOLDER", "Folders of runs, or single runs.", [Path("runs")], show_default="runs")
Plugins = list[str] | None

# --- the flags of a config -------------------------------------------------------------------------

_STEPS, _SCALE, _SHIPPED = "benchmark.classes_per_step", "cil.*.epochs_scale", "the benchmark's"
_CIL, _DETECTOR = ",".join(LEARNERS.default), ",".join(DETECTORS.default)
#: By panel of the help: each flag's key in the config, metavar, default in words, and help.
_PANELS = {
    "What to run": {
        "benchmark": ("benchmark.name", "NAME", "digits", "Benchmark: see 'opencil list benchmarks'."),
        "cil": ("cil", "A,B|all", _CIL, "CIL methods, as icarl,wa@short, or groups, as paper."),
        "detector": ("detector", "A,B|all", _DETECTOR, "Detectors, as msp,ber@mine, or groups, as post-hoc."),
        "metric": ("metric", "A,B", "", "Metrics beside the standard ones: see 'opencil list metrics'."),
        "classes_per_step": (_STEPS, "K,K", _SHIPPED, "Classes per step, k: 10, 50+10 or 20-20-10."),
        "seed": ("seed.runs", "S,S", "0", "Seeds, one run each."),
        "preset": ("preset", "paper", "", "paper: every value as the paper's released code has it."),
    },
    "Where": {
        "data_root": ("place.data_root", "DIR", "", "Folder of your downloads."),
        "runs": ("place.runs", "DIR", "runs", "Folder that runs are stored in."),
        "log": ("place.log", "A,B", "", "Loggers: tensorboard, wandb, mlflow."),
        "tensorboard": ("place.tensorboard", "DIR", "", "Folder of --log tensorboard, which it implies."),
    },
    "How": {
        "device": ("place.device", "NAME", "auto", "auto, cpu, gpu, cuda:1, mps …; cuda:0,cuda:1 are two."),
        "precision": ("training.precision", "NAME", "bf16", "Training on a GPU: bf16, tf32 or fp32."),
        "pack": ("place.pack", "N", "1", "Runs together on one GPU."),
        "jobs": ("place.jobs", "N|auto", "1", "Runs at once on a CPU, a process each; auto: one per core."),
        "launcher": ("place.launcher", "local|ray", "local", "ray: a worker on each GPU or core, or N jobs."),
        "address": ("place.address", "HOST:PORT", "$RAY_ADDRESS, or this machine's", "Of the Ray cluster."),
        "epochs_scale": (_SCALE, "FACTOR", "1", "Multiply the epochs of CIL methods by this, as by 0.1."),
    },
}
_KEYS = {name: row[0] for flags in _PANELS.values() for name, row in flags.items()}
_COMPLETE = {
    "benchmark": benchmark_names,
    "cil": cil_names,
    "detector": detector_names,
    "metric": metric_names,
    "log": completing(lambda: ("tensorboard", "wandb", "mlflow"), several=True),
    "device": completing(lambda: import_module("opencil.engine.device").present_devices()),
    "precision": completing(lambda: ("bf16", "tf32", "fp32")),
    "launcher": completing(lambda: ("local", "ray")),
    "preset": completing(lambda: ("paper",)),
}
#: Flags whose text is read as YML: a value, or the values of a list.
_YML = {"classes_per_step": "[{}]", "seed": "[{}]", "pack": "{}", "jobs": "{}", "epochs_scale": "{}"}


def takes_config(command: Callable[..., None], without: Container[str] = ()) -> Callable[..., None]:
    """Give a command the flags of a config beside its own; ``without`` names flags to leave out."""
    taken = [p for p in _parameters() if p.name not in without]
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "config"]
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *taken)]

    def call(**flags: Any) -> None:
        command(config=_resolve({p.name: flags.pop(p.name) for p in taken}), **flags)

    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _parameters() -> list[inspect.Parameter]:
    """Return a parameter for each flag of a config."""
    yml = argument("FILE.yml", "A YML, as 'opencil config' prints it.", None, show_default=False)
    declared: dict[str, tuple[Any, Any]] = {"config": (Path | None, yml)}
    for panel, flags in _PANELS.items():
        for name, (_, metavar, default, text) in flags.items():
            more = {"complete": _COMPLETE.get(name), "show_default": default or True}
            more["envvar"] = "OPENCIL_DATA" if name == "data_root" else None
            declared[name] = str | None, option(metavar, text, rich_help_panel=panel, **more)
    text = "Any value of the config, as cil.icarl.epochs=5; may be repeated."
    keys = completing(lambda: (".".join(key) + "=" for key in import_module("opencil.config").config_keys()))
    settings = option("KEY=VALUE", text, None, "--set", complete=keys, rich_help_panel="What to run")
    text = "Refuse operations that cannot give the same bits every time."
    deterministic = switch("--deterministic", text, rich_help_panel="How")
    declared |= {"settings": (list[str] | None, settings), "plugin": (Plugins, PLUGIN)}
    declared["deterministic"] = bool, deterministic
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=d, annotation=a) for name, (a, d) in declared.items()]


def _resolve(given: dict[str, Any]) -> "Config":
    """Return the config of a command's flags."""
    with importing():
        from opencil.config import read_yaml, resolve
        from opencil.config.short_forms import nest
        from opencil.config.yml import load
        from opencil.validation import merge

    values: dict[str, Any] = {"plugins": given["plugin"]}
    if given["deterministic"]:
        values |= {"training": {"deterministic": True}, "place": {"only_deterministic": True}}
    for name, text in given.items():
        if name not in _KEYS or text is None:
            continue
        value: Any = text
        if name in _YML:
            value = load(_YML[name].format(text), f"--{name.replace('_', '-')} {text!r}")
        elif name == "log":
            value = names("--log", text)
        elif name in ("cil", "detector"):
            value = dict.fromkeys(names(f"--{name}", text))
        values = merge(values, nest(_KEYS[name].split("."), value))
    user = read_yaml(given["config"]) if given["config"] else {}
    return resolve(user, flags=values, settings=given["settings"] or ())
