"""Declare flags and arguments, and what a shell completes in them."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from opencil.plugins import load_plugin
from opencil.registry import DATASETS, DETECTORS, LEARNERS, METRICS

Complete = Callable[[str], list[str]]


def option(
    metavar: str | None, text: str, default: Any = None, *names: str, complete: Any = None, **more: Any
) -> Any:
    """Return a flag with its help; ``names`` replace the name of its parameter."""
    return typer.Option(default, *names, help=text, metavar=metavar, autocompletion=complete, **more)


def switch(name: str, text: str, **more: Any) -> Any:
    """Return a flag without a value, which is False where it is not given."""
    return typer.Option(False, name, help=text, **more)


def argument(metavar: str, text: str, default: Any = ..., complete: Any = None, **more: Any) -> Any:
    """Return a positional argument with its help; it is required unless it has a default."""
    return typer.Argument(default, help=text, metavar=metavar, autocompletion=complete, **more)


def one_of(names: Callable[[], Iterable[str]]) -> Complete:
    """Return a function that completes one name."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def some_of(names: Callable[[], Iterable[str]]) -> Complete:
    """Return a function that completes the last of several names, with commas between them, to a new one."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        known = before.split(",")
        return [f"{before}{comma}{n}" for n in names() if n.startswith(last) and n not in known]

    return complete


def _load_all(plugins: list[str] | None) -> list[str] | None:
    for plugin in plugins or ():
        load_plugin(plugin)
    return plugins


def _imported(module: str, name: str) -> Any:
    """Import a name that needs torch, and so only when a shell completes it."""
    return getattr(import_module(f"opencil.{module}"), name)


benchmark_names = one_of(lambda: _imported("config", "list_benchmarks")())
dataset_names = one_of(DATASETS.names)
device_names = one_of(lambda: _imported("engine.device", "present_devices")())
detector_names = some_of(lambda: [*DETECTORS.names(), *DETECTORS.groups()])
learner_names = some_of(lambda: [*LEARNERS.names(), *LEARNERS.groups()])
metric_names = some_of(METRICS.names)
table_names = some_of(lambda: [*_imported("report.tables", "KINDS"), "all"])
config_keys = one_of(lambda: (".".join(key) + "=" for key in _imported("config", "config_keys")()))

#: Flags of several commands.
BENCHMARK = option("NAME", "Benchmark: see 'opencil list benchmarks'.", complete=benchmark_names)
DATA_ROOT = option("DIR", "Folder of your downloads.", envvar="OPENCIL_DATA")
PLUGIN = option(
    "FILE.py", "Your Python file or module; may be repeated.", None, "--plugin", callback=_load_all
)
RUNS = argument("FOLDER", "Folders of runs, or single runs.", [Path("runs")], show_default="runs")
Plugins = list[str] | None
