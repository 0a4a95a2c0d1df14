"""The exemplar memory: indices of a few training images of each class seen."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from opencil.errors import not_allowed


def herd(features: Tensor, count: int) -> Tensor:
    """Return the herding order of ``features`` [N, D]: a pick brings the picks' mean closest to the class's.

    Features are L2-normalised; their mean is not. There are at most N picks, without replacement.
    """
    points = torch.nn.functional.normalize(features.cpu().double(), dim=1)
    mean, total = points.mean(dim=0), torch.zeros(points.shape[1], dtype=torch.float64)
    left = torch.ones(len(points), dtype=torch.bool)
    picks = []
    for n in range(1, min(count, len(points)) + 1):
        distance = ((total + points) / n - mean).norm(dim=1).where(left, torch.inf)
        pick = int(distance.argmin())
        picks.append(pick)
        left[pick] = False
        total += points[pick]
    return torch.tensor(picks, dtype=torch.int64)


@dataclass(frozen=True)
class Memory:
    """Exemplars as indices into the training set, one tensor per class in herding order.

    All classes share ``size`` images, or each class has ``fixed`` images, however many classes there are.
    """

    size: int
    per_class: tuple[Tensor, ...] = ()
    fixed: int | None = None

    @property
    def indices(self) -> Tensor:
        """Return the exemplars of all classes, class after class."""
        return torch.cat([torch.empty(0, dtype=torch.int64), *self.per_class])

    def share(self, seen: int) -> float:
        """Return the number of exemplars per class after ``seen`` classes, before it is rounded down."""
        return self.fixed or self.size / seen

    def quota(self, seen: int) -> int:
        """Return the number of exemplars per class after ``seen`` classes, at least one."""
        if (share := int(self.share(seen))) < 1:
            allowed = f"at least 1 image for each of {seen} classes is needed"
            raise not_allowed("memory", self.size, allowed)
        return share

    def add_classes(self, candidates: list[tuple[Tensor, Tensor]]) -> "Memory":
        """Return the memory after a step.

        Old classes keep the first of their exemplars. A new class is a pair (indices, features) to herd.
        """
        share = self.quota(len(self.per_class) + len(candidates))
        old = tuple(indices[:share] for indices in self.per_class)
        new = tuple(indices.cpu()[herd(features, share)] for indices, features in candidates)
        return replace(self, per_class=old + new)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store: all indices, and the number of exemplars of each class."""
        counts = torch.tensor([len(c) for c in self.per_class], dtype=torch.int64)
        return {"indices": self.indices, "counts": counts}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "Memory":
        """Return the memory with its stored tensors."""
        return replace(self, per_class=tuple(torch.split(tensors["indices"], tensors["counts"].tolist())))
