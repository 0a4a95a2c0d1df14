"""Describe a run: its identity, progress and provenance."""

import re
from math import isfinite
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 on

from opencil.data.stream import StepSizes
from opencil.errors import BadInput, one_line
from opencil.validation import Count, Whole

#: The keys of a run's identity.
IDENTITY = ("benchmark", "k", "cil", "seed")
Identity = tuple[str, int | str, str, int]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Made(TypedDict):
    """The provenance of some rows of a run, and the times of the first and the last."""

    source: str  #: digest of the package's source
    torch: str
    device: str
    precision: str
    plugins: NotRequired[dict[str, str]]  #: checksum of each plugin behind them
    first: str
    last: str
    steps: dict[str, list[Count]]  #: of each detector; '' is the model itself


class Dataset(TypedDict):
    """The images of a dataset, as read by a run."""

    name: str
    role: str
    split: str
    files: str
    images: Whole
    paper: Whole | None  #: their number in the paper


class RunRecord(TypedDict):
    """The identity, progress and provenance of a run."""

    benchmark: str
    k: int | str
    cil: str
    seed: Whole
    steps: Count | None  #: in all; None if neither a step nor the number of classes is known
    trained: Whole  #: steps with a stored model
    seconds: list[dict[str, float]]  #: of work on each of them, by its kind: training, tuning, evaluation
    detectors: dict[str, Whole]  #: evaluated steps of each detector
    config: dict[str, Any]  #: as in the run's config.yml
    environment: dict[str, Any]  #: versions and device of the last call
    made: NotRequired[list[Made]]  #: provenance of the rows
    data: list[Dataset]
    failed: NotRequired[str]  #: error of its last attempt
    left_out: NotRequired[dict[str, str]]  #: reasons of damaged and missing files


_RECORD = TypeAdapter(RunRecord)


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


def is_identity(benchmark: object, k: object, cil: object, seed: object) -> bool:
    """Return whether values can identify a run; each k has one form, so ``"10"`` is none."""
    try:
        steps = isinstance(k, int | str) and StepSizes.parse(k).label == k
    except BadInput:
        return False
    return steps and isinstance(benchmark, str) and isinstance(cil, str) and type(seed) is int and seed >= 0


def find_problem(run: object) -> str:
    """Return why reports could not show a record, or ''."""
    try:
        record = _RECORD.validate_python(run, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        return f"a run in it has no usable {'.'.join(map(one_line, problem['loc']))!r}: {problem['msg']}"
    of_detectors = record["config"].get("detector", {}).values()
    if not is_identity(*identity(record)) or not all(isinstance(values, dict) for values in of_detectors):
        return "a run in it has no usable 'k' or 'config'"
    return find_unshowable(run)


def find_unshowable(value: object) -> str:
    """Return why a nested value cannot be shown: control characters, or a number is not finite; or ''."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next(filter(None, map(find_unshowable, value)), "")
    if isinstance(value, str) and _CONTROL.search(value):
        return f"{value!r} in it has control characters"
    return f"{value} in it is not finite" if isinstance(value, float) and not isfinite(value) else ""
