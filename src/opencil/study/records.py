"""Describe a run: its identity, progress and provenance."""

import re
from math import isfinite
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict  # as pydantic needs it before Python 3.12

from opencil.data.stream import StepSizes
from opencil.errors import BadInput
from opencil.validation import Bound, Whole, build

#: The keys of a run's identity.
IDENTITY = ("benchmark", "k", "cil", "seed")
Identity = tuple[str, int | str, str, int]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


_Step = Annotated[int, Bound(ge=0, le=100_000)]
_Seconds = Annotated[float, Bound(ge=0, le=1e12)]


class Maker(TypedDict):
    """The provenance of some rows, with the times of the first and the last, and their steps by detector.

    Detector '' is the model itself.
    """

    source: str
    torch: str
    device: str
    precision: str
    plugins: NotRequired[dict[str, str]]
    first: str
    last: str
    steps: dict[str, list[_Step]]


class Split(TypedDict):
    """The images of a dataset that a run read; ``paper`` is their number in the paper.

    ``role`` is ID, near, far or shifted; ``digest`` is a checksum of the pixels, or of their files.
    """

    name: str
    split: str
    images: Whole
    paper: Whole | None
    files: str
    role: NotRequired[str]
    digest: NotRequired[str]


class RunRecord(TypedDict):
    """The identity, progress and provenance of a run."""

    benchmark: str
    k: int | str
    cil: str
    seed: Whole
    steps: _Step | None  #: in all; None if neither a step nor the number of classes is known
    trained: _Step  #: steps with a stored model
    seconds: list[dict[str, _Seconds]]  #: of work on each of them, by its kind: training, tuning, evaluation
    detectors: dict[str, _Step]  #: evaluated steps of each detector
    config: dict[str, Any]  #: as in the run's config.yml
    environment: dict[str, Any]  #: versions and device of the last call
    made: NotRequired[list[Maker]]
    data: list[Split]
    images: NotRequired[str]  #: checksum of the training images and their labels in the order of learning
    failed: NotRequired[str]  #: error of its last attempt
    left_out: NotRequired[dict[str, str]]  #: reasons of damaged and missing files


class _Config(TypedDict, total=False):
    """The values of a run's config that reports read."""

    detector: dict[str, dict[str, Any]]
    plugins: dict[str, Any]


class Published(TypedDict):
    """The content of ``runs.json``."""

    format: int
    rows: str
    runs: list[RunRecord]
    left_out: NotRequired[dict[str, str]]


def check_published(content: dict[str, Any]) -> None:
    """Refuse records of other types, and steps that contradict each other."""
    build(Published, content, "runs.json")
    for run in content["runs"]:
        build(_Config, run["config"], "config")
        if StepSizes.parse(run["k"]).label != run["k"]:
            raise BadInput(f"k = {run['k']!r} is not allowed: {StepSizes.parse(run['k']).label!r} is meant")
        if max(run["trained"], *run["detectors"].values(), 0) > (run["steps"] or 0):
            raise BadInput(f"run {name_of(*identity(run))} has more than its {run['steps']} steps")


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


def find_unshowable(value: object, depth: int = 50) -> str:
    """Return why a nested value cannot be shown, such as control characters or infinite numbers; or ''."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        if not depth:
            return "values in it are nested too deeply"
        return next(filter(None, (find_unshowable(part, depth - 1) for part in value)), "")
    if isinstance(value, str) and _CONTROL.search(value):
        return f"{value!r} in it has control characters"
    return f"{value} in it is not finite" if isinstance(value, float) and not isfinite(value) else ""
