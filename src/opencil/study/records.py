"""The record of a run: which it is, how far it has come, what it was made with; and what makes one usable."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NotRequired, TypedDict

from opencil.data.stream import StepSizes
from opencil.errors import BadInput

#: What tells one run from another.
IDENTITY = ("benchmark", "k", "cil", "seed")


Identity = tuple[str, int | str, str, int]


class Made(TypedDict):
    """What some rows of a run were made with, and from when to when."""

    source: str  #: digest of the package's source
    torch: str
    device: str
    precision: str
    plugins: NotRequired[dict[str, str]]  #: sha256 of each plugin that they come from
    first: str
    last: str
    steps: dict[str, list[int]]  #: of each detector; '' is the model itself


class RunRecord(TypedDict):
    """One run: which it is, how far it has come, and what it was made with."""

    benchmark: str
    k: int | str
    cil: str
    seed: int
    steps: int | None  #: in all; None where no step is finished and the number of classes is not known
    trained: int  #: steps whose models are stored
    seconds: list[dict[str, float]]  #: of work on each of them, by its kind: training, tuning, evaluation
    detectors: dict[str, int]  #: steps that each detector has been evaluated on; 0 where it is still to come
    config: dict[str, Any]  #: as in the run's config.yml
    environment: dict[str, Any]  #: versions and device of the last call
    made: NotRequired[list[Made]]  #: what made which rows; absent where the run did not note that
    data: list[dict[str, Any]]  #: what images it read; empty where the run did not note that
    failed: NotRequired[str]  #: what its last attempt ended in, where that was an error
    left_out: NotRequired[dict[str, str]]  #: its files that are damaged or lost, so without rows, and why


def identity(run: RunRecord) -> Identity:
    """What tells a run from others."""
    return run["benchmark"], run["k"], run["cil"], run["seed"]


def name_of(benchmark: str, k: int | str, cil: str, seed: int) -> str:
    """A run's identity in words, and its folder below that of all runs."""
    return f"{benchmark}/k{k}/{cil}/seed{seed}"


def setting_of(name: str) -> tuple[str, int | str] | None:
    """The benchmark and k of a run's name, or of its folder; None where it is no such name."""
    match = re.search(r"(?:^|/)([^/]+)/k([^/]+)/[^/]+/seed\d+$", name)
    return (match[1], int(match[2]) if match[2].isdecimal() else match[2]) if match else None


def one_line(text: object) -> str:
    """A text that can be shown, on one line: what stands in its way becomes a blank."""
    return " ".join("".join(c if showable(c) else " " for c in str(text)).split())


def trouble(run: object) -> str:
    """Why reports could not show a record, down to its innermost values; empty where they could."""
    for key, usable in USABLE.items():
        if not isinstance(run, dict) or not usable(run.get(key, ...)):
            return f"a run in it has no usable {key!r}"
    for leaf in _leaves(run):
        if isinstance(leaf, str) and not showable(leaf):
            return f"a run in it has {leaf!r}, with control characters"
    return ""


def _text(value: object) -> bool:
    return isinstance(value, str)


def _whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _steps(value: object) -> bool:
    """Whether a value says how many classes steps bring, in the one form that it has."""
    try:
        return isinstance(value, int | str) and StepSizes.parse(value).label == value
    except BadInput:
        return False


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mapping(value: object, of: Callable[[object], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(map(of, value.values()))


def _list(value: object, of: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def _environment(value: object) -> bool:
    """Whether a value is a mapping that has no infinite numbers, which JSON does not know."""
    return isinstance(value, dict) and not any(
        isinstance(leaf, float) and not math.isfinite(leaf) for leaf in _leaves(value)
    )


def _dataset(value: object) -> bool:
    """Whether a value notes which images of a dataset were read."""
    return (
        isinstance(value, dict)
        and all(_text(value.get(key)) for key in ("name", "role", "split", "files"))
        and _whole(value.get("images"))
        and (value.get("paper", ...) is None or _whole(value.get("paper")))
    )


def _made(value: object) -> bool:
    """Whether a value notes what made some rows."""
    return (
        isinstance(value, dict)
        and all(_text(value.get(key)) for key in ("source", "torch", "device", "precision", "first", "last"))
        and _mapping(value.get("plugins", {}), _text)
        and _mapping(value.get("steps"), lambda steps: _list(steps, lambda step: _whole(step, 1)))
    )


#: What each value of a record must be.
USABLE: dict[str, Callable[[Any], bool]] = {
    "benchmark": _text,
    "k": _steps,
    "cil": _text,
    "seed": _whole,
    "steps": lambda value: value is None or _whole(value, 1),
    "trained": _whole,
    "seconds": lambda value: _list(value, lambda of_step: _mapping(of_step, _number)),
    "detectors": lambda value: _mapping(value, _whole),
    "config": lambda value: _mapping(value) and _mapping(value.get("detector", {}), _mapping),
    "environment": _environment,
    "data": lambda value: _list(value, _dataset),
    "made": lambda value: value is ... or _list(value, _made),
    "failed": lambda value: value is ... or _text(value),
    "left_out": lambda value: value is ... or _mapping(value, _text),
}


def _leaves(value: object) -> Iterator[object]:
    """Every key and every value that has no parts, however deep."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def showable(text: str) -> bool:
    """Whether nothing in a text would command a terminal, or has no encoding; blanks may be of any width."""
    return all(c.isprintable() or unicodedata.category(c) == "Zs" for c in text)
