"""Describe a run: its identity, progress and provenance."""

import re
from math import isfinite
from typing import Any, NotRequired, TypedDict

#: The keys of a run's identity.
IDENTITY = ("benchmark", "k", "cil", "seed")
Identity = tuple[str, int | str, str, int]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class RunRecord(TypedDict):
    """The identity, progress and provenance of a run."""

    benchmark: str
    k: int | str
    cil: str
    seed: int
    steps: int | None  #: in all; None if neither a step nor the number of classes is known
    trained: int  #: steps with a stored model
    seconds: list[dict[str, float]]  #: of work on each of them, by its kind: training, tuning, evaluation
    detectors: dict[str, int]  #: evaluated steps of each detector
    config: dict[str, Any]  #: as in the run's config.yml
    environment: dict[str, Any]  #: versions and device of the last call
    #: Provenance of the rows, as ``describe_maker`` returns it; the times of the ``first`` and the ``last``,
    #: and their ``steps`` by detector, where '' is the model itself.
    made: NotRequired[list[dict[str, Any]]]
    data: list[dict[str, Any]]  #: the images of each dataset; ``paper`` is their number in the paper
    failed: NotRequired[str]  #: error of its last attempt
    left_out: NotRequired[dict[str, str]]  #: reasons of damaged and missing files


def identity(run: RunRecord) -> Identity:
    """Return the values that identify a run."""
    return run["benchmark"], run["k"], run["cil"], run["seed"]


def name_of(benchmark: str, k: int | str, cil: str, seed: int) -> str:
    """Return a run's identity as text, which is its folder below the folder of runs."""
    return f"{benchmark}/k{k}/{cil}/seed{seed}"


def setting_of(name: str) -> tuple[str, int | str] | None:
    """Return the benchmark and k of a run's name, or of its folder; None for other names."""
    match = re.search(r"(?:^|/)([^/]+)/k([^/]+)/[^/]+/seed\d+$", name)
    return (match[1], int(match[2]) if match[2].isdecimal() else match[2]) if match else None


def find_unshowable(value: object) -> str:
    """Return why a nested value cannot be shown: control characters, or a number is not finite; or ''."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next(filter(None, map(find_unshowable, value)), "")
    if isinstance(value, str) and _CONTROL.search(value):
        return f"{value!r} in it has control characters"
    return f"{value} in it is not finite" if isinstance(value, float) and not isfinite(value) else ""
