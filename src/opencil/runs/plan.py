"""From a config to the runs it asks for."""

from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.cil.learner import Learner
from opencil.config import BenchmarkConfig, Config
from opencil.data.stream import Step, ood_subset
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.seeding import derive
from opencil.errors import BadInput
from opencil.evaluation.metric import metric_of
from opencil.plugins import Notes, notes_of
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, METRICS, Registry
from opencil.study.records import Identity
from opencil.validation import plain


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
    metrics: tuple[str, ...] = ()  #: asked for beside the standard ones; they decide nothing that is stored
    #: What stands for the method where models come from elsewhere: see ``runs.foreign``.
    foreign: Learner | None = field(default=None, compare=False, repr=False)

    def learner(self) -> Learner:
        """The method."""
        if self.foreign is not None:
            return self.foreign
        learner: Learner = LEARNERS.create(self.cil, **self.values)
        return learner

    @property
    def metrics_of_model(self) -> list[str]:
        """Those of them that are of the CIL model itself."""
        return [name for name in self.metrics if metric_of(name).of_model]

    @property
    def metrics_of_detectors(self) -> list[str]:
        """Those of them that each detector has."""
        return [name for name in self.metrics if not metric_of(name).of_model]

    @property
    def classes_per_step(self) -> int | str:
        """The run's k."""
        return self.benchmark.classes_per_step[0]

    @property
    def folder(self) -> Path:
        """Where the run lies below the folder of runs."""
        return Path(self.benchmark.name) / f"k{self.classes_per_step}" / self.cil / f"seed{self.seeds.run}"

    def __str__(self) -> str:
        return self.folder.as_posix()

    @property
    def identity(self) -> Identity:
        """What tells the run from others, as its rows have it."""
        return self.benchmark.name, self.classes_per_step, self.cil, self.seeds.run

    def ood_seen(self, name: str, count: int, step: Step) -> Tensor:
        """Indices of the images that a step sees of an OOD set with so many."""
        seed = derive(self.seeds.ood_subset, "ood", name)
        return ood_subset(count, step.number, step.steps, self.benchmark.ood_order, seed)

    def record(self) -> dict[str, Any]:
        """Every value that decides the run's result, for its stored config."""
        return {
            "benchmark": plain(self.benchmark),
            "cil": {self.cil: self.values},
            "training": plain(self.training),
            "seed": plain(self.seeds),
            "detector": self.detectors,
        } | ({"foreign": True} if self.foreign is not None else {})

    def plugins(self, *detectors: str) -> Notes:
        """The plugins that rows of the run come from: of its model, and of some detectors."""
        return notes_of(self.names(*detectors))

    def names(self, *detectors: str) -> list[tuple[Registry[Any], str]]:
        """The registered names that rows of the run come from: of its model, and of some detectors."""
        b = self.benchmark
        backbone = b.backbone if isinstance(b.backbone, str) else b.backbone["name"]
        names: list[tuple[Registry[Any], str]] = [(LEARNERS, self.cil), (BACKBONES, backbone)]
        names += [(DATASETS, name) for name in (b.id, *b.ood) if name not in b.datasets]
        names += [(METRICS, name) for name in (self.metrics if detectors else self.metrics_of_model)]
        return [*names, *((DETECTORS, name) for name in detectors)]


def defaults(record: dict[str, Any]) -> dict[str, Any]:
    """A record's optional values as they are when nothing is said: what one that is new now was before."""
    optional, transform = (
        {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        for cls in (BenchmarkConfig, Transform)
    )
    optional |= {
        f.name: f.default_factory() for f in fields(BenchmarkConfig) if f.default_factory is not MISSING
    }
    optional["transform"] = transform
    # Models from elsewhere come from no method that is known here.
    methods = {"detector": DETECTORS} | ({} if record.get("foreign") else {"cil": LEARNERS})
    return {"benchmark": optional, "training": plain(Arithmetic())} | {
        section: {name: plain(registry.create(name)) for name in record[section]}
        for section, registry in methods.items()
    }


def in_todays_terms(record: dict[str, Any]) -> dict[str, Any]:
    """A stored record with values that it does not have as they were then: what a detector did ``formerly``.

    ``benchmark.setup`` was one for all detectors.
    """
    benchmark = dict(record["benchmark"])
    everywhere = {"setup": benchmark.pop("setup")} if "setup" in benchmark else {}
    known = {name: getattr(DETECTORS.entry(name).make, "formerly", {}) for name in DETECTORS.names()}
    detectors = {}
    for name, values in record["detector"].items():
        then = known.get(name.partition("@")[0], {})
        if not isinstance(values, dict) or then.keys() & values.keys():
            # It is of today, or no mapping and refused by those who read it, with its place.
            detectors[name] = values
            continue
        said = {value: everywhere[value] for value in everywhere if value in then}
        detectors[name] = {**then, **said, **values}
    return record | {"benchmark": benchmark, "detector": detectors}


def plan(config: Config) -> list[RunSpec]:
    """The runs of a config: every step size × seed × method, methods innermost so that they compare early."""
    return [
        spec_of(config, k, seed, name, values, config.detectors_of(name, k))
        for k in config.benchmark.classes_per_step
        for seed in config.seed.runs
        for name, values in config.cil.items()
    ]


def spec_of(
    config: Config,
    k: int | str,
    seed: int,
    cil: str,
    values: dict[str, Any],
    detectors: dict[str, dict[str, Any]],
    foreign: Learner | None = None,
) -> RunSpec:
    """One run under a config."""
    for name in config.metric:
        if metric_of(name).reads_shifted and not config.benchmark.shifted:
            raise BadInput(
                f"metric {name!r} reads shifted images, and benchmark {config.benchmark.name!r} has none: "
                "name some in benchmark.shifted"
            )
    return RunSpec(
        benchmark=replace(config.benchmark, classes_per_step=(k,)),
        cil=cil,
        values=values,
        training=config.training,
        seeds=seeds_of(config, seed),
        detectors=detectors,
        metrics=config.metric,
        foreign=foreign,
    )


def seeds_of(config: Config, run: int) -> Seeds:
    """The seeds of a run under a config."""
    values = {name: value for name, value in plain(config.seed).items() if name != "runs"}
    return Seeds(run=run, **{name: run if value == "run" else value for name, value in values.items()})
