"""NPOS: non-parametric outlier synthesis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.detectors.chunks import rows_at_a_time
from opencil.detectors.finetune.synthesis import Synthesiser
from opencil.detectors.finetune.tuner import Batch
from opencil.registry import Paper, register_detector
from opencil.validation import Count, Positive


@register_detector("npos", paper=Paper("Non-Parametric Outlier Synthesis", 2023, "2303.02966"))
@dataclass
class NPOS(Synthesiser):
    """Points at a class's boundary are perturbed, and what lands farthest from the class is an outlier.

    Distances are between directions, features of length 1, or between the features as they are; what is
    perturbed, and kept, are features.
    """

    equation: ClassVar[str] = (
        r"L = \text{CE} + \alpha \left( \text{in}(x) + \text{out}(o) + \text{in}(m) \right) \\ "
        r"o = \varphi_{\text{boundary}} + \mathcal N(0, \sigma^2), \text{ those farthest from the class}"
    )
    differs: ClassVar[str] = (
        "Of a point's perturbations the farthest from the class are kept; a reshape in the paper's code "
        "keeps others, which have nothing to do with it."
    )

    neighbours: Count = 400  #: the distance to the so-manieth nearest feature of the class
    boundary: Count = 200  #: features with the largest such distance
    chosen: Count = 2  #: of the boundary, at random
    perturbations: Count = 1000  #: of each chosen one
    kept: Count = 300  #: of each chosen one's perturbations
    sigma: Positive = 0.1
    distances: Literal["directions", "features"] = "directions"

    formerly: ClassVar[Mapping[str, Any]] = {"distances": "features", "outliers_by": "head"}

    def __post_init__(self) -> None:
        super().__post_init__()
        for small, large in (
            ("neighbours", "queue"),
            ("boundary", "queue"),
            ("chosen", "boundary"),
            ("kept", "perturbations"),
        ):
            few, many = getattr(self, small), getattr(self, large)
            if few > many or (small == "neighbours" and few == many):
                raise ValueError(
                    f"{small} = {few} is not allowed: it should be "
                    f"{'below' if small == 'neighbours' else 'at most'} {large} = {many}"
                )

    @torch.no_grad()
    def outliers(self, features: Tensor, batch: Batch) -> Tensor:
        """``kept`` perturbations of each chosen point of each class, a few classes at a time."""
        pairs = self.queue * (self.queue + self.chosen * self.perturbations)  # of a class
        parts = torch.split(features, rows_at_a_time(2 * pairs * features.element_size()))
        return torch.cat([self._outliers(part, batch.generator) for part in parts])

    def _outliers(self, features: Tensor, numbers: torch.Generator) -> Tensor:
        classes, _, width = features.shape
        # A feature's nearest one is itself.
        apart = self._kth_distance(features, features, self.neighbours + 1)  # [classes, queue]
        boundary = apart.topk(self.boundary, dim=1).indices
        chance = torch.rand(classes, self.boundary, generator=numbers, device=features.device)
        picks = boundary.gather(1, chance.topk(self.chosen, dim=1).indices)  # [classes, chosen]
        points = _rows(features, picks)[:, :, None]  # [classes, chosen, 1, D]
        shape = (classes, self.chosen, self.perturbations, width)
        moved = points + self.sigma * torch.randn(shape, generator=numbers, device=features.device)
        far = self._kth_distance(moved.flatten(1, 2), features, self.neighbours)
        best = far.view(shape[:3]).topk(self.kept, dim=2).indices  # [classes, chosen, kept]
        return _rows(moved.flatten(0, 1), best.flatten(0, 1)).flatten(0, 1)

    def _kth_distance(self, points: Tensor, features: Tensor, k: int) -> Tensor:
        """Distance of each point [classes, N, D] to the k-th nearest feature of its class, [classes, N]."""
        if self.distances == "directions":
            points, features = F.normalize(points, dim=2), F.normalize(features, dim=2)
        return torch.cdist(points, features).kthvalue(k, dim=2).values


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    """``table[g, rows[g]]`` for each group g: [G, R, D]."""
    return table.gather(1, rows[..., None].expand(*rows.shape, table.shape[-1]))
