"""A benchmark's data in memory: the ID dataset's two splits and the evaluation sets with their roles."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opencil.data.images import Dataset, FeatureImages, Images, ImageSet
from opencil.data.roles import SHIFTED, Role
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.registry import DATASETS


@dataclass(frozen=True)
class OOD:
    """An OOD test set and its distance from the ID data."""

    images: Images
    distance: Role


@dataclass(frozen=True)
class BenchmarkData:
    """All images that a benchmark's runs read; ``ood`` and ``shifted`` are in the benchmark's order."""

    train: Images
    test: Images
    ood: dict[str, OOD]
    transform: Transform
    shifted: Mapping[str, ImageSet | FeatureImages] = field(default_factory=dict)  #: corrupted test images
    backbone: Any = None  #: of features in place of images: passes them on
    #: Return the same data as features of the frozen backbone, and yield progress where they are computed.
    features: "Callable[[], Generator[Any, None, BenchmarkData]] | None" = None

    def __repr__(self) -> str:
        sets = ", ".join(f"{role} {name}" for name, role in self.roles.items())
        return f"BenchmarkData({self.train!r} to train, {len(self.test)} to test; {sets})"

    @property
    def roles(self) -> dict[str, Role]:
        """Return the role of each evaluation set by name."""
        return {name: ood.distance for name, ood in self.ood.items()} | dict.fromkeys(self.shifted, SHIFTED)

    def stream(self, classes_per_step: int | str, order: int | Sequence[int] = 1993) -> Stream:
        """Return the class-incremental stream; ``order`` is the order of classes, or a seed to draw it."""
        return Stream.create(self.train, self.test, classes_per_step, order)


def find_dataset(name: str, own: Mapping[str, Dataset]) -> Dataset:
    """Return the user's own dataset of a name, or the registered dataset."""
    return own.get(name) or DATASETS.create(name)
