"""The order of work: train a step, compute its outputs once, evaluate every detector, go on."""

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opencil._version import __version__
from opencil.cil.learner import Learner, Setting, begin, empty_model
from opencil.config import Config, resolve
from opencil.data.benchmark import BenchmarkData, load_data
from opencil.data.memory import Memory
from opencil.data.stream import Step, count_classes
from opencil.engine.device import resolve_device
from opencil.engine.loop import Progress
from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.metrics import accuracy
from opencil.evaluation.protocol import Measurement
from opencil.nets.model import Model
from opencil.registry import LEARNERS
from opencil.runs import files
from opencil.runs.cache import OutputsCache
from opencil.runs.evaluation import Evaluation
from opencil.runs.plan import RunSpec, plan
from opencil.runs.store import RunFolder
from opencil.validation import parse_size


@dataclass(frozen=True)
class Event:
    """Something happened in a run."""

    run: RunSpec


@dataclass(frozen=True)
class Training(Event):
    """One more training iteration of a step is done."""

    step: int
    steps: int
    progress: Progress


@dataclass(frozen=True)
class Evaluated(Event):
    """A detector's rows of a step are stored."""

    step: int
    steps: int
    detector: str


@dataclass(frozen=True)
class Finished(Event):
    """A run is complete; ``already`` says that nothing was left to do."""

    already: bool


@dataclass(frozen=True)
class Failed(Event):
    """A run stopped with an error; what it had stored stays, and other runs go on."""

    error: OpenCILError


def execute(config: Config) -> Iterator[Event]:
    """Do all that a config asks for and is not done yet, yielding events as it happens."""
    device = resolve_device(config.place.device)
    root = config.place.data_root
    if root is not None and not Path(root).is_dir():
        raise BadInput(f"place.data_root = {root!r} is not allowed: there is no such folder")
    cache = OutputsCache(config.place.cache_folder, parse_size(config.place.cache_limit))
    data: BenchmarkData | None = None  # loaded when the first run needs it
    for spec in plan(config):
        folder = RunFolder(Path(config.place.runs) / spec.folder)
        if folder.finished(spec):
            yield Finished(spec, already=True)
            continue
        try:
            with folder.opened(spec):
                files.write_json(folder.path / "environment.json", environment(device))
                data = data or load(config)
                yield from _Run(spec, folder, data, cache).advance()
        except BadInput:
            raise
        except OpenCILError as error:
            yield Failed(spec, error)
        else:
            yield Finished(spec, already=False)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and device, for a run's record."""
    return {
        "opencil": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
    }


def load(config: Config) -> BenchmarkData:
    """The data of a config's benchmark, on the config's device."""
    benchmark, place = config.benchmark, config.place
    data = load_data(
        benchmark.id,
        benchmark.near,
        benchmark.far,
        image_size=benchmark.image_size,
        transform=benchmark.transform,
        device=resolve_device(place.device),
        root=Path(place.data_root) if place.data_root else None,
    )
    benchmark.check_classes(count_classes(data.train))
    return data


def benchmark(name: str, data_root: str | None = None, device: str = "cpu") -> BenchmarkData:
    """A shipped benchmark's data, to work with in Python: images, OOD sets, class-incremental stream."""
    return load(resolve({"benchmark": name, "place": {"data_root": data_root, "device": device}}))


class _Run:
    """One run in progress."""

    def __init__(self, spec: RunSpec, folder: RunFolder, data: BenchmarkData, cache: OutputsCache) -> None:
        self.spec, self.folder, self.data = spec, folder, data
        self.stream = data.stream(spec.classes_per_step, spec.seeds.class_order)
        self.learner: Learner = LEARNERS.create(spec.cil, **spec.values)
        self.setting = Setting(
            images=self.stream.train,
            transform=data.transform,
            backbone=spec.benchmark.backbone,
            batch_size=spec.benchmark.batch_size,
            initialisation_seed=spec.seeds.initialisation,
            data_seed=spec.seeds.data_order,
        )
        self.evaluation = Evaluation(spec, data, self.stream, cache)

    def advance(self) -> Iterator[Event]:
        """Train and evaluate what is missing, step by step."""
        for step in self.stream:
            stored = self.folder.step(step.number)
            missing = [name for name in self.spec.detectors if not stored.detector_rows(name).exists()]
            if stored.trained and not missing:
                continue
            if not stored.trained:
                yield from self._train(step)
            yield from self._evaluate(step, missing)

    def _train(self, step: Step) -> Iterator[Event]:
        started = time.monotonic()
        task = begin(self.setting, step, self._memory(step.number - 1), self._model(step.number - 1))
        for progress in self.learner.learn(task):
            yield Training(self.spec, step.number, step.steps, progress)
        memory = self.learner.remember(task)
        test = self.evaluation.outputs_of_test(task.model, step)
        assert test.labels is not None
        found = [Measurement("", "accuracy", accuracy(test.logits, test.labels))]
        self.folder.step(step.number).save(
            weights=task.model.state_dict(),
            memory=memory,
            accuracy=self.evaluation.rows(step, "", found),
            info={
                "step": step.number,
                "steps": step.steps,
                "classes": step.seen,
                "seconds": time.monotonic() - started,
            },
        )

    def _evaluate(self, step: Step, names: list[str]) -> Iterator[Event]:
        if not names:
            return
        model, stored = self._model(step.number), self.folder.step(step.number)
        assert model is not None
        weights = str(stored.info()["weights_sha256"])
        for name, rows in self.evaluation.detect(model, weights, step, self._setup(step), names):
            files.write_rows(stored.detector_rows(name), rows)
            yield Evaluated(self.spec, step.number, step.steps, name)

    def _model(self, number: int) -> Model | None:
        """θ of a stored step; None before the first."""
        if number == 0:
            return None
        model = empty_model(self.setting, self.stream[number - 1].seen)
        stored = self.folder.step(number)
        try:
            model.load_state_dict(stored.weights(), strict=True)
        except RuntimeError as error:
            raise files.damaged(stored.path / "model.safetensors", error) from None
        return model

    def _memory(self, number: int) -> Memory:
        """The memory after a stored step; empty before the first."""
        size = self.spec.benchmark.memory
        return self.folder.step(number).memory(size) if number else Memory(size)

    def _setup(self, step: Step) -> Tensor:
        """Indices of the images that detectors are set up on: T_t^train+, or the memory after the step."""
        if self.spec.benchmark.setup == "memory":
            return self._memory(step.number).indices
        return torch.cat([step.train, self._memory(step.number - 1).indices])
