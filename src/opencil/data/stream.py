"""The class-incremental stream: the classes of each step, and its share of the OOD data."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.errors import BadInput, not_allowed


def class_order(classes: int, seed: int = 1993) -> list[int]:
    """Draw the order in which classes are learned by NumPy's legacy generator, as other libraries do."""
    return [int(c) for c in np.random.RandomState(seed).permutation(classes)]


_SIZE = r"[1-9]\d*"
#: Texts such as 20-20-10, 10, 50+10 or 40-20+10.
_SIZES = re.compile(rf"(?P<all>{_SIZE}(-{_SIZE})+)|((?P<first>{_SIZE}(-{_SIZE})*)\+)?(?P<then>{_SIZE})")


@dataclass(frozen=True)
class StepSizes:
    """Numbers of classes of the steps.

    ``10``: ten each, with the rest in the last step. ``50+10``: 50 first, then ten each. ``20-20-10``: these
    three steps. ``first`` are the sizes stated one by one; ``then`` is the size of all further steps.
    """

    first: tuple[int, ...]
    then: int | None

    @classmethod
    def parse(cls, value: int | str) -> "StepSizes":
        """Return the sizes of a number or a text."""
        if not (match := _SIZES.fullmatch(str(value))):
            raise not_allowed("classes_per_step", value, "sizes such as 10, 50+10 and 20-20-10 are")
        first = tuple(int(size) for size in (match["all"] or match["first"] or "").split("-") if size)
        then = int(match["then"]) if match["then"] else None
        while first and first[-1] == then:  # 10+10 is 10
            first = first[:-1]
        return cls(first, then)

    @property
    def label(self) -> int | str:
        """Return the name in folders and rows: a number for equal steps, a text for others."""
        first = "-".join(map(str, self.first))
        if self.then is None:
            return first
        return f"{first}+{self.then}" if first else self.then

    @property
    def order(self) -> tuple[bool, tuple[int, ...]]:
        """Return a sort key: equal steps before others, each by size (5, 10, 20, 50+10)."""
        return bool(self.first), (*self.first, self.then or 0)

    def of(self, classes: int) -> tuple[int, ...]:
        """Return the number of classes of each step; the last of equal steps takes the rest."""
        left = classes - sum(self.first)
        if left < 0 or (left and self.then is None):
            raise not_allowed("classes_per_step", self.label, f"there are {classes} classes")
        then = self.then or 1
        return (*self.first, *(min(then, left - start) for start in range(0, left, then)))


def ood_subset(count: int, step: int, steps: int, order: Literal["permutation", "list"], seed: int) -> Tensor:
    """Return the indices of a step's OOD images: the first ``round(count·t/c)`` of an order, at least one.

    The order is the same for all steps: later steps contain earlier ones.
    """
    if count < 1:
        raise BadInput("an OOD dataset has no images: at least one is needed")
    grown = max(1, round(count * step / steps))
    if order == "list":
        return torch.arange(grown)
    return torch.from_numpy(np.random.default_rng(seed).permutation(count)[:grown])


@dataclass(frozen=True)
class Step:
    """A step of ``steps``; ``sizes`` are the numbers of classes of all steps up to this step.

    ``train`` indexes the training images of new classes, ``test`` the test images of all classes seen.
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
        """Return the step's number, counted from 1."""
        return len(self.sizes)

    @property
    def old(self) -> int:
        """Return the number of old classes, whose labels are 0 … old − 1."""
        return sum(self.sizes[:-1])

    @property
    def seen(self) -> int:
        """Return the number of classes so far; labels old … seen − 1 are new."""
        return sum(self.sizes)

    @property
    def new(self) -> int:
        """Return the number of new classes."""
        return self.sizes[-1]

    @property
    def tasks(self) -> list[range]:
        """Return the labels of each step so far."""
        ends = list(accumulate(self.sizes))
        return [range(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    @property
    def task_of_class(self) -> list[int]:
        """Return the step, counted from 1, in which each class seen was learned."""
        return [task for task, labels in enumerate(self.tasks, start=1) for _ in labels]


@dataclass(frozen=True)
class Stream:
    """Steps over a training and a test set whose labels are positions in the class order."""

    train: Images
    test: Images
    sizes: tuple[int, ...]  #: classes of each step

    @classmethod
    def create(
        cls, train: Images, test: Images, per_step: int | str, order: int | Sequence[int] = 1993
    ) -> "Stream":
        """Order the classes of a dataset, as listed or as drawn by a seed, and divide them into steps."""
        classes = count_classes(train)
        if count_classes(test) != classes:
            raise BadInput(
                f"{train.name!r} has {classes} classes in training images, and others in test images"
            )
        order = class_order(classes, order) if isinstance(order, int) else list(order)
        if sorted(order) != list(range(classes)):
            raise BadInput(f"class_order is not allowed: each of 0 to {classes - 1} is needed in it, once")
        sizes = StepSizes.parse(per_step).of(classes)
        return cls(train.relabel(order), test.relabel(order), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Step]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Step:
        sizes = self.sizes[: range(len(self))[index] + 1]
        seen, old = sum(sizes), sum(sizes[:-1])
        train, test = self.train.labels, self.test.labels
        new = ((train >= old) & (train < seen)).nonzero().flatten()
        return Step(sizes, len(self), new.cpu(), (test < seen).nonzero().flatten().cpu())


def count_classes(images: Images) -> int:
    """Return the number of classes C; raise an error unless the labels are 0 … C−1 without a gap."""
    if not len(images):
        raise BadInput(f"{images.name!r} has no images")
    present = torch.unique(images.labels).cpu()
    if not torch.equal(present, torch.arange(len(present))):
        low, high, many = int(present[0]), int(present[-1]), len(present)
        raise BadInput(f"labels of {images.name!r} have gaps: they are {many} values from {low} to {high}")
    return len(present)
