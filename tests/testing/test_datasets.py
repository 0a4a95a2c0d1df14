"""The checks of the datasets' contract: ours pass them, and each check finds datasets that break it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opencil
from opencil.testing import DATASET_CHECKS, check_dataset


@pytest.mark.parametrize("check", DATASET_CHECKS)
@pytest.mark.parametrize("name", ["digits", "digits-held-out", "noise"])
def test_ours_keep_the_contract(name: str, check: str) -> None:
    DATASET_CHECKS[check](name, None, 8)


@dataclass(frozen=True)
class Right(opencil.Dataset):
    """A correct dataset: three classes of grey."""

    def load(self, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        labels = torch.arange(12) % 3
        images = (80 * labels).to(torch.uint8)[:, None, None, None].expand(12, 3, size, size)
        return opencil.ImageSet("greys", images.contiguous(), labels)


def test_a_custom_dataset_keeps_the_contract() -> None:
    check_dataset(Right())


def own(change: Callable[[opencil.ImageSet, str], tuple[Tensor, Tensor]], **members: Any) -> Right:
    """Return a dataset with other images or labels."""

    def load(self: Right, split: Any, size: int, root: Path | None) -> opencil.ImageSet:
        return opencil.ImageSet("own", *change(Right.load(self, split, size, root), split))

    dataset: Right = dataclass(frozen=True)(type("Own", (Right,), {"load": load, **members}))()
    return dataset


WRONG: dict[str, tuple[str, Right]] = {
    "20 pixels": ("images", own(lambda greys, split: (greys.images[..., :20, :20], greys.labels))),
    "global generator": (
        "repeatable",
        own(lambda greys, split: (torch.randint_like(greys.images, 255), greys.labels)),
    ),
    r"\[0, 2, 4\]": ("training", own(lambda greys, split: (greys.images, 2 * greys.labels))),
    "4 classes": ("training", own(lambda greys, split: (greys.images, greys.labels), classes=4)),
    r"\[3\]": ("training", own(lambda greys, split: (greys.images, greys.labels + (split == "test")))),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_check_finds_a_dataset_that_breaks_it(key: str) -> None:
    check, dataset = WRONG[key]
    with pytest.raises(AssertionError, match=key):
        DATASET_CHECKS[check](dataset, None, 32)
    with pytest.raises(AssertionError, match="Own"):
        check_dataset(dataset)


def test_missing_files_fail() -> None:
    with pytest.raises(AssertionError, match="svhn"):
        check_dataset("svhn")
