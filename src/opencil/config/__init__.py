"""The unified YML: every value of a command, checked before anything runs.

A config has layers, each laid on the layer below: the methods' own defaults, the benchmark's shipped
file, the user's YML, the command line's flags, ``--set``. Under ``cil`` and ``detector`` the name ``*``
stands for every method that has the value.
"""

from opencil.config.resolving import list_benchmarks, resolve
from opencil.config.sections import SECTIONS, BenchmarkConfig, Config, PlaceConfig, SeedConfig, config_keys
from opencil.config.short_forms import parse_yaml, read_yaml
from opencil.config.yml import dump_yaml

__all__ = [
    "SECTIONS",
    "BenchmarkConfig",
    "Config",
    "PlaceConfig",
    "SeedConfig",
    "config_keys",
    "dump_yaml",
    "list_benchmarks",
    "parse_yaml",
    "read_yaml",
    "resolve",
]
