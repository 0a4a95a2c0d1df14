"""What a plugin registers, put to the checks of its kinds: a verdict each, with a reason in words."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from opencil.config import Config
from opencil.data.file_dataset import FileDataset
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import load_plugin, loaded, registered
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, METRICS
from opencil.testing.backbones import BACKBONE_CHECKS, SIDE
from opencil.testing.benchmarks import BENCHMARK_CHECKS
from opencil.testing.datasets import DATASET_CHECKS
from opencil.testing.detectors import DETECTOR_CHECKS
from opencil.testing.learners import LEARNER_CHECKS
from opencil.testing.metrics import METRIC_CHECKS

_FRAMES = 3  # of the user's own file, the last ones


@dataclass(frozen=True)
class Check:
    """One promise about one thing; ``left_out`` says why it cannot be tried here."""

    subject: str  #: such as ``detector margin``
    name: str
    call: Callable[[], None]
    promise: str
    file: Path | None = None
    left_out: str = ""


@dataclass(frozen=True)
class Verdict:
    """How a check has ended: ``problem`` is empty where the promise is kept."""

    check: Check
    problem: str = ""
    frames: list[str] = field(default_factory=list)  #: places in the user's own file, the innermost last


def checks_of(plugin: str, root: Path | None = None, side: int = SIDE) -> list[Check]:
    """The checks of all that a plugin registers; it is imported if it has not been."""
    load_plugin(plugin)
    names = list(registered(plugin))
    if not names:
        raise BadInput(
            f"plugin {plugin} registers nothing: decorate what it is about with opencil.register_detector, "
            "register_learner, register_backbone, register_dataset or register_metric"
        )
    contracts: dict[str, tuple[dict[str, Callable[..., None]], dict[str, Any]]] = {
        LEARNERS.kind: (LEARNER_CHECKS, {}),
        DETECTORS.kind: (DETECTOR_CHECKS, {}),
        DATASETS.kind: (DATASET_CHECKS, {"root": root, "side": side}),
        BACKBONES.kind: (BACKBONE_CHECKS, {"side": side}),
        METRICS.kind: (METRIC_CHECKS, {}),
    }
    made = []
    for registry, name in names:
        checks, values = contracts[registry.kind]
        make, left_out = registry.entry(name).make, ""
        if isinstance(make, type) and issubclass(make, FileDataset) and root is None:
            left_out = "its images lie in files: give --data-root"
        for check, call in checks.items():
            bound, subject = partial(call, name, **values), f"{registry.kind} {name}"
            made.append(Check(subject, check, bound, _promise(call), loaded(plugin).path, left_out))
    return made


def checks_of_benchmark(config: Config) -> list[Check]:
    """The checks of a config's benchmark."""
    subject = f"benchmark {config.benchmark.name}"
    return [
        Check(subject, name, partial(call, config), _promise(call)) for name, call in BENCHMARK_CHECKS.items()
    ]


def verdict(check: Check) -> Verdict:
    """Try whether a promise is kept."""
    try:
        check.call()
    except AssertionError as error:
        # One of the user's own has no sentence.
        return Verdict(check, str(error) or "AssertionError", _frames(error, check.file))
    except OpenCILError as error:
        return Verdict(check, f"it is refused: {error}", _frames(error, check.file))
    except Exception as error:
        return Verdict(check, f"{type(error).__name__}: {error}", _frames(error, check.file))
    return Verdict(check)


def _promise(check: Callable[..., None]) -> str:
    return (check.__doc__ or "").split("\n")[0].replace("``", "")


def _frames(error: BaseException, file: Path | None) -> list[str]:
    """Where in a file an error, and what it was raised for, came from."""
    found = [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for one in _chain(error)
        for frame in traceback.extract_tb(one.__traceback__)
        if frame.filename == str(file)
    ]
    return list(dict.fromkeys(found))[-_FRAMES:]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the first cause first."""
    if before := error.__cause__ or error.__context__:
        yield from _chain(before)
    yield error
