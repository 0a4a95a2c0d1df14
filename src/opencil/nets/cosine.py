"""A head that sees directions alone: a learned scale times cosines, with one row a class or several."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.nets.model import Backbone, Model

#: Rounds of k-means: few hundred points in ten clusters settle in fewer.
_ROUNDS = 50


class CosineHead(nn.Module):
    """Logits σ · cos(f, w), σ learned.

    Of a class with several rows (``proxies``) it is the mean of their cosines, weighted by their softmax. The
    rows of each step's classes are a parameter of their own, so that those of old classes can stay as they
    are. ``sizes`` are the steps' numbers of classes.
    """

    def __init__(self, width: int, sizes: Sequence[int], proxies: int = 1) -> None:
        super().__init__()
        self.in_features, self.proxies = width, proxies
        self.rows = nn.ParameterList(self._drawn(size) for size in sizes)
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def out_features(self) -> int:
        """Number of classes."""
        return sum(len(rows) for rows in self.rows) // self.proxies

    def _drawn(self, classes: int) -> Tensor:
        """Rows of new classes, drawn on the CPU: the same everywhere."""
        bound = self.in_features**-0.5
        return torch.empty(classes * self.proxies, self.in_features).uniform_(-bound, bound)

    def reset_parameters(self) -> None:
        """Rows drawn anew, and σ = 1."""
        with torch.no_grad():
            for rows in self.rows:
                rows.copy_(self._drawn(len(rows) // self.proxies))
            self.scale.fill_(1)

    def cosines(self, features: Tensor) -> Tensor:
        """A class's cosine [B, classes], in float32 whatever trains: margins are tenths of them."""
        with torch.autocast(features.device.type, enabled=False):
            rows = F.normalize(torch.cat(list(self.rows)), dim=1)
            found = F.linear(F.normalize(features.float(), dim=1), rows)
            if self.proxies == 1:
                return found
            each = found.view(len(found), -1, self.proxies)
            return (each.softmax(dim=2) * each).sum(dim=2)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [B, classes]."""
        return self.scale * self.cosines(features)

    def grown(self, classes: int) -> Self:
        """A head over ``classes`` classes with rows more, and these as they are."""
        head = copy.deepcopy(self)
        head.rows.append(nn.Parameter(self._drawn(classes - self.out_features).to(self.scale.device)))
        return head

    def freeze_old(self) -> None:
        """Keep all rows but the newest step's as they are."""
        for rows in self.rows[:-1]:
            rows.requires_grad_(False)

    @torch.no_grad()
    def imprint(self, features: Sequence[Tensor]) -> None:
        """Make the newest rows the centres of their classes' unit features [n, D], as long as others are."""
        centres = torch.cat([centres_of(F.normalize(each, dim=1), self.proxies) for each in features])
        length = torch.cat(list(self.rows[:-1])).norm(dim=1).mean()
        self.rows[-1].copy_(length * F.normalize(centres, dim=1).to(length.device))


def centres_of(points: Tensor, count: int) -> Tensor:
    """Centres [count, D] of clusters of points [n, D], n ≥ 1, by k-means; of one cluster it is the mean.

    It begins with the point nearest to the mean, and then always the one farthest from those taken, so that
    nothing is drawn; on the CPU, the same everywhere. Of fewer points than centres some come twice.
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
