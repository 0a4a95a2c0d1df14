"""The sections of a config: every value that a command will use, by name."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from opencil.config.yml import dump_yaml
from opencil.data.images import Store
from opencil.data.memory import quota
from opencil.data.own_dataset import OwnDataset
from opencil.data.roles import OOD_ROLES, Role
from opencil.data.shifted import ShiftedSet
from opencil.data.stream import StepSizes
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import Arithmetic
from opencil.errors import BadInput, shown, unknown
from opencil.nets.create import Named, checked
from opencil.registry import DATASETS, DETECTORS, LEARNERS, Registry
from opencil.validation import Bound, Count, NonNegative, Positive, Values, Whole, parse_size, plain

Seed = Annotated[int, Bound(ge=0, lt=2**32)]  # what numpy's generators take


@dataclass(frozen=True)
class BenchmarkConfig(Values):
    """A benchmark: ID data in steps, OOD data near and far, the network and what it reads."""

    name: str
    id: str
    near: tuple[str, ...]
    far: tuple[str, ...]
    image_size: Count
    transform: Transform
    backbone: Named
    memory: Count
    classes_per_step: tuple[Count | str, ...]  #: each a grid of its own: 10, 50+10 or 20-20-10
    batch_size: Count = 128
    ood_order: Literal["permutation", "list"] = "permutation"
    datasets: dict[str, OwnDataset] = field(default_factory=dict)  # the user's own, by name
    shifted: dict[str, ShiftedSet] = field(default_factory=dict)  # ID test images under a shift, by name

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_" for c in self.name):
            raise ValueError(f"name = {shown(self.name)} is not allowed: letters, digits, - and _ are")
        if not self.near + self.far:
            raise ValueError("near and far are both empty: at least one OOD dataset is needed")
        try:
            steps = tuple(StepSizes.parse(value).label for value in self.classes_per_step)
        except BadInput as error:
            raise ValueError(str(error)) from None
        if not steps or len(set(steps)) < len(steps):
            raise ValueError(
                f"classes_per_step = {list(steps)} is not allowed: numbers are needed, each once, for a grid "
                "each; the sizes of the steps of one grid are written as 20-20-10"
            )
        object.__setattr__(self, "classes_per_step", steps)
        twice = [name for name, count in Counter(self.near + self.far).items() if count > 1]
        if twice:
            raise ValueError(
                f"near and far name {', '.join(sorted(twice))} twice: each OOD dataset goes in one of them"
            )
        side = self.transform.resize or self.image_size
        if self.transform.crop > side:
            raise ValueError(
                f"transform.crop = {self.transform.crop} is not allowed: it should be at most {side}, "
                f"the size of the images"
            )
        for name in self.datasets:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name in DATASETS.names():
                raise ValueError(
                    f"datasets: the name {shown(name)} is not allowed: lower-case letters, digits, - _ . "
                    "are, and the names of 'opencil list datasets' are taken"
                )
        for name in self.shifted:
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name in (self.id, *self.ood):
                raise ValueError(
                    f"shifted: the name {shown(name)} is not allowed: lower-case letters, digits, - _ . are, "
                    "and the names of other sets are taken"
                )
        for key, names in (("id", (self.id,)), ("near", self.near), ("far", self.far)):
            for name in names:
                if name not in self.datasets:
                    _known(DATASETS, name, key, tuple(self.datasets))
        object.__setattr__(self, "backbone", checked(self.backbone))
        if self.id in self.datasets:
            if not self.datasets[self.id].has_train:
                raise ValueError(
                    f"id = {self.id!r} has no training images: datasets.{self.id}.train is missing"
                )
            return
        if (classes := self._known_classes) is not None:
            self.check_classes(classes)

    @property
    def ood(self) -> dict[str, Role]:
        """The OOD sets with their roles."""
        return {name: role for role in OOD_ROLES for name in getattr(self, role)}

    @property
    def _known_classes(self) -> int | None:
        """How many there are, where that is known before the data are read."""
        return None if self.id in self.datasets else getattr(DATASETS.entry(self.id).make, "classes", None)

    def fewest_kept(self, k: int | str) -> int:
        """Images that the memory has after the step of k classes, or sizes, that leaves it the fewest.

        It has as many of every class, so less than its budget where that cannot be divided. It has fewer
        still where a class has not so many images, or if only the data tell how many classes there are.
        """
        classes = self._known_classes
        seen = accumulate(StepSizes.parse(k).of(classes)) if classes else ()
        return min((quota(self.memory, known) * known for known in seen), default=self.memory)

    def check_classes(self, classes: int) -> None:
        """Refuse values that do not fit the number of classes; called again when the data tell it."""
        for k in self.classes_per_step:
            if isinstance(k, int) and k > classes:
                raise BadInput(
                    f"classes_per_step = {k} is not allowed: 1 to {classes} are, the classes of {self.id!r}"
                )
            StepSizes.parse(k).of(classes)
        quota(self.memory, classes)


@dataclass(frozen=True)
class SeedConfig(Values):
    """The runs' seeds, and which seed each random choice takes: a number, or ``run`` for the run's own."""

    runs: tuple[Seed, ...] = (0,)
    class_order: Seed | Literal["run"] = 1993
    initialisation: Seed | Literal["run"] = "run"
    data_order: Seed | Literal["run"] = "run"
    ood_subset: Seed | Literal["run"] = "run"

    def __post_init__(self) -> None:
        if not self.runs or len(set(self.runs)) < len(self.runs):
            raise ValueError(f"runs = {list(self.runs)} is not allowed: seeds are needed, each of them once")


@dataclass(frozen=True)
class PlaceConfig(Values):
    """Where a command reads, writes and computes: nothing here changes a result's meaning."""

    data_root: str | None = None
    cache: str | None = None  #: of prepared images: $OPENCIL_CACHE, or .opencil-cache in the data root
    store: Store = "auto"  #: images on the device, or streamed from disk
    resident_mb: Count = 1024  #: auto streams what is larger
    workers: Count | None = None  #: threads that decode images
    #: MiB of memory for decoded images of sets that are streamed: a quarter of what is free.
    decoded_mb: Whole | None = None
    threads: Count | None = None  #: that a CPU computes with: as many as torch takes
    runs: str = "runs"
    outputs: str | None = None  #: folder of models' outputs: .outputs in the folder of runs
    outputs_limit: Whole | str = "2GB"  #: the most that it may hold, in bytes or as 2GB; 0: keep none
    checkpoint_seconds: NonNegative = 60.0  #: the least time between two checkpoints of a step
    device: str = "auto"  #: or several GPUs, cuda:0,cuda:1: each has a process, and runs go to who is free
    pack: Count = 1  #: runs that advance together on one GPU
    #: Runs at once: on a CPU in processes of one thread each, unless ``threads`` says more, and with ``auto``
    #: as many as there are processors; on a GPU they are packed. With Ray it is the number of workers.
    jobs: Count | Literal["auto"] | None = (
        None  #: 1; with Ray one for each GPU or, without any, each CPU core
    )
    launcher: Literal["local", "ray"] = "local"  #: processes of this machine, or of a Ray cluster: an extra
    address: str | None = None  #: of the Ray cluster: $RAY_ADDRESS, or the one that this machine is part of
    #: Ranks that torchrun has started wait for each other so long before one is taken for lost.
    rank_seconds: Positive = 600.0
    #: Operations that torch has no deterministic implementation of are refused before anything runs.
    only_deterministic: bool = False
    tensorboard: str | None = None  #: folder for training curves; needs the extra of that name

    def __post_init__(self) -> None:
        for name in ("data_root", "cache", "runs", "outputs", "tensorboard"):
            if (path := getattr(self, name)) is not None:  # a shell expands ~ outside quotes, a file never
                home = os.path.expanduser(path)  # noqa: PTH111 - pathlib fails on the home of nobody
                object.__setattr__(self, name, home)
        if not self.runs:
            raise ValueError("runs = '' is not allowed: it should name a folder")
        kinds = {name.partition(":")[0] for name in self.devices}
        if len(self.devices) > 1 and (len(set(self.devices)) < len(self.devices) or kinds != {"cuda"}):
            raise ValueError(
                f"device = {shown(self.device)} is not allowed: several GPUs are named each once, as "
                "cuda:0,cuda:1; several processes on a CPU are asked for by jobs"
            )
        if self.launcher == "ray" and self.device not in ("auto", "gpu", "cuda", "cpu"):
            raise ValueError(
                f"device = {shown(self.device)} is not allowed with launcher = ray, which gives each worker "
                "a GPU of its own: auto, gpu, cuda and cpu are"
            )
        if self.address is not None and self.launcher != "ray":
            raise ValueError(f"address = {shown(self.address)} is for launcher = ray alone")
        try:
            parse_size(self.outputs_limit)
        except BadInput as error:
            raise ValueError(f"outputs_limit: {error}") from None

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that are named."""
        return tuple(name.strip() for name in self.device.split(","))

    @property
    def outputs_folder(self) -> Path:
        """Where models' outputs are kept."""
        return Path(self.outputs) if self.outputs else Path(self.runs) / ".outputs"


