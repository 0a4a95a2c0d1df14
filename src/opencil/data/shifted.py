"""Shifted ID images: each test image under one corruption, made here or read from files of CIFAR-100-C."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from opencil.data.corruptions import CORRUPTIONS, STANDARD, corrupted
from opencil.data.images import Images, ImageSet
from opencil.data.precision import reachable
from opencil.errors import BadInput, one_line, unknown
from opencil.validation import Bound, Values, Whole

_SEVERITIES = 5


@dataclass(frozen=True)
class ShiftedSet(Values):
    """ID test images, each with one of some corruptions at one of some severities, drawn by ``seed``.

    All pairs of the two are drawn equally often. ``files`` is a folder of CIFAR-100-C, in the folder of
    downloads or absolute: the corrupted images are then read from it instead of being made.
    """

    corruptions: tuple[str, ...] = STANDARD
    severities: tuple[Annotated[int, Bound(ge=1, le=_SEVERITIES)], ...] = (1, 2, 3, 4, 5)
    seed: Whole = 0
    files: str | None = None

    def __post_init__(self) -> None:
        for key in ("corruptions", "severities"):
            values = getattr(self, key)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{key} = {list(values)} is not allowed: some are needed, each once")
        for name in self.corruptions:
            if self.files is None and name not in CORRUPTIONS:
                raise ValueError(f"corruptions: {unknown('corruption', name, CORRUPTIONS)}")
            if not re.fullmatch(r"[a-z0-9_]+", name):
                raise ValueError(f"corruptions: {name!r} is no corruption: its file's name without .npy is")

    def make(self, name: str, test: Images, root: Path | None) -> ImageSet:
        """The shifted set of ID test images, in their order and with their labels."""
        changed = torch.empty(len(test), 3, test.side, test.side, dtype=torch.uint8, device=test.device)
        files = None if self.files is None else _Files(self.files, root, test)
        for corruption, severity, chosen in self._drawn(len(test)):
            if files:
                images = files.images(corruption, severity, chosen)
            else:
                (batch,) = test.batches(torch.from_numpy(chosen), len(chosen))
                generators = [np.random.default_rng([self.seed, int(i)]) for i in chosen]
                images = corrupted(reachable(batch), corruption, severity, generators)
            changed[torch.from_numpy(chosen).to(test.device)] = images.to(test.device)
        return ImageSet(name, changed, test.labels, test.classes)

    def _drawn(self, count: int) -> Iterator[tuple[str, int, np.ndarray[Any, np.dtype[np.int64]]]]:
        """Each corruption and severity with the images that have it."""
        pairs = [(corruption, severity) for corruption in self.corruptions for severity in self.severities]
        of_image = np.random.default_rng(self.seed).permutation(np.arange(count) % len(pairs))
        for i, (corruption, severity) in enumerate(pairs):
            if len(chosen := np.flatnonzero(of_image == i)):
                yield corruption, severity, chosen


class _Files:
    """A folder of CIFAR-100-C: for each corruption the whole test set five times, by severity."""

    def __init__(self, folder: str, root: Path | None, test: Images) -> None:
        self._folder = (root or Path()) / folder
        self._count, self._side = len(test), test.side
        labels = self._read("labels", (_SEVERITIES * len(test),))
        expected = np.tile(test.labels.cpu().numpy(), _SEVERITIES)
        if not np.array_equal(labels, expected):
            raise BadInput(
                f"{self._folder / 'labels.npy'} does not have the labels of {test.name!r}'s test images: "
                "its files are of another dataset, or in another order"
            )

    def images(self, corruption: str, severity: int, chosen: np.ndarray[Any, Any]) -> Tensor:
        """Some of the images of a severity, uint8 [N, 3, H, H]."""
        all_of_them = self._read(corruption, (_SEVERITIES * self._count, self._side, self._side, 3))
        part = np.array(all_of_them[(severity - 1) * self._count + chosen])
        return torch.from_numpy(part).permute(0, 3, 1, 2).contiguous()

    def _read(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """A file's array, mapped from disk; it may hold numbers only, never pickled objects."""
        path = self._folder / f"{name}.npy"
        try:
            # np.load would take a zip for several arrays.
            array = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # a header is text from strangers: a damaged one fails in many ways
            raise BadInput(f"shifted images cannot be read from {path}: {one_line(error)}") from None
        wrong_type = array.dtype.kind not in "iu" if name == "labels" else array.dtype != np.uint8
        if array.shape != shape or wrong_type:
            raise BadInput(
                f"{path} has {array.dtype} {list(array.shape)}: whole numbers {list(shape)} are needed, the "
                "test images at severities 1 to 5"
            )
        found: np.ndarray[Any, Any] = array
        return found
