"""From a config to the runs it asks for."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.cil.learner import Learner
from opencil.config import BenchmarkConfig, Config
from opencil.data.stream import Step, StepSizes, ood_subset
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.seeding import derive
from opencil.errors import BadInput, shown
from opencil.evaluation.metric import metric_of
from opencil.plugins import Notes, notes_of
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, METRICS, Registry
from opencil.study.records import Identity, name_of
from opencil.validation import flat, plain

#: Training images of a class, where a dataset does not declare its number: as CIFAR-100's.
_IMAGES_PER_CLASS = 500
#: Values that say where a file lies; its checksum, beside them, identifies it.
_PLACES = {"benchmark.backbone.weights"}


@dataclass(frozen=True)
class Seeds:
    """The seed of each independent random choice in one run."""

    run: int
    class_order: int
    initialisation: int
    data_order: int
    ood_subset: int


@dataclass(frozen=True)
class RunSpec:
    """One CIL method, on one benchmark with one step size, at one seed, under some detectors."""

    benchmark: BenchmarkConfig
    cil: str
    values: dict[str, Any]
    training: Arithmetic
    seeds: Seeds
    detectors: dict[str, dict[str, Any]]
    metrics: tuple[str, ...] = ()  #: measured beside the standard metrics; they decide nothing that is stored
    #: Learner that stands for the method where models come from elsewhere: see ``runs.foreign``.
    foreign: Learner | None = field(default=None, compare=False, repr=False)

    def learner(self) -> Learner:
        """Return the method."""
        if self.foreign is not None:
            return self.foreign
        learner: Learner = LEARNERS.create(self.cil, **self.values)
        return learner

    def metrics_of(self, detector: str) -> list[str]:
        """Return the additional metrics of a detector, or of the CIL model for ''."""
        return [name for name in self.metrics if metric_of(name).of_model == (not detector)]

    @property
    def classes_per_step(self) -> int | str:
        """Return the run's k."""
        return self.benchmark.classes_per_step[0]

    @property
    def folder(self) -> Path:
        """Return the run's folder below the folder of runs."""
        return Path(name_of(*self.identity))

    def __str__(self) -> str:
        return name_of(*self.identity)

    @property
    def identity(self) -> Identity:
        """Return the identifying columns of the run's rows."""
        return self.benchmark.name, self.classes_per_step, self.cil, self.seeds.run

    def ood_seen(self, name: str, count: int, step: Step) -> Tensor:
        """Return the indices of a step's part of an OOD set with ``count`` images."""
        seed = derive(self.seeds.ood_subset, "ood", name)
        return ood_subset(count, step.number, step.steps, self.benchmark.ood_order, seed)

    def record(self) -> dict[str, Any]:
        """Return every value behind the run's result, for its stored config."""
        benchmark = plain(self.benchmark)
        of_datasets = ((values, "split") for values in benchmark["datasets"].values())
        for values, key in [(benchmark, "memory_per_class"), *of_datasets]:
            if values[key] is None:  # records of runs without these values do not name them
                del values[key]
        record: dict[str, Any] = {
            "benchmark": benchmark,
            "cil": {self.cil: self.values},
            "training": plain(self.training),
            "seed": plain(self.seeds),
            "detector": self.detectors,
        }
        further = {"foreign": self.foreign is not None, "plugins": self.plugins(*self.detectors)}
        return record | {key: value for key, value in further.items() if value}

    def plugins(self, *detectors: str) -> Notes:
        """Return the plugins behind rows of the model and of some detectors."""
        return notes_of(self.names(*detectors))

    def names(self, *detectors: str) -> list[tuple[Registry[Any], str]]:
        """Return the registered names behind rows of the model and of some detectors."""
        b = self.benchmark
        backbone = b.backbone if isinstance(b.backbone, str) else b.backbone["name"]
        names: list[tuple[Registry[Any], str]] = [(LEARNERS, self.cil), (BACKBONES, backbone)]
        names += [(DATASETS, name) for name in (b.id, *b.ood) if name not in b.datasets]
        names += [(METRICS, name) for name in (self.metrics if detectors else self.metrics_of(""))]
        return [*names, *((DETECTORS, name) for name in detectors)]

    @property
    def expected_work(self) -> float:
        """Estimate the work of all trainings from the benchmark alone."""
        return sum(self.works()) or 1.0

    def works(self, images: int | None = None, classes: int | None = None) -> list[float]:
        """Estimate the work of each step's training, as ``Learner.effort`` counts it: in passes of an image.

        ``images`` and ``classes`` are those to train on, where the dataset does not declare them; where none
        are known there are no steps.
        """
        b, learner, works, seen = self.benchmark, self.learner(), list[float](), 0
        made = None if b.id in b.datasets else DATASETS.entry(b.id).make
        if not (classes := classes or getattr(made, "classes", None)):
            return []
        images = images or getattr(made, "counts", {}).get("train", _IMAGES_PER_CLASS * classes)
        for number, size in enumerate(StepSizes.parse(self.classes_per_step).of(classes)):
            kept = (b.memory_per_class or 0) * seen or b.memory
            replayed = kept if number and learner.revisits else 0
            works.append(learner.effort(first=not number) * (size * (images / classes) + replayed))
            seen += size
        return works


def training_values(record: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a run's record that decide the training, by flat keys."""
    deciding = {key: value for key, value in record.items() if key not in ("detector", "plugins")}
    return {key: value for key, value in flat(deciding).items() if key not in _PLACES}


def plan(config: Config) -> list[RunSpec]:
    """Return the runs of a config: every step size × seed × method, methods innermost."""
    return [
        spec_of(config, k, seed, cil=name, values=values, detectors=config.detectors_of(name, k))
        for k in config.benchmark.classes_per_step
        for seed in config.seed.runs
        for name, values in config.cil.items()
    ]


def plan_share(only: str | None) -> Callable[[Config], list[RunSpec]]:
    """Return a function that plans a config's runs, or with ``only`` = ``2/3`` the second of three shares.

    Every run is in exactly one share, which follows from the config alone. The shares cost about the same.
    """
    if only is None:
        return plan
    match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", str(only))
    number, of = map(int, match.groups()) if match else (1, 0)
    if number > of:
        raise BadInput(f"only = {shown(only)} is not allowed: a share is expected, as 1/3, 2/3 or 3/3")

    def planned(config: Config) -> list[RunSpec]:
        specs, loads, mine = plan(config), [0.0] * of, set()
        for spec in sorted(specs, key=lambda spec: (-spec.expected_work, spec.cil, spec.seeds.run)):
            share = loads.index(min(loads))
            loads[share] += spec.expected_work
            if share == number - 1:
                mine.add(spec.folder)
        return [spec for spec in specs if spec.folder in mine]

    return planned


def spec_of(config: Config, k: int | str, seed: int, **of_method: Any) -> RunSpec:
    """Return one run under a config; the other fields are those of its method."""
    for name in config.metric:
        if metric_of(name).reads_shifted and not config.benchmark.shifted:
            raise BadInput(f"metric {name!r} reads shifted images: name some in benchmark.shifted")
    return RunSpec(
        benchmark=replace(config.benchmark, classes_per_step=(k,)),
        training=config.training,
        seeds=seeds_of(config, seed),
        metrics=config.metric,
        **of_method,
    )


def seeds_of(config: Config, run: int) -> Seeds:
    """Return the seeds of a run under a config."""
    values = {name: value for name, value in plain(config.seed).items() if name != "runs"}
    return Seeds(run=run, **{name: run if value == "run" else value for name, value in values.items()})
