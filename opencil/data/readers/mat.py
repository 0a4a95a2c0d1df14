"""SVHN's MATLAB file."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from opencil.data.readers.archives import LARGEST_MEMBER, most_within
from opencil.data.readers.source import ArraySource, Layout, SplitOnDisk
from opencil.errors import BadInput, one_line

#: What MATLAB calls arrays of numbers.
_NUMBERS = {"double", "single", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}


@dataclass(frozen=True)
class Mat(Layout):
    """A .mat file with ``X`` [H, W, 3, N] and ``y`` [N, 1]; the digit 0 is written as 10."""

    files: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        """The files it may be."""
        return self.files

    def find(self, base: Path) -> SplitOnDisk | None:
        """The first of the files."""
        place = next((base / name for name in self.files if (base / name).is_file()), None)
        return SplitOnDisk(".mat", place, partial(_source, place), (place,)) if place else None


def _source(place: Path) -> ArraySource:
    from scipy.io import loadmat, whosmat

    try:
        most = min(LARGEST_MEMBER, most_within(place.stat().st_size))
        for name, shape, kind in whosmat(place):  # read from the headers: nothing large is decompressed
            # Cells may lie in each other, deeper than any stack: they are not even looked at.
            if name in ("X", "y") and kind not in _NUMBERS:
                raise ValueError(f"its {name} is of kind {kind}")
            if name in ("X", "y") and math.prod(shape) * np.dtype(kind).itemsize > most:
                raise ValueError(f"its {name} has more than {most:,} bytes")
        content = loadmat(place, variable_names=["X", "y"])
    except Exception as error:  # scipy answers damaged files with many kinds of errors
        raise BadInput(f"{place} cannot be read as a MATLAB file: {one_line(error)}") from None
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.ndim != 4 or images.dtype != np.uint8 or not images.size:
        raise BadInput(f"{place} has no X of bytes [H, W, 3, N] with y: it is not SVHN's")
    if labels.dtype.kind not in "iuf" or not np.isin(labels, range(11)).all():
        raise BadInput(f"{place} has a y with other values than the digits 0 to 10: it is not SVHN's")
    digits = labels.reshape(-1).astype(np.int64) % 10
    return ArraySource(digits, tuple("0123456789"), place, images.transpose(3, 0, 1, 2))