@dataclass(frozen=True)
class Config:
    """A whole command, resolved. ``cil`` and ``detector`` hold every value of every method, by name."""

    benchmark: BenchmarkConfig
    cil: dict[str, dict[str, Any]]
    detector: dict[str, dict[str, Any]]
    training: Arithmetic = field(default_factory=Arithmetic)
    seed: SeedConfig = field(default_factory=SeedConfig)
    place: PlaceConfig = field(default_factory=PlaceConfig)
    metric: tuple[str, ...] = ()  #: measured beside the standard ones
    plugins: tuple[str, ...] = ()  #: files and modules that register names: imported before these are read

    def detectors_of(self, method: str, k: int | str) -> dict[str, dict[str, Any]]:
        """The detectors that a CIL method can have where steps have k classes."""
        return self.without(self.left_out(method, k))

    def left_out(self, method: str, k: int | str) -> dict[str, list[str]]:
        """The detectors that a CIL method cannot have where steps have k classes, by the reason for it."""
        learner: Any = LEARNERS.entry(method).make
        kept = self.benchmark.fewest_kept(k) if learner.remembers else None
        return self.refused(kept, learner.revisits, learner.linear)

    def without(self, refused: Mapping[str, Iterable[str]]) -> dict[str, dict[str, Any]]:
        """The detectors less those that are refused, by the reason for it."""
        left_out = {name for names in refused.values() for name in names}
        return {name: values for name, values in self.detector.items() if name not in left_out}

    def refused(self, kept: int | None, revisits: bool, linear: bool = True) -> dict[str, list[str]]:
        """The detectors that cannot go with models, by the reason for it.

        ``kept`` are the images that the memory has at least, None where there is no memory; ``revisits`` says
        whether images of old classes are seen again, ``linear`` whether the head is W and b.
        """
        found: dict[str, list[str]] = {}
        for name, values in sorted(self.detector.items()):
            detector = DETECTORS.create(name, **values)
            scorer = detector.scores_in_the_end  # of a tuner: it reads a head of the same kind
            few = scorer.fewest if scorer.needs_setup and scorer.set_up_on == "memory" else 0
            if detector.needs_old and not revisits:
                reason = "no images of old classes are seen again, which tuned heads draw on"
            elif "linear" in (scorer.setup_reads or scorer.reads) and not linear:
                reason = "the head is not linear, and is read as W and b"
            elif kept is not None and few > kept:
                reason = (
                    f"{few} images at least are needed for the set-up, and the memory of some step has "
                    f"{kept} (setup = train+, of what scores, takes all that a step learned from)"
                )
            else:
                continue
            found.setdefault(reason, []).append(name)
        return found

    def to_yaml(self) -> str:
        """The YML that gives this config again."""
        return dump_yaml(plain(self))


SECTIONS = tuple(f.name for f in fields(Config))
#: The sections that hold methods by name.
METHODS: dict[str, Registry[Any]] = {"cil": LEARNERS, "detector": DETECTORS}


def _known(registry: Registry[Any], name: str, key: str, others: tuple[str, ...] = ()) -> None:
    if name not in registry.names():
        raise ValueError(f"{key}: {unknown(registry.kind, name, (*registry.names(), *others))}")
