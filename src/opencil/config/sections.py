"""The sections of a config: every value of a command, by name."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import Field

from opencil.config.yml import dump_yaml
from opencil.data.file_dataset import OwnDataset
from opencil.data.images import Store
from opencil.data.memory import Memory
from opencil.data.roles import FUTURE, OOD_ROLES, Role
from opencil.data.shifted import ShiftedSet
from opencil.data.stream import StepSizes
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import Arithmetic
from opencil.errors import BadInput, not_allowed, shown, unknown
from opencil.nets.create import COMMON, Named, check_backbone
from opencil.registry import DATASETS, DETECTORS, LEARNERS, Registry
from opencil.validation import Bound, Count, Key, NonNegative, Positive, Values, keys_below, plain, suggest

SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Workers = Annotated[int, Bound(ge=1, le=1024)]  # threads or processes
Seed = Annotated[int, Bound(ge=0, lt=2**32)]  # what numpy's generators take


@dataclass(frozen=True)
class BenchmarkConfig(Values):
    """A benchmark: ID data in steps, OOD data near and far, the backbone and its images."""

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]
    id: str
    near: tuple[str, ...] = field(default=(), kw_only=True)  # one OOD set at least is needed
    far: tuple[str, ...] = field(default=(), kw_only=True)
    image_size: Count
    transform: Transform
    backbone: Named
    classes_per_step: tuple[Count | str, ...]  #: each a grid of its own: 10, 50+10 or 20-20-10
    memory: Annotated[int, Bound(ge=0)] = 0  #: exemplars of all classes; 0 for methods that keep none
    batch_size: Count = 128
    ood_order: Literal["permutation", "list"] = "permutation"
    datasets: dict[SetName, OwnDataset] = field(default_factory=dict)  # the user's own, by name
    shifted: dict[SetName, ShiftedSet] = field(default_factory=dict)  # ID test images under a shift, by name
    memory_per_class: Count | None = None  #: exemplars of each class, in place of ``memory``

    def __post_init__(self) -> None:
        steps = tuple(StepSizes.parse(value).label for value in self.classes_per_step)
        if not steps or len(set(steps)) < len(steps):
            raise not_allowed("classes_per_step", [*steps], "sizes are needed, each once, as 20-20-10")
        object.__setattr__(self, "classes_per_step", steps)
        self._check_names()
        if self.id in self.datasets:
            divided = self.datasets | {self.id: self.datasets[self.id].divide()}
            object.__setattr__(self, "datasets", divided)
        if self.transform.crop > (side := self.transform.resize or self.image_size):
            raise not_allowed("transform.crop", self.transform.crop, f"images have {side} pixels a side")
        object.__setattr__(self, "backbone", check_backbone(self.backbone))
        if (classes := self._known_classes) is not None:
            self.check_classes(classes)

    def _check_names(self) -> None:
        """Refuse sets named twice, and names neither known nor usable as new ones."""
        ood = self.near + self.far
        if not ood or len(set(ood)) < len(ood):
            raise ValueError(f"near and far = {list(ood)} are not allowed: OOD sets are needed, each once")
        for key, taken in (("datasets", [*DATASETS.names(), FUTURE]), ("shifted", [self.id, *ood, FUTURE])):
            if both := getattr(self, key).keys() & set(taken):
                raise ValueError(f"{key}: {sorted(both)} are names of other sets: new ones are needed")
        known = (*DATASETS.names(), *self.datasets)
        for key, name in [("id", self.id), *((role, name) for name, role in self.ood.items())]:
            if name not in known:
                raise ValueError(f"{key}: {unknown(DATASETS.kind, name, known)}")

    @property
    def ood(self) -> dict[str, Role]:
        """Return the OOD sets with their roles."""
        return {name: role for role in OOD_ROLES for name in getattr(self, role)}

    @property
    def stores_features(self) -> bool:
        """Return whether features of all images are computed once: a frozen backbone has its own weights.

        It has not with random changes of images, nor with its value ``recompute``.
        """
        named = self.backbone
        if isinstance(named, str) or self.transform.varies(self.image_size) or named.get("recompute"):
            return False
        return bool(named.get("freeze") and (named.get("weights") or named.get("pretrained")))

    @property
    def _known_classes(self) -> int | None:
        """Return the number of classes, or None where only the data can say it."""
        return None if self.id in self.datasets else getattr(DATASETS.entry(self.id).make, "classes", None)

    @property
    def empty_memory(self) -> Memory:
        """Return the memory before the first step."""
        return Memory(self.memory, fixed=self.memory_per_class)

    def fewest_kept(self, k: int | str) -> int:
        """Return the smallest size of the memory after any step.

        Every class has as many exemplars, so a budget that cannot be divided is not used up. The memory can
        be smaller still where a class has fewer images, or where the number of classes is not known yet.
        """
        classes = self._known_classes
        seen = accumulate(StepSizes.parse(k).of(classes)) if classes else ()
        kept = (self.empty_memory.quota(known) * known for known in seen)
        return min(kept, default=self.memory_per_class or self.memory)

    def check_classes(self, classes: int) -> None:
        """Refuse values that do not fit the number of classes; called again once the data are read."""
        for k in self.classes_per_step:
            if isinstance(k, int) and k > classes:
                raise not_allowed("classes_per_step", k, f"1 to {classes} are, the classes of {self.id!r}")
            StepSizes.parse(k).of(classes)
        if self.memory:
            self.empty_memory.quota(classes)


@dataclass(frozen=True)
class SeedConfig(Values):
    """Seeds of the runs, and the seed of each random choice: a number, or ``run`` for the run's own."""

    runs: Annotated[tuple[Seed, ...], Field(max_length=10_000)] = (0,)
    class_order: Seed | Literal["run"] = 1993
    initialisation: Seed | Literal["run"] = "run"
    data_order: Seed | Literal["run"] = "run"
    ood_subset: Seed | Literal["run"] = "run"

    def __post_init__(self) -> None:
        if not self.runs or len(set(self.runs)) < len(self.runs):
            raise not_allowed("runs", [*self.runs], "seeds are needed, each once")


