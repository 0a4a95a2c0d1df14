"""Run the checks of all that a plugin registers, and collect a verdict for each."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from opencil.config import Config
from opencil.data.file_dataset import FileDataset
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import load_plugin, loaded_plugin, registered_names
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, METRICS
from opencil.testing.backbones import BACKBONE_CHECKS, SIDE
from opencil.testing.benchmarks import BENCHMARK_CHECKS
from opencil.testing.contract import Checks
from opencil.testing.datasets import DATASET_CHECKS
from opencil.testing.detectors import DETECTOR_CHECKS
from opencil.testing.learners import LEARNER_CHECKS
from opencil.testing.metrics import METRIC_CHECKS

_FRAMES = 3  # the last ones in the user's own file


@dataclass(frozen=True)
class Check:
    """A check of one subject; ``left_out`` says why it cannot run here."""

    subject: str  #: such as ``detector margin``
    name: str
    call: Callable[[], None]
    promise: str
    file: Path | None = None
    left_out: str = ""


@dataclass(frozen=True)
class Verdict:
    """The result of a check; ``problem`` is empty if it passed."""

    check: Check
    problem: str = ""
    frames: list[str] = field(default_factory=list)  #: places in the user's own file, the innermost last


def checks_of(plugin: str, root: Path | None = None, side: int = SIDE) -> list[Check]:
    """Return the checks of all that a plugin registers; import the plugin if necessary."""
    load_plugin(plugin)
    contracts: dict[str, tuple[Checks, dict[str, Any]]] = {
        LEARNERS.kind: (LEARNER_CHECKS, {}),
        DETECTORS.kind: (DETECTOR_CHECKS, {}),
        DATASETS.kind: (DATASET_CHECKS, {"root": root, "side": side}),
        BACKBONES.kind: (BACKBONE_CHECKS, {"side": side}),
        METRICS.kind: (METRIC_CHECKS, {}),
    }
    found: list[Check] = []
    for registry, name in registered_names(plugin):
        checks, values = contracts[registry.kind]
        make, left_out = registry.entry(name).make, ""
        if isinstance(make, type) and issubclass(make, FileDataset) and root is None:
            left_out = "its images lie in files: give --data-root"
        file, subject = loaded_plugin(plugin).path, f"{registry.kind} {name}"
        found += [
            Check(subject, check, partial(call, name, **values), _promise(call), file, left_out)
            for check, call in checks.items()
        ]
    if not found:
        raise BadInput(
            f"plugin {plugin} registers nothing: decorate its classes with opencil.register_detector, "
            "register_learner, register_backbone, register_dataset or register_metric"
        )
    return found


def checks_of_benchmark(config: Config) -> list[Check]:
    """Return the checks of a config's benchmark."""
    subject, checks = f"benchmark {config.benchmark.name}", BENCHMARK_CHECKS.items()
    return [Check(subject, name, partial(call, config), _promise(call)) for name, call in checks]


def _promise(check: Callable[..., None]) -> str:
    """Return the first line of a check's docstring."""
    return (check.__doc__ or "").split("\n")[0].replace("``", "")


def verdict(check: Check) -> Verdict:
    """Run a check and return its verdict."""
    try:
        check.call()
    except OpenCILError as error:
        return Verdict(check, f"it is refused: {error}", _frames(error, check.file))
    except AssertionError as error:
        return Verdict(check, str(error) or "AssertionError", _frames(error, check.file))
    except Exception as error:
        return Verdict(check, f"{type(error).__name__}: {error}", _frames(error, check.file))
    return Verdict(check)


def _frames(error: BaseException, file: Path | None) -> list[str]:
    """Return the places in a file that an error and its causes came from."""
    chain, cause = [error], error.__cause__
    while cause is not None:
        chain.insert(0, cause)
        cause = cause.__cause__
    found = [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for one in chain
        for frame in traceback.extract_tb(one.__traceback__)
        if frame.filename == str(file)
    ]
    return list(dict.fromkeys(found))[-_FRAMES:]
