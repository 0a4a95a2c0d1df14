"""Cosine head: a learned scale times cosines, with one or several rows a class."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.nets.model import Backbone, Model

#: Rounds of k-means; a few hundred points in ten clusters converge in fewer.
_ROUNDS = 50


class CosineHead(nn.Module):
    """Logits σ · cos(f, w), σ learned.

    The cosine of a class with several rows (``proxies``) is the mean of theirs, weighted by their softmax.
    The rows of each step's classes are a separate parameter, since old ones can be frozen. ``sizes`` are the
    steps' numbers of classes.
    """

    def __init__(self, width: int, sizes: Sequence[int], proxies: int = 1) -> None:
        super().__init__()
        self.in_features, self.proxies = width, proxies
        self.rows = nn.ParameterList(self._draw(size) for size in sizes)
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def out_features(self) -> int:
        """Return the number of classes."""
        return sum(len(rows) for rows in self.rows) // self.proxies

    def _draw(self, classes: int) -> Tensor:
        """Draw rows of new classes, on the CPU: the same for all devices."""
        bound = self.in_features**-0.5
        return torch.empty(classes * self.proxies, self.in_features).uniform_(-bound, bound)

    def reset_parameters(self) -> None:
        """Draw all rows again, and set σ = 1."""
        with torch.no_grad():
            for rows in self.rows:
                rows.copy_(self._draw(len(rows) // self.proxies))
            self.scale.fill_(1)

    def cosines(self, features: Tensor) -> Tensor:
        """Return each class's cosine [B, classes], always in float32: margins are tenths of them."""
        with torch.autocast(features.device.type, enabled=False):
            rows = F.normalize(torch.cat(list(self.rows)), dim=1)
            cosines = F.linear(F.normalize(features.float(), dim=1), rows)
            if self.proxies == 1:
                return cosines
            cosines = cosines.view(len(cosines), -1, self.proxies)
            return (cosines.softmax(dim=2) * cosines).sum(dim=2)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [B, classes]."""
        return self.scale * self.cosines(features)

    def grow(self, classes: int) -> Self:
        """Return a copy of this head with further rows, over ``classes`` classes."""
        head = copy.deepcopy(self)
        head.rows.append(nn.Parameter(self._draw(classes - self.out_features).to(self.scale.device)))
        return head

    def freeze_old(self) -> None:
        """Freeze all rows but the newest step's."""
        for rows in self.rows[:-1]:
            rows.requires_grad_(False)

    @torch.no_grad()
    def imprint(self, features: Sequence[Tensor]) -> None:
        """Set the newest rows to the centres of their classes' unit features [n, D], of mean length."""
        centres = torch.cat([find_centres(F.normalize(each, dim=1), self.proxies) for each in features])
        length = torch.cat(list(self.rows[:-1])).norm(dim=1).mean()
        self.rows[-1].copy_(length * F.normalize(centres, dim=1).to(length.device))


def find_centres(points: Tensor, count: int) -> Tensor:
    """Return centres [count, D] of points [n, D], n ≥ 1, by k-means; the mean for one centre.

    The first centre is the point nearest to the mean, each next one the point farthest from all centres so
    far. It computes on the CPU, the same for all devices. With fewer points than centres some repeat.
    """
    points = points.cpu().double()
    centres = points.mean(dim=0, keepdim=True)
    if count > 1:
        centres = points[torch.cdist(points, centres).argmin()][None]
        while len(centres) < count:
            centres = torch.cat([centres, points[torch.cdist(points, centres).amin(dim=1).argmax()][None]])
        for _ in range(_ROUNDS):
            nearest = F.one_hot(torch.cdist(points, centres).argmin(dim=1), count).to(points)
            members = nearest.sum(dim=0)[:, None]
            centres = torch.where(members > 0, nearest.T @ points / members.clamp(min=1), centres)
    return centres.float()


class CosineModel(Model):
    """A backbone under a cosine head; ``sizes`` are the steps' numbers of classes."""

    head: CosineHead  # type: ignore[assignment]

    def __init__(self, backbone: Backbone, sizes: Sequence[int], proxies: int = 1) -> None:
        super().__init__(backbone, sum(sizes))
        self.head = CosineHead(backbone.width, sizes, proxies)
