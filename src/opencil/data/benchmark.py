"""A benchmark's data in memory: the ID dataset's two splits and the evaluation sets with their roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from opencil.data.images import Access, Dataset, Images, Split
from opencil.data.roles import ROLES, SHIFTED, Role
from opencil.data.shifted import ShiftedSet
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.errors import BadInput
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
    shifted: dict[str, Images] = field(default_factory=dict)  #: corrupted test images

    def __repr__(self) -> str:
        sets = {role: [name for name, own in self.roles.items() if own == role] for role in ROLES}
        listed = "".join(f"; {role} {', '.join(names)}" for role, names in sets.items() if names)
        counts = f"{len(self.train)} training and {len(self.test)} test images"
        return f"BenchmarkData({self.train.name}: {counts} of {self.train.side} × {self.train.side}{listed})"

    @property
    def roles(self) -> dict[str, Role]:
        """Return the role of each evaluation set by name."""
        return {name: ood.distance for name, ood in self.ood.items()} | dict.fromkeys(self.shifted, SHIFTED)

    def stream(
        self, classes_per_step: int | str, order_seed: int = 1993, order: Sequence[int] | None = None
    ) -> Stream:
        """Return the class-incremental stream; without an ``order`` of classes the seed draws it."""
        return Stream.create(self.train, self.test, classes_per_step, order_seed, order)


def load_data(
    id_name: str,
    ood: Mapping[str, Role],
    *,
    shifted: Mapping[str, ShiftedSet] | None = None,
    image_size: int,
    transform: Transform,
    device: torch.device,
    access: Access = Access(),
    own: Mapping[str, Dataset] | None = None,
) -> BenchmarkData:
    """Load a benchmark's datasets; a name in ``own`` is the user's dataset, other names are registered."""

    def load(name: str, split: Split) -> Images:
        return find_dataset(name, own).serve(name, split, image_size, access).to(device)

    train, test = load(id_name, "train"), load(id_name, "test")
    if train.classes and test.classes and train.classes != test.classes:
        which = ", ".join(sorted({*train.classes} ^ {*test.classes})[:5]) or "they are in another order"
        raise BadInput(f"the classes of {train.name!r} in training and test images differ: {which}")
    return BenchmarkData(
        train,
        test,
        {name: OOD(load(name, "test"), role) for name, role in ood.items()},
        transform.fit(train),
        {name: kind.make(name, test, access.root) for name, kind in (shifted or {}).items()},
    )


def find_dataset(name: str, own: Mapping[str, Dataset] | None = None) -> Dataset:
    """Return the user's own dataset of a name, or the registered dataset."""
    return (own or {}).get(name) or DATASETS.create(name)
