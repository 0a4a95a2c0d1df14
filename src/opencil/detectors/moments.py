"""Compute in parts with bounded memory; means, covariances and standards of scores, in float64."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.precision import as_float64, copy_to_device, to_float64_device
from opencil.errors import BadInput

#: Float32 numbers in temporary tensors at a time: few enough for a CPU's caches, enough for a GPU.
BUDGET = 2**24
#: Smaller variances, relative to the largest, count as 0: rounding of float32 features is about 1e-14 of it.
_SMALLEST = 1e-10


def rows_at_a_time(numbers: int) -> int:
    """Return the count of rows, at least one, that fit the budget with ``numbers`` float32 each.

    In an exported graph these are all rows: a graph has no loop over an unknown number of parts.
    """
    return sys.maxsize if torch.compiler.is_exporting() else max(1, BUDGET // numbers)


def compute_by_parts(compute: Callable[..., Tensor], numbers: int, *tensors: Tensor) -> Tensor:
    """Return ``compute`` of the tensors, concatenated from parts; it needs ``numbers`` float32 for a row.

    Results are copied at once: small results between large freed temporaries fragment a CPU's heap, which
    then grows by gigabytes for a budget of megabytes.
    """
    if torch.compiler.is_exporting():
        return compute(*tensors)
    rows = rows_at_a_time(numbers)
    parts = zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
    first = compute(*next(parts))
    found = first.new_empty(len(tensors[0]), *first.shape[1:])
    places = iter(torch.split(found, rows))
    next(places).copy_(first)
    del first
    for part, place in zip(parts, places, strict=True):
        place.copy_(compute(*part))
    return found


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


def moments_of(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the labels that occur, their counts and means, and the scatter within all classes [D, D]."""
    found, members = torch.unique(labels, return_inverse=True)
    means, counts = means_of(features, members, len(found))
    scatter = products_of(features, means, members)
    return {"labels": found, "counts": counts, "means": means, "scatter": scatter}


def merge_moments(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the moments of all samples behind several moments; equal labels are one class."""
    labels, counts, means = (
        torch.cat([part[key] for part in parts]) for key in ("labels", "counts", "means")
    )
    found, members = torch.unique(labels, return_inverse=True)
    shares = F.one_hot(members, len(found)).to(means) * counts[:, None]
    totals = shares.sum(dim=0)
    merged = shares.T @ means / totals[:, None]
    apart = means - merged[members]
    scatter = torch.stack([part["scatter"] for part in parts]).sum(dim=0) + (counts * apart.T) @ apart
    return {"labels": found, "counts": totals, "means": merged, "scatter": scatter}


@dataclass(frozen=True)
class Gaussians:
    """A mean for each class that occurs, and one covariance of the features around their means."""

    means: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, moments: Mapping[str, Tensor], along: Tensor | None = None) -> "Gaussians":
        """Compute from moments, within the span of the axes ``along`` [D, R] if given."""
        means, spread = moments["means"], moments["scatter"] / moments["counts"].sum()
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


@dataclass(frozen=True)
class TaskStandards:
    """Mean and spread [C] of the scores of images from each class's task."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, tasks: Tensor) -> "TaskStandards":
        """Compute from scores and labels [N] and the task of each class [C]; spreads are standard deviations.

        A task without images has the mean of all. A task of fewer than two images, or of equal scores, has
        the spread within all tasks; if that is 0, the spread of all scores; if that is 0, 1.
        """
        values = as_float64(scores)
        labels, tasks = check_labels(labels, len(tasks)).to(values.device), tasks.to(values.device)
        # Equal scores up to rounding have a smaller spread.
        least = 1e-6 * float(values.abs().max())
        of_sample, known = tasks[labels], torch.unique(tasks)
        parts = [values[of_sample == task] for task in known]
        inner = torch.cat([part - part.mean() for part in parts if len(part)])
        freedom = len(values) - sum(len(part) > 0 for part in parts)
        within = float(inner.square().sum() / max(freedom, 1)) ** 0.5
        overall = float(values.std()) if len(values) > 1 else 0.0
        fallback = next((spread for spread in (within, overall) if spread > least), 1.0)
        mean, spread = values.new_empty(len(tasks)), values.new_empty(len(tasks))
        for task, part in zip(known, parts, strict=True):
            own = float(part.std()) if len(part) > 1 else 0.0
            mean[tasks == task] = part.mean() if len(part) else values.mean()
            spread[tasks == task] = own if own > least else fallback
        return cls(mean, spread)

    def standardise(self, scores: Tensor, logits: Tensor) -> Tensor:
        """Return (score − mean) / spread by the task of the class with the largest logit, [N]."""
        predicted, wide = to_float64_device(logits).argmax(dim=1), as_float64(scores)
        mean, spread = self.mean.to(wide.device), self.spread.to(wide.device)
        return ((wide - mean[predicted]) / spread[predicted]).float().to(scores.device)
