"""Shell completion: names of methods, benchmarks and datasets, and keys of the config."""

from collections.abc import Callable, Iterable

from opencil.registry import DATASETS, DETECTORS, LEARNERS, METRICS

Complete = Callable[[str], list[str]]
datasets, metrics = DATASETS.names, METRICS.names


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


def learners() -> list[str]:
    """Return the names of CIL methods and their groups."""
    return [*LEARNERS.names(), *LEARNERS.groups()]


def detectors() -> list[str]:
    """Return the names of detectors and their groups."""
    return [*DETECTORS.names(), *DETECTORS.groups()]


def benchmarks() -> list[str]:
    """Return the benchmarks that come with the package."""
    from opencil.config import list_benchmarks

    return list_benchmarks()


def tables() -> list[str]:
    """Return the kinds of tables, and the word for all of them."""
    from opencil.report.tables import KINDS

    return [*KINDS, "all"]


def devices() -> list[str]:
    """Return the devices of this machine."""
    from opencil.engine.device import present_devices

    return present_devices()


def settings(incomplete: str) -> list[str]:
    """Complete a key of the config."""
    from opencil.config import config_keys

    return [f"{key}=" for key in map(".".join, config_keys()) if key.startswith(incomplete)]
