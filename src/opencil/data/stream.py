"""The class-incremental stream: which classes come when, and how much OOD data a step sees."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.errors import BadInput, shown


def class_order(classes: int, seed: int = 1993) -> list[int]:
    """The order in which classes are learned; a class's new label is its position in it.

    The old generator, on purpose: it gives the order that the whole field uses.
    """
    return [int(c) for c in np.random.RandomState(seed).permutation(classes)]


#: A text such as 10, 50+10, 20-20-10 or 40-20+10.
_SIZES = re.compile(r"(?:([1-9]\d*(?:-[1-9]\d*)*)\+)?([1-9]\d*(?:-[1-9]\d*)*)")


@dataclass(frozen=True)
class StepSizes:
    """How many classes each step brings.

    ``10``: ten each, and the last takes what is left. ``50+10``: 50 first, then ten each. ``20-20-10``: just
    these. ``first`` are the sizes that are stated one by one, ``then`` is that of all further steps.
    """

    first: tuple[int, ...]
    then: int | None

    @classmethod
    def parse(cls, value: "int | str | StepSizes") -> "StepSizes":
        """The sizes that a number or a text means."""
        if isinstance(value, StepSizes):
            return value
        match = _SIZES.fullmatch(str(value))
        listed = [tuple(map(int, part.split("-"))) for part in (match.groups() if match else ()) if part]
        if not listed or (len(listed) == 2 and len(listed[1]) > 1):
            raise BadInput(
                f"classes_per_step = {shown(value)} is not allowed: a number of classes is (10), or a first "
                "step before it (50+10), or the sizes of all steps (20-20-10)"
            )
        if len(listed) == 1 and len(listed[0]) > 1:
            return cls(listed[0], None)
        first, then = listed[0], listed[-1][0]
        while first and first[-1] == then:  # 10 is 10+10, and that is 10
            first = first[:-1]
        return cls(first, then)

    @property
    def label(self) -> int | str:
        """What names them in folders and rows: a number where steps are equal, a text where they are not."""
        if self.then is None:
            return "-".join(map(str, self.first))
        return f"{'-'.join(map(str, self.first))}+{self.then}" if self.first else self.then

    @property
    def order(self) -> tuple[bool, tuple[int, ...]]:
        """Sorts equal steps before others, and each of them by size: 5, 10, 20, 50+10."""
        return bool(self.first), (*self.first, self.then or 0)

    def of(self, classes: int) -> tuple[int, ...]:
        """The classes of each step, of so many in all; the last takes what is left of equal ones."""
        left = classes - sum(self.first)
        if left < 0 or (left and self.then is None):
            have = f"they are {sum(self.first)} in all" if self.then is None else "the first are more"
            raise BadInput(
                f"classes_per_step = {shown(self.label)} is not allowed: there are {classes} "
                f"classes, and {have}"
            )
        then = self.then or 1
        return (*self.first, *(min(then, left - start) for start in range(0, left, then)))


def ood_subset(count: int, step: int, steps: int, order: Literal["permutation", "list"], seed: int) -> Tensor:
    """Indices of the OOD images of a step: the first ``round(count·t/c)`` of one order, so steps are nested.

    At least one image, so that every step can be measured.
    """
    if count < 1:
        raise BadInput("an OOD dataset has no images: at least one is needed")
    grown = max(1, round(count * step / steps))
    if order == "list":
        return torch.arange(grown)
    return torch.from_numpy(np.random.default_rng(seed).permutation(count)[:grown])


@dataclass(frozen=True)
class Step:
    """One of ``steps`` steps; ``sizes`` are the numbers of classes of the steps up to it.

    ``train`` indexes the training images of the new classes, ``test`` the test images of all classes seen.
    """

    sizes: tuple[int, ...]
    steps: int
    train: Tensor
    test: Tensor

    def __repr__(self) -> str:
        classes = f"classes {self.old} to {self.seen - 1} are new"
        counts = f"{len(self.train)} training and {len(self.test)} test images"
        return f"Step({self.number} of {self.steps}: {classes}, {counts})"

    @property
    def number(self) -> int:
        """Its number, counted from 1."""
        return len(self.sizes)

    @property
    def old(self) -> int:
        """Number of old classes: labels 0 … old − 1 are theirs."""
        return sum(self.sizes[:-1])

    @property
    def seen(self) -> int:
        """Number of classes so far: labels old … seen − 1 are new."""
        return sum(self.sizes)

    @property
    def new(self) -> int:
        """Number of new classes."""
        return self.sizes[-1]

    @property
    def tasks(self) -> list[range]:
        """Labels of each step so far."""
        ends = list(accumulate(self.sizes))
        return [range(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    @property
    def task_of_class(self) -> list[int]:
        """The step, counted from 1, that each class seen came with."""
        return [task for task, labels in enumerate(self.tasks, start=1) for _ in labels]


@dataclass(frozen=True)
class Stream(Sequence[Step]):
    """The steps over a training and a test set whose labels are positions in the class order."""

    train: Images
    test: Images
    sizes: tuple[int, ...]  #: classes of each step

    @classmethod
    def create(
        cls,
        train: Images,
        test: Images,
        per_step: int | str | StepSizes,
        order_seed: int = 1993,
        order: Sequence[int] | None = None,
    ) -> "Stream":
        """Order the classes of a dataset and cut them into steps."""
        classes = count_classes(train)
        if count_classes(test) != classes:
            raise BadInput(
                f"{train.name!r} has {classes} classes in training and {count_classes(test)} in test images"
            )
        order = class_order(classes, order_seed) if order is None else list(order)
        if sorted(order) != list(range(classes)):
            raise BadInput(f"class_order is not allowed: each of 0 to {classes - 1} is needed in it, once")
        sizes = StepSizes.parse(per_step).of(classes)
        return cls(train.relabelled(order), test.relabelled(order), sizes)

    @property
    def classes(self) -> int:
        """Number of classes in all."""
        return sum(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return [self._step(i) for i in range(*index.indices(len(self)))]
        return self._step(range(len(self))[index])

    def __iter__(self) -> Iterator[Step]:
        return (self._step(i) for i in range(len(self)))

    def _step(self, index: int) -> Step:
        sizes = self.sizes[: index + 1]
        seen, old = sum(sizes), sum(sizes[:-1])
        train, test = self.train.labels, self.test.labels
        return Step(
            sizes=sizes,
            steps=len(self),
            train=((train >= old) & (train < seen)).nonzero().flatten().cpu(),
            test=(test < seen).nonzero().flatten().cpu(),
        )


def count_classes(images: Images) -> int:
    """Number of classes; labels must be 0 … C−1 with an image for each."""
    if not len(images):
        raise BadInput(f"{images.name!r} has no images")
    present = torch.unique(images.labels).cpu()
    if not torch.equal(present, torch.arange(len(present))):
        raise BadInput(
            f"labels of {images.name!r} are not 0 … C−1 without a gap: the lowest is {int(present[0])}, "
            f"the highest {int(present[-1])}, and {len(present)} differ"
        )
    return len(present)
