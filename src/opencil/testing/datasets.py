"""Check the contract of datasets."""

from contextlib import suppress
from pathlib import Path

import torch

from opencil.data.images import Access, Dataset, Images, Split
from opencil.errors import BadInput
from opencil.registry import DATASETS
from opencil.testing.contract import SIDE, call_twice, collect_checks, run_checks


def _serve(dataset: str | Dataset, split: Split, root: Path | None, side: int) -> Images:
    name = dataset if isinstance(dataset, str) else type(dataset).__name__
    created: Dataset = DATASETS.create(dataset) if isinstance(dataset, str) else dataset
    images = created.serve(name, split, side, Access(root))
    assert isinstance(images, Images), f"serves a {type(images).__name__}: an opencil.ImageSet is expected"
    return images


def check_images(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """There are test images, RGB bytes of the requested size, each with a label."""
    images = _serve(dataset, "test", root, side)
    assert len(images), "has no test images"
    first = next(images.batches(torch.arange(min(2, len(images))), 2))
    assert first.dtype == torch.uint8, f"serves {first.dtype}: uint8 is expected"
    assert int(images.labels.min()) >= 0, "has labels below 0"
    with suppress(BadInput):  # a dataset may refuse all sizes but one
        images = _serve(dataset, "test", root, side + 4)
        side += 4
    assert images.side == side, f"serves images of {images.side} pixels: {side} were requested"


def check_repeatable(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """The images are the same each time, and independent of torch's global generator."""
    first, again = call_twice(lambda: _serve(dataset, "test", root, side))
    same = first.fingerprint == again.fingerprint and torch.equal(first.labels, again.labels)
    assert same, "serves other images or labels the second time"


def check_training(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """Training images have labels 0 … C−1 without gaps, and test images no others; or there are none."""
    try:
        train = _serve(dataset, "train", root, side)
    except BadInput:  # a dataset for OOD alone
        return
    labels = sorted(set(train.labels.tolist()))
    assert labels == list(range(len(labels))), f"has training labels {labels[:12]}: there are gaps"
    declared = (DATASETS.create(dataset) if isinstance(dataset, str) else dataset).classes
    assert declared in (None, len(labels)), f"declares {declared} classes: training images have {len(labels)}"
    strange = set(_serve(dataset, "test", root, side).labels.tolist()) - set(labels)
    assert not strange, f"has test images with labels {sorted(strange)[:12]}, which no training image has"


#: Every check of the datasets' contract, by name.
DATASET_CHECKS = collect_checks(vars())


def check_dataset(dataset: str | Dataset, root: Path | None = None, side: int = SIDE) -> None:
    """Run every check on a dataset, given by name or as an object; ``root`` contains its files."""
    run_checks(DATASET_CHECKS, dataset, dataset, root, side)
