"""Shifted ID images: each test image under a corruption, computed or read from files of CIFAR-100-C."""

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from opencil.data.corruptions import CORRUPTIONS, STANDARD, corrupt_images
from opencil.data.images import Images, ImageSet
from opencil.errors import BadInput, one_line, unknown
from opencil.validation import Bound, Values, Whole

_SEVERITIES = 5


@dataclass(frozen=True)
class ShiftedSet(Values):
    """ID test images, each with a corruption and a severity drawn by ``seed``, all pairs equally often.

    ``files`` is a folder of CIFAR-100-C, absolute or in the folder of downloads: corrupted images are read
    from it instead of being computed.
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
                raise ValueError(f"corruptions: {name!r} is no name of a file of CIFAR-100-C without .npy")

    def make(self, name: str, test: Images, root: Path | None) -> ImageSet:
        """Return the shifted ID test images, in their order and with their labels."""
        count, side = len(test), test.side
        changed = np.empty((count, 3, side, side), np.uint8)
        pairs = list(product(self.corruptions, self.severities))
        of_image = np.random.default_rng(self.seed).permutation(np.arange(count) % len(pairs))
        folder = None if self.files is None else (root or Path()) / self.files
        if folder is not None:
            labels = _read_array(folder, "labels", _SEVERITIES * count)
            if not np.array_equal(labels, np.tile(test.labels.cpu().numpy(), _SEVERITIES)):
                raise BadInput(f"{folder / 'labels.npy'} has other labels than {test.name!r}'s test images")
        for i, (corruption, severity) in enumerate(pairs[:count]):
            rows = np.flatnonzero(of_image == i)
            if folder is not None:
                pixels = _read_array(folder, corruption, _SEVERITIES * count, side, side, 3)
                changed[rows] = pixels[(severity - 1) * count + rows].transpose(0, 3, 1, 2)
            else:
                (batch,) = test.batches(torch.from_numpy(rows), len(rows))
                generators = [np.random.default_rng([self.seed, int(i)]) for i in rows]
                changed[rows] = corrupt_images(batch.cpu().numpy(), corruption, severity, generators)
        return ImageSet(name, torch.from_numpy(changed).to(test.device), test.labels, test.classes)


def _read_array(folder: Path, name: str, *shape: int) -> np.ndarray[Any, Any]:
    """Map a file's array of whole numbers at five severities; pickled objects are refused."""
    path = folder / f"{name}.npy"
    try:
        array: np.ndarray[Any, Any] = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # damaged headers fail in many ways
        raise BadInput(f"shifted images cannot be read from {path}: {one_line(error)}") from None
    if array.shape != shape or array.dtype.kind not in "iu" or (len(shape) > 1 and array.dtype != np.uint8):
        raise BadInput(
            f"{path} has {array.dtype} {list(array.shape)}: whole numbers {list(shape)} are needed"
        )
    return array
