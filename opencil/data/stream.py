"""The class-incremental stream: which classes come when, and how much OOD data a step sees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.errors import BadInput


def class_order(classes: int, seed: int = 1993) -> list[int]:
    """The order in which classes are learned; a class's new label is its position in it.

    The old generator, on purpose: it gives the order that the whole field uses.
    """
    return [int(c) for c in np.random.RandomState(seed).permutation(classes)]


def step_sizes(classes: int, per_step: int) -> list[int]:
    """Classes of each step: ``per_step`` from the first on, the last takes the remainder."""
    return [min(per_step, classes - start) for start in range(0, classes, per_step)]


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
    """Step ``number`` (1-based) of ``steps``: labels ``old`` … ``seen − 1`` are new.

    ``train`` indexes the training images of the new classes, ``test`` the test images of all classes seen.
    """

    number: int
    steps: int
    old: int
    seen: int
    train: Tensor
    test: Tensor

    @property
    def new(self) -> int:
        """Number of new classes."""
        return self.seen - self.old

    @property
    def tasks(self) -> list[range]:
        """Labels of each step so far; all but the last have the same number."""
        k = self.old // (self.number - 1) if self.old else self.new
        return [range(start, min(start + k, self.old)) for start in range(0, self.old, k)] + [
            range(self.old, self.seen)
        ]


@dataclass(frozen=True)
class Stream(Sequence[Step]):
    """The steps over a training and a test set whose labels are positions in the class order."""

    train: Images
    test: Images
    classes: int
    per_step: int

    @classmethod
    def create(cls, train: Images, test: Images, per_step: int, order_seed: int = 1993) -> "Stream":
        """Order the classes of a dataset and cut them into steps."""
        classes = count_classes(train)
        if count_classes(test) != classes:
            raise BadInput(
                f"{train.name!r} has {classes} classes in training and {count_classes(test)} in test images"
            )
        if per_step < 1:
            raise BadInput(f"classes_per_step = {per_step} is not allowed: 1 to {classes} are")
        order = class_order(classes, order_seed)
        return cls(train.relabelled(order), test.relabelled(order), classes, per_step)

    def __len__(self) -> int:
        return len(step_sizes(self.classes, self.per_step))

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
        old = index * self.per_step
        seen = min(old + self.per_step, self.classes)
        train, test = self.train.labels, self.test.labels
        return Step(
            number=index + 1,
            steps=len(self),
            old=old,
            seen=seen,
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
