"""The datasets' contract as checks."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from opencil.data.images import Access, Dataset, Images, Split
from opencil.errors import BadInput, OpenCILError
from opencil.registry import DATASETS

#: Side of the images that are asked for, unless another is said: CIFAR's.
SIDE = 32


def check_dataset(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """Run every check on a dataset: a registered name, or one that has been made; ``root`` has its files."""
    for check in DATASET_CHECKS.values():
        try:
            check(dataset, root, side)
        except OpenCILError as error:
            raise AssertionError(f"{_name(dataset)} cannot be read: {error}") from error


def _name(dataset: str | Dataset) -> str:
    return dataset if isinstance(dataset, str) else type(dataset).__name__


def _served(dataset: str | Dataset, split: Split, root: Path | None, side: int) -> Images:
    made: Dataset = DATASETS.create(dataset) if isinstance(dataset, str) else dataset
    images = made.serve(_name(dataset), split, side, Access(root))
    assert isinstance(images, Images), (
        f"{_name(dataset)}'s {split} images are a {type(images).__name__}: opencil.ImageSet is needed"
    )
    return images


def check_images(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """There are test images, RGB bytes of the size that is asked for, each with a label."""
    images = _served(dataset, "test", root, side)
    assert len(images), f"{_name(dataset)} has no test images"
    first = next(images.batches(torch.arange(min(2, len(images))), 2))
    assert first.dtype == torch.uint8, f"{_name(dataset)} serves {first.dtype}: uint8 is promised"
    assert int(images.labels.min()) >= 0, f"{_name(dataset)} has labels below 0"
    with suppress(BadInput):  # it may have one size only, if it says so
        images = _served(dataset, "test", root, side + 4)
        side += 4
    assert images.side == side, (
        f"{_name(dataset)} gives images of {images.side} pixels where {side} are asked for"
    )


def check_repeatable(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """The same images come each time, whatever torch's global generator is at, and leave it there."""
    with torch.random.fork_rng(devices=[]):
        prints, labels = [], []
        for seed in (0, 1):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            images = _served(dataset, "test", root, side)
            prints.append(images.fingerprint)
            labels.append(images.labels.tolist())
            assert torch.equal(torch.get_rng_state(), before), (
                f"{_name(dataset)} draws from torch's global generator: use one of its own, with a seed"
            )
    assert prints[0] == prints[1], f"{_name(dataset)} gives other images the second time"
    assert labels[0] == labels[1], f"{_name(dataset)} gives other labels the second time"


def check_training(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """Training images have labels 0 … C−1, each of them, and test images no others; or there are none."""
    made = DATASETS.create(dataset) if isinstance(dataset, str) else dataset
    try:
        train = _served(dataset, "train", root, side)
    except BadInput:  # a set that is only ever OOD
        return
    there = sorted(set(train.labels.tolist()))
    assert there == list(range(len(there))), (
        f"{_name(dataset)}'s training images have labels {there[:12]}: 0 to C−1 are needed, each of them"
    )
    assert made.classes in (None, len(there)), (
        f"{_name(dataset)} says that it has {made.classes} classes, and its training images have {len(there)}"
    )
    strange = set(_served(dataset, "test", root, side).labels.tolist()) - set(there)
    assert not strange, (
        f"{_name(dataset)}'s test images have labels {sorted(strange)[:12]}, which no training image has"
    )


#: Every check of the datasets' contract, by name.
DATASET_CHECKS: dict[str, Callable[[str | Dataset, Path | None, int], None]] = {
    check.__name__.removeprefix("check_"): check for check in (check_images, check_repeatable, check_training)
}
