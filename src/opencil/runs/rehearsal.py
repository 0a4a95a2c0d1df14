"""Every method tried on a few images, before any run begins, for operations that cannot be deterministic."""

import logging
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from opencil.data.benchmark import BenchmarkData
from opencil.data.stream import Step, Stream
from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.determinism import refused_operation
from opencil.engine.forward import forward
from opencil.engine.ranks import by_itself
from opencil.errors import BadInput
from opencil.registry import DETECTORS
from opencil.runs.advance import train_step
from opencil.runs.plan import RunSpec
from opencil.runs.provenance import device_name
from opencil.runs.run import Run
from opencil.runs.store import RunFolder
from opencil.runs.tuning import tune

_EACH = 16  #: images of a class
_STEPS = 2  #: the second has old classes, and stages that the first may not have
_log = logging.getLogger("opencil.runs")


def require_deterministic(specs: Iterable[RunSpec], data: BenchmarkData, device: torch.device) -> None:
    """Refuse runs of which torch, told to, refuses an operation: all of them are named, with their methods.

    What else goes wrong here is not told: the runs themselves will.
    """
    # Seeds and sizes of steps change no operation, and models from elsewhere may be given only once.
    apart = {spec.cil: spec for spec in specs if spec.foreign is None}
    if apart:
        _log.warning("trying %s on a few images: operations must be deterministic", ", ".join(apart))
    with by_itself():
        refused = dict(found for spec in apart.values() for found in _refused(spec, data))
    if refused:
        told = ", ".join(f"{method} uses {operation}" for method, operation in refused.items())
        raise BadInput(
            f"--deterministic is not possible on {device_name(device)}: {told}, of which torch has no "
            "deterministic implementation there; leave that out, or --deterministic"
        )


def _refused(spec: RunSpec, data: BenchmarkData) -> Iterator[tuple[str, str]]:
    """The methods of a run with operations that torch refuses."""
    spec = replace(spec, values={**spec.values, "epochs": 1})
    with tempfile.TemporaryDirectory(prefix="opencil-rehearsal-") as folder:
        try:
            run = Run(spec, RunFolder(Path(folder)), data)
            run.stream = _Few(run.stream.train, run.stream.test, run.stream.sizes)
            steps = run.stream[:_STEPS]
            for step in steps:
                for _ in train_step(run, step, checkpoint_seconds=float("inf")):
                    pass
        except Exception as error:
            if operation := refused_operation(error):
                yield spec.cil, operation
            return
        for name in spec.detectors:
            try:
                _try_detector(run, name, steps[-1])
            except Exception as error:
                if operation := refused_operation(error):
                    yield name, operation


def _try_detector(run: Run, name: str, step: Step) -> None:
    """Tune, set up and score."""
    detector = DETECTORS.create(name, **run.spec.detectors[name])
    if isinstance(detector, Tuner):
        trained = run.trained(step.number)
        source = run.source(step, run.setting.placed(trained.model))
        stored = run.folder.step(step.number)
        tuning = tune({name: detector}, source, trained.weights, stored, float("inf"))
        while True:
            try:
                next(tuning)
            except StopIteration as end:
                for problem in end.value.values():
                    raise problem from None
                break
    outputs = forward(run.model(step.number), run.stream.test, run.data.transform, step.test)
    run.detector(name, step.number).score(outputs)


class _Few(Stream):
    """The same steps with a few images of each class."""

    def _step(self, index: int) -> Step:
        step = super()._step(index)
        return replace(
            step,
            train=_few(step.train, self.train.labels),
            test=_few(step.test, self.test.labels),
        )


def _few(indices: Tensor, labels: Tensor) -> Tensor:
    of_class = labels.cpu()[indices]
    return torch.cat([indices[of_class == label][:_EACH] for label in sorted(set(of_class.tolist()))])
