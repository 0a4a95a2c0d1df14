"""Compute means and covariances of features or logits in float64, in parts."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.precision import as_float64, copy_to_device, to_float64_device
from opencil.detectors.chunks import rows_at_a_time
from opencil.errors import BadInput

#: Smaller variances, relative to the largest, count as 0: rounding of float32 features is about 1e-14 of it.
_SMALLEST = 1e-10


def in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield rows of equally long tensors in parts, on a device with float64; the first tensor in float64."""
    first, *others = tensors
    parts = (torch.split(t, rows_at_a_time(8 * max(1, first.shape[1]))) for t in (first, *others))
    return ((as_float64(rows[0]), *map(to_float64_device, rows[1:])) for rows in zip(*parts, strict=True))


def mean_of(features: Tensor) -> Tensor:
    """Return the mean of all rows [D], in float64."""
    return to_float64_device(features).mean(dim=0, dtype=torch.float64)


def means_of(values: Tensor, members: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each group's rows [groups, D], 0 for empty groups, and the counts [groups]."""
    # A product: index_add has no fixed order on a GPU.
    total = as_float64(values.new_zeros(groups, values.shape[1]))
    for rows, member in in_chunks(values, members):
        total += F.one_hot(member, groups).double().T @ rows
    counts = to_float64_device(torch.bincount(members, minlength=groups))
    return total / counts.clamp(min=1)[:, None], counts


def products_of(values: Tensor, centres: Tensor | None = None, members: Tensor | None = None) -> Tensor:
    """Return Σ (v − c)(v − c)ᵀ over the rows [D, D]; c is the centre of the row's group, or 0."""
    total = as_float64(values.new_zeros(values.shape[1], values.shape[1]))
    if members is None:
        members = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    for rows, member in in_chunks(values, members):
        centred = rows if centres is None else rows - centres[member]
        total += centred.T @ centred
    return total


def whitening(spread: Tensor) -> Tensor:
    """Return W [D, R] with W Wᵀ the pseudo-inverse of a symmetric matrix of rank R, up to rounding."""
    variance, axes = torch.linalg.eigh(spread)
    large = variance > _SMALLEST * variance[-1].clamp(min=0)
    found: Tensor = axes[:, large] / variance[large].sqrt()
    return found


@dataclass(frozen=True)
class Gaussians:
    """A mean for each class that occurs, and one covariance of the features around their means."""

    means: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, along: Tensor | None = None) -> "Gaussians":
        """Fit to features [N, D] with labels [N], within the span of the axes ``along`` [D, R] if given."""
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
        """Return squared Mahalanobis distances to the nearest mean [N], in float64 if the device has it."""
        origin = self.means.mean(dim=0)
        points = (self.means - origin) @ self.whitening
        found = []
        for (rows,) in in_chunks(features):
            white = (rows - origin) @ self.whitening
            apart = points.square().sum(dim=1) - 2 * white @ points.T
            found.append(apart.amin(dim=1) + white.square().sum(dim=1))
        return copy_to_device(torch.cat(found).clamp(min=0), features.device)


def check_labels(labels: Tensor | None, classes: int) -> Tensor:
    """Return labels [N] if they are below the number of classes."""
    assert labels is not None
    if (high := int(labels.max())) >= classes:
        raise BadInput(f"labels go up to {high}: there are the classes 0 to {classes - 1}")
    return labels
