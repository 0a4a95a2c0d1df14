"""Distance head: logits are negative Mahalanobis distances to class means, with a matrix for each class."""

from collections.abc import Iterable, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.precision import as_float64
from opencil.nets.class_statistics import ByStep
from opencil.nets.cosine import CosineHead


class DistanceHead(CosineHead):
    """Negative squared distances of normalised powers of features and rows, by a matrix for each class."""

    def __init__(self, width: int, sizes: Sequence[int], power: float) -> None:
        super().__init__(width, sizes)
        self.power, self.inverses = power, ByStep(sizes, torch.eye(width))

    def cosine_logits(self, features: Tensor) -> Tensor:
        """Return σ · cos(f, w), [B, classes]."""
        return super().forward(features)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [B, classes]."""
        return -class_distances(features, torch.cat(list(self.rows)), self.inverses, self.power)

    def grow(self, classes: int) -> Self:
        """Return a copy over ``classes`` classes; the matrix of a new class is the identity."""
        head = super().grow(classes)
        identity = torch.eye(self.in_features).to(self.scale.device)
        head.inverses.add(classes - self.out_features, identity)
        return head


def class_distances(features: Tensor, means: Tensor, inverses: Iterable[Tensor], power: float) -> Tensor:
    """Return squared distances [B, classes] of normalised powers to those of means, each by its matrix."""
    means = F.normalize(signed_power(means, power), dim=1)
    points = F.normalize(signed_power(features.float(), power), dim=1)
    # One class at a time: all differences would take classes × D numbers per image.
    distances = []
    for mean, inverse in zip(means, inverses, strict=True):
        difference = points - mean
        distances.append((difference @ inverse * difference).sum(dim=1))
    return torch.stack(distances, dim=1)


def class_inverse(features: Tensor, power: float, diagonal: float, rest: float) -> Tensor:
    """Return the pseudo-inverse [D, D] of the correlations of a class's powers of features, shrunk twice."""
    spread = covariance(as_float64(signed_power(features, power)))
    for _ in range(2):
        spread = shrink(spread, diagonal, rest)
    inverse: Tensor = torch.linalg.pinv(correlation(spread), hermitian=True)
    return inverse


def signed_power(features: Tensor, power: float) -> Tensor:
    """Return sign(f) |f|^β; its gradient at 0 is 0 instead of infinite."""
    return features.sign() * features.abs().clamp(min=1e-12) ** power


def covariance(features: Tensor) -> Tensor:
    """Return the unbiased covariance of features [n, D]; 0 for one row."""
    centred = features - features.mean(dim=0)
    return centred.T @ centred / max(len(features) - 1, 1)


def shrink(spread: Tensor, diagonal: float, rest: float) -> Tensor:
    """Return Σ + a · mean variance · I + b · mean of the other non-zero entries · (1 − I)."""
    eye = torch.eye(len(spread)).to(spread)
    others = spread * (1 - eye)
    mean = others.sum() / (others != 0).sum().clamp(min=1)
    return spread + diagonal * spread.diagonal().mean() * eye + rest * mean * (1 - eye)


def correlation(spread: Tensor) -> Tensor:
    """Return the correlation matrix of a covariance; the diagonal is 1 where the variance is 0, too."""
    deviations = spread.diagonal().clamp(min=0).sqrt()
    return (spread / (deviations[:, None] * deviations).clamp(min=1e-30)).fill_diagonal_(1)
