"""The checks of the datasets' contract: ours pass them, and each check catches what it is for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import opencil
from opencil.testing import DATASET_CHECKS, check_dataset


@pytest.mark.parametrize("check", DATASET_CHECKS)
@pytest.mark.parametrize("name", ["digits", "digits-held-out", "noise"])
def test_ours_keep_the_contract(name: str, check: str) -> None:
    DATASET_CHECKS[check](name, None, 8)


@dataclass(frozen=True)
class Right(opencil.Dataset):
    """Nothing wrong: three classes of grey."""

    def load(self, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        labels = torch.arange(12) % 3
        images = (80 * labels).to(torch.uint8)[:, None, None, None].expand(12, 3, size, size)
        return opencil.ImageSet("greys", images.contiguous(), labels)


def test_one_of_ones_own_keeps_the_contract() -> None:
    check_dataset(Right())


@dataclass(frozen=True)
class OneSize(Right):
    """Gives 32 pixels whatever is asked for."""

    def load(self, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        return super().load(split, 32, root)


@dataclass(frozen=True)
class Dice(Right):
    """Draws from the global generator."""

    def load(self, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        images = torch.randint(0, 255, (6, 3, size, size)).to(torch.uint8)
        return opencil.ImageSet("dice", images, torch.zeros(6, dtype=torch.int64))


@dataclass(frozen=True)
class Gap(Right):
    """Leaves a label out."""

    def load(self, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        greys = super().load(split, size, root)
        return opencil.ImageSet("gap", greys.images, 2 * greys.labels)


@dataclass(frozen=True)
class Claims(Right):
    """Says that it has more classes than it has."""

    classes = 4


@dataclass(frozen=True)
class Strange(Right):
    """Has a test image of a class that is not in training."""

    def load(self, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        greys = super().load(split, size, root)
        return opencil.ImageSet("strange", greys.images, greys.labels + (split == "test"))


@pytest.mark.parametrize(
    ("dataset", "check", "sentence"),
    [
        (OneSize(), "images", "gives images of 32 pixels where 36 are asked for"),
        (Dice(), "repeatable", "draws from torch's global generator"),
        (Gap(), "training", r"have labels \[0, 2, 4\]: 0 to C−1 are needed"),
        (Claims(), "training", "says that it has 4 classes, and its training images have 3"),
        (Strange(), "training", r"test images have labels \[3\], which no training image has"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Right) else "",
)
def test_a_check_catches_what_it_is_for(dataset: Right, check: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        DATASET_CHECKS[check](dataset, None, 32)
    with pytest.raises(AssertionError):
        check_dataset(dataset)


def test_files_that_are_not_there_are_told() -> None:
    with pytest.raises(
        AssertionError, match="svhn cannot be read: test images of dataset 'svhn' are in your"
    ):
        check_dataset("svhn")