@dataclass(frozen=True)
class PlaceConfig(Values):
    """Where a command reads, writes and computes: no value here changes a result's meaning."""

    data_root: str | None = None
    cache: str | None = None  #: of prepared images: $OPENCIL_CACHE, or .opencil-cache in the data root
    store: Store = "auto"  #: images on the device, or streamed from disk
    resident_mb: Count = 1024  #: auto streams larger datasets
    workers: Workers | None = None  #: threads that decode images
    threads: Workers | None = None  #: that a CPU computes with: as many as torch takes
    runs: Annotated[str, Field(min_length=1)] = "runs"
    checkpoint_seconds: NonNegative = 60.0  #: the least time between two checkpoints of a step
    device: str = "auto"  #: or several GPUs, cuda:0,cuda:1: one process each, which share the runs
    pack: Workers = 1  #: runs that advance together on one GPU
    #: Runs at once: on a CPU in processes of one thread each, unless ``threads`` says more; on a GPU packed.
    #: ``auto``: one for each processor. With Ray: the number of workers, by default one for each GPU or,
    #: without any, each CPU core.
    jobs: Workers | Literal["auto"] | None = None
    launcher: Literal["local", "ray"] = "local"  #: processes of this machine, or of a Ray cluster: an extra
    address: str | None = None  #: of the Ray cluster: $RAY_ADDRESS, or the cluster of this machine
    rank_seconds: Positive = 600.0  #: how long ranks of torchrun wait for one that does not answer
    only_deterministic: bool = False  #: refuse operations without a deterministic implementation
    log: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()  #: loggers; each needs its extra
    tensorboard: str | None = None  #: folder of that logger, which it also asks for

    def __post_init__(self) -> None:
        for name in ("data_root", "cache", "runs", "tensorboard"):
            if (path := getattr(self, name)) is not None:  # a shell expands ~ outside quotes, a file never
                home = os.path.expanduser(path)  # noqa: PTH111 - pathlib fails on the home of nobody
                object.__setattr__(self, name, home)
        kinds = {name.partition(":")[0] for name in self.devices}
        if len(self.devices) > 1 and (len(set(self.devices)) < len(self.devices) or kinds != {"cuda"}):
            raise not_allowed("device", self.device, "cuda:0,cuda:1 are two GPUs")
        if self.launcher == "ray" and self.device not in ("auto", "gpu", "cuda", "cpu"):
            raise BadInput(f"device = {shown(self.device)} is not allowed with ray: auto, gpu and cpu are")
        if self.address is not None and self.launcher != "ray":
            raise BadInput(f"address = {shown(self.address)} is for launcher = ray alone")

    @property
    def loggers(self) -> list[str]:
        """Return the names of the loggers."""
        return list(dict.fromkeys([*self.log, *["tensorboard"] * (self.tensorboard is not None)]))

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices."""
        return tuple(name.strip() for name in self.device.split(","))


@dataclass(frozen=True)
class Config:
    """All values of a command. ``cil`` and ``detector`` hold every value of every method, by name."""

    benchmark: BenchmarkConfig
    cil: dict[str, dict[str, Any]]
    detector: dict[str, dict[str, Any]]
    training: Arithmetic = field(default_factory=Arithmetic)
    seed: SeedConfig = field(default_factory=SeedConfig)
    place: PlaceConfig = field(default_factory=PlaceConfig)
    metric: tuple[str, ...] = ()  #: beside the standard ones
    plugins: tuple[str, ...] = ()  #: files and modules that register names
    preset: str = ""  #: ``paper``: values of the paper's released code, where methods have other defaults

    def detectors_of(self, method: str, k: int | str) -> dict[str, dict[str, Any]]:
        """Return the detectors usable with a CIL method where steps have k classes."""
        return self.without(self.left_out(method, k))

    def left_out(self, method: str, k: int | str) -> dict[str, list[str]]:
        """Return the detectors not usable with a CIL method where steps have k classes, by reason."""
        learner: Any = LEARNERS.entry(method).make
        exemplars = self.benchmark.fewest_kept(k) if learner.remembers else None
        stored = self.benchmark.stores_features and not learner.needs_images
        return self.refused(exemplars, learner.revisits, learner.linear, stored)

    def without(self, refused: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Any]]:
        """Return the detectors less the refused ones; ``refused`` has them by reason."""
        names = {name for names in refused.values() for name in names}
        return {name: values for name, values in self.detector.items() if name not in names}

    def refused(
        self, exemplars: int | None, revisits: bool, linear: bool = True, stored: bool = False
    ) -> dict[str, list[str]]:
        """Return the detectors not usable with models, by reason.

        ``exemplars`` is the least size of the memory, None without one; ``revisits`` says whether images of
        old classes are seen again, ``linear`` whether the head is W and b, ``stored`` whether there are
        stored features in place of images.
        """
        found: dict[str, list[str]] = {}
        for name, values in sorted(self.detector.items()):
            detector = DETECTORS.create(name, **values)
            scorer = detector.scorer  # of a tuner: it reads a head of the same kind
            few = scorer.fewest if scorer.needs_setup and scorer.set_up_on == "memory" else 0
            if detector.needs_old and not revisits:
                reason = "tuned heads need images of old classes, which are not seen again"
            elif "linear" in (scorer.setup_reads or scorer.reads) and not linear:
                reason = "the head is not linear: W and b cannot be read"
            elif stored and detector.needs_images:
                reason = "features are stored without images and stages; see backbone.recompute = true"
            elif exemplars is not None and few > exemplars:
                reason = f"its set-up needs {few} images, and memory has {exemplars}; see setup = train+"
            else:
                continue
            found.setdefault(reason, []).append(name)
        return found

    def to_yaml(self) -> str:
        """Return a YML with all values of this config."""
        return dump_yaml(plain(self))


SECTIONS = tuple(f.name for f in fields(Config))
#: The sections that hold methods by name.
METHODS: dict[str, Registry[Any]] = {"cil": LEARNERS, "detector": DETECTORS}


def config_keys() -> list[Key]:
    """Return the possible keys of a config, except names chosen by users."""
    keys: list[Key] = [(s.name, *key) for s in fields(Config) for key in [(), *keys_below(s.type)]]
    keys += [("benchmark", "backbone", name) for name in COMMON]
    for kind, registry in METHODS.items():
        for name in registry.names():
            own = [(), *keys_below(registry.entry(name).make)]
            keys += [(kind, each, *key) for each in (name, "*") for key in own]
    return list(dict.fromkeys(keys))


def suggest_key(written: Sequence[str]) -> str:
    """Return ``; did you mean cil.icarl.first.lr?`` for an unknown key that some section has elsewhere."""
    return suggest([part.partition("@")[0] for part in written], config_keys())
