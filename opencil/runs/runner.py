"""The order of work: train a step, compute its outputs once, evaluate every detector, go on."""

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from opencil._version import __version__
from opencil.cil.learner import Learner, Setting, Task, begin, empty_model
from opencil.config import Config, PlaceConfig, resolve
from opencil.data.benchmark import BenchmarkData, load_data
from opencil.data.images import Access
from opencil.data.memory import Memory
from opencil.data.stream import Step, count_classes, ood_subset
from opencil.detectors.detector import Detector
from opencil.engine.device import resolve_device
from opencil.engine.forward import Outputs, forward
from opencil.engine.loop import Progress
from opencil.engine.seeding import derive
from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.metrics import accuracy
from opencil.evaluation.protocol import measure
from opencil.nets.model import Model
from opencil.registry import DETECTORS, LEARNERS
from opencil.runs import files
from opencil.runs.plan import RunSpec, plan
from opencil.runs.store import COLUMNS, RunFolder


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
    data: BenchmarkData | None = None  # loaded when the first run needs it
    if config.benchmark.transform.computes:  # or now, since the runs' records hold the computed numbers
        data = load(config)
        config = replace(config, benchmark=replace(config.benchmark, transform=data.transform))
    for spec in plan(config):
        folder = RunFolder(Path(config.place.runs) / spec.folder)
        if folder.finished(spec):
            yield Finished(spec, already=True)
            continue
        try:
            with folder.opened(spec):
                files.write_json(folder.path / "environment.json", environment(device))
                data = data or load(config)
                yield from _Run(spec, folder, data).advance()
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
        access=access(place),
        own=benchmark.datasets,
    )
    benchmark.check_classes(count_classes(data.train))
    return data


def access(place: PlaceConfig) -> Access:
    """How a config's datasets are read and served."""
    return Access(
        root=Path(place.data_root) if place.data_root else None,
        cache=place.cache,
        store=place.store,
        resident_mb=place.resident_mb,
        workers=place.workers,
    )


def benchmark(name: str, data_root: str | None = None, device: str = "cpu") -> BenchmarkData:
    """A shipped benchmark's data, to work with in Python: images, OOD sets, class-incremental stream."""
    return load(resolve({"benchmark": name, "place": {"data_root": data_root, "device": device}}))


class _Run:
    """One run in progress."""

    def __init__(self, spec: RunSpec, folder: RunFolder, data: BenchmarkData) -> None:
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
        test = self._outputs_of_test(task.model, step)
        assert test.labels is not None
        self.folder.step(step.number).save(
            weights=task.model.state_dict(),
            memory=memory,
            accuracy=self._rows(step, "", [("", "accuracy", accuracy(test.logits, test.labels))]),
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
        model = self._model(step.number)
        assert model is not None
        detectors: dict[str, Detector] = {n: DETECTORS.create(n, **self.spec.detectors[n]) for n in names}
        test = self._outputs_of_test(model, step)
        ood = self._outputs_of_ood(model, step)
        setup = (
            self._outputs_of_setup(model, step) if any(d.needs_setup for d in detectors.values()) else None
        )
        for name, detector in detectors.items():
            found = [(m.ood, m.metric, m.value) for m in measure(detector, setup, test, ood)]
            files.write_rows(self.folder.step(step.number).detector_rows(name), self._rows(step, name, found))
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

    def _outputs_of_test(self, model: Model, step: Step) -> Outputs:
        return forward(model, self.stream.test, self.data.transform, step.test)

    def _outputs_of_ood(self, model: Model, step: Step) -> dict[str, Outputs]:
        """Outputs of every OOD set's images that this step sees."""
        found = {}
        for name, ood in self.data.ood.items():
            seed = derive(self.spec.seeds.ood_subset, "ood", name)
            seen = ood_subset(len(ood.images), step.number, step.steps, self.spec.benchmark.ood_order, seed)
            found[name] = forward(model, ood.images, self.data.transform, seen)
        return found

    def _outputs_of_setup(self, model: Model, step: Step) -> Outputs:
        """Outputs of the images that detectors are set up on: T_t^train+, or the memory after the step."""
        if self.spec.benchmark.setup == "memory":
            indices = self._memory(step.number).indices
        else:
            indices = Task(self.setting, step, self._memory(step.number - 1), model, None).train_plus
        return forward(model, self.stream.train, self.data.transform, indices)

    def _rows(self, step: Step, detector: str, found: list[tuple[str, str, float]]) -> pd.DataFrame:
        """Rows of (OOD set, metric, value) measurements."""
        spec = self.spec
        distance = {"": ""} | {name: ood.distance for name, ood in self.data.ood.items()}
        head = (spec.benchmark.name, spec.classes_per_step, spec.cil, spec.seeds.run, step.number, detector)
        return pd.DataFrame(
            [(*head, ood, distance[ood], metric, value) for ood, metric, value in found], columns=COLUMNS
        )
