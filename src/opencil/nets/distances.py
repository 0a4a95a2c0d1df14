"""A head whose logits are negative distances to class means, each under a matrix of the class's own."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.nets.cosine import CosineHead


class DistanceHead(CosineHead):
    """Squared distances to the rows, all raised to a power and made unit, under ``inverses`` [classes, D, D].

    Its logits as a cosine head are those of ``cosine_logits``.
    """

    inverses: Tensor

    def __init__(self, width: int, sizes: Sequence[int], power: float) -> None:
        super().__init__(width, sizes)
        self.power = power
        self.register_buffer("inverses", torch.eye(width).repeat(sum(sizes), 1, 1))

    def cosine_logits(self, features: Tensor) -> Tensor:
        """σ · cos(f, w), [B, classes]."""
        return super().forward(features)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [B, classes]."""
        means = F.normalize(powered(torch.cat(list(self.rows)), self.power), dim=1)
        points = F.normalize(powered(features.float(), self.power), dim=1)
        # Class after class: all differences at once would take classes × D numbers an image.
        distances = []
        for mean, inverse in zip(means, self.inverses, strict=True):
            apart = points - mean
            distances.append((apart @ inverse * apart).sum(dim=1))
        return -torch.stack(distances, dim=1)

    def grown(self, classes: int) -> Self:
        """A head over ``classes`` classes; the matrix of a new one is the identity."""
        head = super().grown(classes)
        more = torch.eye(self.in_features).repeat(classes - self.out_features, 1, 1)
        head.inverses = torch.cat([self.inverses, more.to(self.inverses)])
        return head


def powered(features: Tensor, power: float) -> Tensor:
    """sign(f) |f|^β; at 0 its gradient is 0, and not infinite."""
    return features.sign() * features.abs().clamp(min=1e-12) ** power


def covariance(features: Tensor) -> Tensor:
    """Of features [n, D], unbiased; 0 of a single one."""
    centred = features - features.mean(dim=0)
    return centred.T @ centred / max(len(features) - 1, 1)


def shrunk(spread: Tensor, diagonal: float, rest: float) -> Tensor:
    """Σ + a · mean variance · I + b · mean of the other entries that are not 0 · (1 − I)."""
    eye = torch.eye(len(spread)).to(spread)
    others = spread * (1 - eye)
    mean = others.sum() / (others != 0).sum().clamp(min=1)
    return spread + diagonal * spread.diagonal().mean() * eye + rest * mean * (1 - eye)


def correlation(spread: Tensor) -> Tensor:
    """A covariance as a correlation matrix; what does not vary is correlated with itself alone."""
    deviations = spread.diagonal().clamp(min=0).sqrt()
    found = spread / (deviations[:, None] * deviations).clamp(min=1e-30)
    return found.fill_diagonal_(1)
