"""Means and spreads of features or logits, in float64, a few rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.precision import placed, reachable, widened
from opencil.detectors.chunks import rows_at_a_time
from opencil.errors import BadInput

#: Variance along a direction, relative to the largest, below which there is none: what float32 features are
#: rounded by is 1e-14 or so of it.
_SMALLEST = 1e-10


def in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of tensors that have as many, a few at a time, where float64 is; the first in float64."""
    first, *others = tensors
    parts = (torch.split(t, rows_at_a_time(32 * max(1, first.shape[1]))) for t in (first, *others))
    return ((widened(rows[0]), *map(reachable, rows[1:])) for rows in zip(*parts, strict=True))


def means_of(values: Tensor, members: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean of the rows of each group [groups, D], 0 where there are none, and their counts [groups]."""
    # A product: adding by index is in no fixed order on a GPU.
    total = widened(values.new_zeros(groups, values.shape[1]))
    for rows, member in in_chunks(values, members):
        total += F.one_hot(member, groups).double().T @ rows
    counts = reachable(torch.bincount(members, minlength=groups))
    return total / counts.clamp(min=1)[:, None], counts


def products_of(values: Tensor, centres: Tensor | None = None, members: Tensor | None = None) -> Tensor:
    """Σ (v − c)(v − c)ᵀ over the rows [D, D]; c is the centre of the row's group, or 0."""
    total = widened(values.new_zeros(values.shape[1], values.shape[1]))
    members = (
        torch.zeros(len(values), dtype=torch.int64, device=values.device) if members is None else members
    )
    for rows, member in in_chunks(values, members):
        centred = rows if centres is None else rows - centres[member]
        total += centred.T @ centred
    return total


def whitening(spread: Tensor) -> Tensor:
    """W [D, R] with W Wᵀ the pseudo-inverse of a symmetric matrix; R is its rank, to float32's rounding."""
    variance, axes = torch.linalg.eigh(spread)
    kept = variance > _SMALLEST * variance[-1].clamp(min=0)
    found: Tensor = axes[:, kept] / variance[kept].sqrt()
    return found


@dataclass(frozen=True)
class Gaussians:
    """A mean for each class that occurs and one covariance, that of the features around their means."""

    means: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, along: Tensor | None = None) -> "Gaussians":
        """Of features [N, D] and the class of each [N]; only what lies ``along`` some axes [D, R] counts."""
        members = torch.unique(labels, return_inverse=True)[1]
        means, counts = means_of(features, members, int(members.max()) + 1)
        spread = products_of(features, means, members) / counts.sum()
        if along is None:
            return cls(means, whitening(spread))
        if not along.shape[1]:
            return cls(means, along)
        basis = torch.linalg.qr(along)[0]
        return cls(means, basis @ whitening(basis.T @ spread @ basis))

    def nearest(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance to the nearest mean, float64 where there is one, [N]."""
        origin = self.means.mean(dim=0)
        points = (self.means - origin) @ self.whitening
        found = []
        for (rows,) in in_chunks(features):
            white = (rows - origin) @ self.whitening
            apart = points.square().sum(dim=1) - 2 * white @ points.T
            found.append(apart.amin(dim=1) + white.square().sum(dim=1))
        return placed(torch.cat(found).clamp(min=0), features.device)


def checked_labels(labels: Tensor | None, classes: int) -> Tensor:
    """Labels [N], whole numbers from 0 on as ``fit`` has seen, of classes that have a logit."""
    assert labels is not None
    if (high := int(labels.max())) >= classes:
        raise BadInput(f"labels reach {high}: there are logits of classes 0 to {classes - 1}")
    return labels
