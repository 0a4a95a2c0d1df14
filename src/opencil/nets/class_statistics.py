"""Models that carry statistics of classes from step to step, in place of images."""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.data.precision import as_float64, copy_to_device
from opencil.nets.model import Backbone, Model


class ByStep(nn.Module):
    """A matrix for each class; those of a step's classes are a buffer, which that step's file alone has."""

    def __init__(self, sizes: Sequence[int], initial: Tensor) -> None:
        super().__init__()
        for size in sizes:
            self.add(size, initial)

    def add(self, size: int, initial: Tensor) -> None:
        """Add the matrices of a further step's classes."""
        self.register_buffer(str(len(self._buffers)), initial.repeat(size, 1, 1))

    @property
    def newest(self) -> Tensor:
        """Return the matrices of the newest step's classes, [classes, D, D]."""
        return list(self.buffers())[-1]

    def __iter__(self) -> Iterator[Tensor]:
        return chain.from_iterable(self.buffers())


class ModelWithScatter(Model):
    """A model with the number of images and the mean feature of every class, and the scatter within all.

    ``scatter`` [D, D] is Σ (f − μ_y)(f − μ_y)ᵀ over all images seen; ``exact`` is the dtype of all three.
    """

    def __init__(self, backbone: Backbone, classes: int, exact: torch.dtype) -> None:
        super().__init__(backbone, classes)
        width = backbone.width
        self.counts: Tensor = nn.Buffer(torch.zeros(classes, dtype=exact))
        self.means: Tensor = nn.Buffer(torch.zeros(classes, width, dtype=exact))
        self.scatter: Tensor = nn.Buffer(torch.zeros(width, width, dtype=exact))

    def grow(self, classes: int) -> None:
        """Widen the head; counts and means of new classes are 0."""
        super().grow(classes)
        new = classes - len(self.counts)
        self.counts, self.means = F.pad(self.counts, (0, new)), F.pad(self.means, (0, 0, 0, new))

    def add_classes(self, features: Sequence[Tensor]) -> None:
        """Add features [n, D] of each new class, the last ones of the head, to the statistics."""
        for label, rows in enumerate(map(as_float64, features), start=len(self.counts) - len(features)):
            mean = rows.mean(dim=0)
            centred = rows - mean
            self.counts[label], self.means[label] = len(rows), copy_to_device(mean, self.means.device)
            self.scatter += copy_to_device(centred.T @ centred, self.scatter.device)
