"""What a shell completes: names of methods, benchmarks and datasets, and keys of the config."""

from collections.abc import Callable, Iterable

Complete = Callable[[str], list[str]]


def one_of(names: Callable[[], Iterable[str]]) -> Complete:
    """Completes one name."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def some_of(names: Callable[[], Iterable[str]]) -> Complete:
    """Completes the last of several names with commas between them, but to none that is there already."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        there = before.split(",")
        return [f"{before}{comma}{n}" for n in names() if n.startswith(last) and n not in there]

    return complete


def benchmarks() -> list[str]:
    """The benchmarks that come with the package."""
    from opencil.config import list_benchmarks

    return list_benchmarks()


def learners() -> list[str]:
    """The CIL methods, and groups of them."""
    from opencil.registry import LEARNERS

    return [*LEARNERS.names(), *LEARNERS.groups()]


def detectors() -> list[str]:
    """The detectors, and groups of them."""
    from opencil.registry import DETECTORS

    return [*DETECTORS.names(), *DETECTORS.groups()]


def datasets() -> list[str]:
    """The datasets."""
    from opencil.registry import DATASETS

    return DATASETS.names()


def metrics() -> list[str]:
    """The metrics."""
    from opencil.registry import METRICS

    return METRICS.names()


def tables() -> list[str]:
    """The kinds of tables, and all of them."""
    from opencil.report.tables import KINDS

    return [*KINDS, "all"]


def devices() -> list[str]:
    """The devices that are here."""
    from opencil.engine.device import present_devices

    return present_devices()


def settings(incomplete: str) -> list[str]:
    """Keys of the config: sections first, then whole keys."""
    from opencil.config import config_keys

    keys = list(config_keys())
    if "." not in incomplete:
        sections = dict.fromkeys(key[0] for key in keys)
        return [f"{section}." for section in sections if section.startswith(incomplete)]
    inner = {key[:depth] for key in keys for depth in range(1, len(key))}
    return [f"{text}=" for key in keys if key not in inner and (text := ".".join(key)).startswith(incomplete)]
