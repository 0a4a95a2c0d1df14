"""Run the checks of everything a plugin registers, and return a verdict for each."""

import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from opencil.config import Config
from opencil.data.file_dataset import FileDataset
from opencil.errors import BadInput, OpenCILError
from opencil.plugins import import_plugin
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, METRICS, REGISTRIES
from opencil.testing.backbones import BACKBONE_CHECKS
from opencil.testing.benchmarks import BENCHMARK_CHECKS
from opencil.testing.contract import SIDE, Checks
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
    call: "partial[None]"
    file: str | None = None
    left_out: str = ""

    @property
    def promise(self) -> str:
        """Return the first line of the check's docstring."""
        return (self.call.func.__doc__ or "").split("\n")[0].replace("``", "")


class Verdict(NamedTuple):
    """The result of a check; ``problem`` is empty if it passed."""

    problem: str
    frames: list[str]  #: places in the user's own file, the innermost last


def checks_of(plugin: str, root: Path | None = None, side: int = SIDE) -> list[Check]:
    """Return the checks of everything a plugin registers; import the plugin if necessary."""
    own = import_plugin(plugin)
    contracts: dict[str, tuple[Checks, dict[str, Any]]] = {
        LEARNERS.kind: (LEARNER_CHECKS, {}),
        DETECTORS.kind: (DETECTOR_CHECKS, {}),
        DATASETS.kind: (DATASET_CHECKS, {"root": root, "side": side}),
        BACKBONES.kind: (BACKBONE_CHECKS, {"side": side}),
        METRICS.kind: (METRIC_CHECKS, {}),
    }
    found: list[Check] = []
    registered = [(r, name) for r in REGISTRIES for name in r.names() if r.plugin_of(name) == own.name]
    for registry, name in registered:
        checks, values = contracts[registry.kind]
        make = registry.entry(name).make
        needs_files = isinstance(make, type) and issubclass(make, FileDataset) and root is None
        left_out = "its images lie in files: give --data-root" if needs_files else ""
        subject = f"{registry.kind} {name}"
        calls = {check: partial(call, name, **values) for check, call in checks.items()}
        found += [Check(subject, check, call, own.module.__file__, left_out) for check, call in calls.items()]
    if not found:
        raise BadInput(
            f"plugin {plugin} registers nothing: decorate its classes with opencil.register_detector, "
            "register_learner, register_backbone, register_dataset or register_metric"
        )
    return found


def checks_of_benchmark(config: Config) -> list[Check]:
    """Return the checks of a config's benchmark."""
    subject = f"benchmark {config.benchmark.name}"
    return [Check(subject, name, partial(call, config)) for name, call in BENCHMARK_CHECKS.items()]


def verdict(check: Check) -> Verdict:
    """Run a check and return its verdict."""
    try:
        check.call()
    except Exception as error:
        kind = "it is refused" if isinstance(error, OpenCILError) else type(error).__name__
        broken = isinstance(error, AssertionError) and str(error)
        return Verdict(broken or f"{kind}: {error}".removesuffix(": "), _frames(error, check.file))
    return Verdict("", [])


def _frames(error: BaseException, file: str | None) -> list[str]:
    """Return the places in a file where an error and its causes were raised."""
    chain = [error]
    while (cause := chain[0].__cause__) is not None:
        chain.insert(0, cause)
    frames = [frame for one in chain for frame in traceback.extract_tb(one.__traceback__)]
    places = [
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in frames
        if frame.filename == file
    ]
    return list(dict.fromkeys(places))[-_FRAMES:]
