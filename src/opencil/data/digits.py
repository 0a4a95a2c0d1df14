"""The embedded benchmark's data: real images of scikit-learn's package, without a download."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from opencil.data.images import Dataset, ImageSet, Split
from opencil.errors import not_allowed
from opencil.registry import register_dataset
from opencil.validation import Count, Whole

_SIDE = 8  # scikit-learn's digits are 8 × 8 pixels with values 0 … 16
_HELD_OUT = (8, 9)
Array = np.ndarray[Any, np.dtype[Any]]


def _image_set(name: str, pixels: Array, labels: Array, size: int) -> ImageSet:
    """Return uint8 [N, 8, 8] or [N, 8, 8, 3] as an RGB image set."""
    if size != _SIDE:
        raise not_allowed("benchmark.image_size", size, f"images of {name!r} have {_SIDE} × {_SIDE}")
    if pixels.ndim == 3:
        pixels = pixels[..., None].repeat(3, axis=-1)
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return ImageSet(name, images, torch.from_numpy(labels.astype(np.int64)))


def _sklearn_file(name: str) -> Path:
    """Return a file of scikit-learn's datasets, without importing scikit-learn, which takes over a second."""
    spec = find_spec("sklearn")
    return Path(str(spec and spec.origin)).with_name("datasets") / name


@cache
def _read_digits() -> tuple[Array, Array]:
    table = np.loadtxt(_sklearn_file("data/digits.csv.gz"), delimiter=",")
    return np.round(table[:, :-1].reshape(-1, _SIDE, _SIDE) * (255 / 16)).astype(np.uint8), table[:, -1]


@register_dataset("digits")
@dataclass(frozen=True)
class Digits(Dataset):
    """Handwritten digits 0–7 (scikit-learn): every third image of a class is a test image."""

    classes: ClassVar[int | None] = 8
    counts: ClassVar[Mapping[str, int]] = {"train": 965, "test": 478}

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Return the 965 training or the 478 test images."""
        pixels, labels = _read_digits()
        rank = np.empty(len(labels), dtype=int)  # an image's position within its class
        for c in np.unique(labels):
            rank[labels == c] = np.arange((labels == c).sum())
        rows = ~np.isin(labels, _HELD_OUT) & ((rank % 3 == 2) == (split == "test"))
        return _image_set("digits", pixels[rows], labels[rows], size)


@register_dataset("digits-held-out")
@dataclass(frozen=True)
class HeldOutDigits(Dataset):
    """Handwritten digits 8 and 9 (scikit-learn), which no step learns."""

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Return the 354 images of the two held-out digits."""
        pixels, labels = _read_digits()
        rows = np.isin(labels, _HELD_OUT)
        return _image_set("digits-held-out", pixels[rows], labels[rows] - _HELD_OUT[0], size)


@register_dataset("photo-patches")
@dataclass(frozen=True)
class PhotoPatches(Dataset):
    """Patches of 32 × 32 pixels of scikit-learn's two photographs (a temple, a flower), averaged to 8 × 8."""

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Return 520 patches without overlap, labelled by photograph."""
        from PIL import Image

        patches, labels = [], []
        for label, name in enumerate(("china", "flower")):
            photo = np.asarray(Image.open(_sklearn_file(f"images/{name}.jpg")))
            rows, columns = photo.shape[0] // 32, photo.shape[1] // 32
            # [rows, 8, 4, columns, 8, 4, RGB]: average over each cell, then a patch per (row, column)
            cells = photo[: rows * 32, : columns * 32].reshape(rows, _SIDE, 4, columns, _SIDE, 4, 3)
            patch = cells.mean(axis=(2, 5)).transpose(0, 2, 1, 3, 4)
            patches.append(patch.reshape(-1, _SIDE, _SIDE, 3))
            labels.append(np.full(rows * columns, label))
        pixels = np.concatenate(patches).round().astype(np.uint8)
        return _image_set("photo-patches", pixels, np.concatenate(labels), size)


@register_dataset("noise")
@dataclass(frozen=True)
class Noise(Dataset):
    """Grey noise: each pixel is uniform and independent, the same images for a seed."""

    count: Count = 500
    seed: Whole = 0

    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Return ``count`` images of one class."""
        pixels = np.random.default_rng(self.seed).integers(0, 256, (self.count, _SIDE, _SIDE), dtype=np.uint8)
        return _image_set("noise", pixels, np.zeros(self.count), size)
