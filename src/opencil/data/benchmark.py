"""A benchmark's data, loaded: the ID dataset's two splits and the evaluation sets with their roles."""

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
    """An OOD test set and how far it lies from the ID data."""

    images: Images
    distance: Role


@dataclass(frozen=True)
class BenchmarkData:
    """Everything a benchmark's runs read. Rows of ``ood`` are in the benchmark's order."""

    train: Images
    test: Images
    ood: dict[str, OOD]
    transform: Transform
    shifted: dict[str, Images] = field(default_factory=dict)  #: the test images under a shift, in their order

    def __repr__(self) -> str:
        sets = {role: [name for name, own in self.roles.items() if own == role] for role in ROLES}
        listed = "".join(f"; {role} {', '.join(names)}" for role, names in sets.items() if names)
        counts = f"{len(self.train)} training and {len(self.test)} test images"
        return f"BenchmarkData({self.train.name}: {counts} of {self.train.side} × {self.train.side}{listed})"

    @property
    def roles(self) -> dict[str, Role]:
        """The role of every evaluation set, by name."""
        return {name: ood.distance for name, ood in self.ood.items()} | dict.fromkeys(self.shifted, SHIFTED)

    def stream(
        self, classes_per_step: int | str, order_seed: int = 1993, order: Sequence[int] | None = None
    ) -> Stream:
        """The class-incremental stream over it, in a drawn order of the classes or in one that is given."""
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
    """Load a benchmark's datasets: those of the user's ``own`` by their name there, others as registered."""

    def load(name: str, split: Split) -> Images:
        return dataset_of(name, own).serve(name, split, image_size, access).to(device)

    train, test = load(id_name, "train"), load(id_name, "test")
    _same_classes(train, test)
    return BenchmarkData(
        train,
        test,
        {name: OOD(load(name, "test"), role) for name, role in ood.items()},
        transform.fitted(train),
        {name: kind.make(name, test, access.root) for name, kind in (shifted or {}).items()},
    )


def dataset_of(name: str, own: Mapping[str, Dataset] | None = None) -> Dataset:
    """The dataset that a benchmark calls by a name: the user's own, or a registered one."""
    return (own or {}).get(name) or DATASETS.create(name)


def _same_classes(train: Images, test: Images) -> None:
    """Labels are positions among class names: two splits must mean the same by them."""
    if train.classes and test.classes and train.classes != test.classes:
        one, other = set(train.classes), set(test.classes)
        differing = ", ".join(sorted(one ^ other)[:5]) or "in another order"
        raise BadInput(
            f"{train.name!r} has {len(one)} classes in training and {len(other)} in test images, and they "
            f"differ: {differing}"
        )
