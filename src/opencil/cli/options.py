"""Declare flags and arguments, and their completion in a shell."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from opencil.plugins import load_plugin
from opencil.registry import DATASETS, DETECTORS, LEARNERS, METRICS


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


def completing(names: Callable[[], Iterable[str]], several: bool = False) -> Callable[[str], list[str]]:
    """Return a function to complete a name or, with ``several``, the last of names with commas between."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        known = before.split(",")
        return [f"{before}{comma}{n}" for n in names() if n.startswith(last) and n not in known]

    return complete


def _load_all(plugins: list[str] | None) -> list[str] | None:
    for plugin in plugins or ():
        load_plugin(plugin)
    return plugins


def _imported(module: str, name: str) -> Any:
    """Import a name late: its module imports torch."""
    return getattr(import_module(f"opencil.{module}"), name)


benchmark_names = completing(lambda: _imported("config", "list_benchmarks")())
dataset_names = completing(DATASETS.names)
device_names = completing(lambda: _imported("engine.device", "present_devices")())
detector_names = completing(lambda: [*DETECTORS.names(), *DETECTORS.groups()], several=True)
learner_names = completing(lambda: [*LEARNERS.names(), *LEARNERS.groups()], several=True)
metric_names = completing(METRICS.names, several=True)
table_names = completing(lambda: [*_imported("report.tables", "KINDS"), "all"], several=True)
config_keys = completing(lambda: (".".join(key) + "=" for key in _imported("config", "config_keys")()))

#: Flags of several commands.
BENCHMARK = option("NAME", "Benchmark: see 'opencil list benchmarks'.", complete=benchmark_names)
DATA_ROOT = option("DIR", "Folder of your downloads.", envvar="OPENCIL_DATA")
PLUGIN = option(
    "FILE.py", "Your Python file or module; may be repeated.", None, "--plugin", callback=_load_all
)
RUNS = argument("FOLDER", "Folders of runs, or single runs.", [Path("runs")], show_default="runs")
Plugins = list[str] | None
