"""NPOS: non-parametric outlier synthesis."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, register_detector
from opencil.detectors.finetune.energy_margins import Synthesiser
from opencil.detectors.finetune.tuner import Batch
from opencil.detectors.moments import rows_at_a_time
from opencil.validation import Count, Positive


@register_detector("npos", paper=Paper("Non-Parametric Outlier Synthesis", 2023, "2303.02966"))
@dataclass
class NPOS(Synthesiser):
    """Outliers from perturbed features at a class's boundary: those farthest from the class.

    Distances are between normalised features (``directions``) or between features. Perturbations are
    always of features.
    """

    equation = (
        r"L = \text{CE} + \alpha \left( \text{in}(x) + \text{out}(o) + \text{in}(m) \right) \\ "
        r"o = \varphi_{\text{boundary}} + \mathcal N(0, \sigma^2), \text{ those farthest from the class}"
    )
    differs = (
        "The perturbations farthest from the class are kept; because of a reshape the paper's code keeps "
        "unrelated ones."
    )

    neighbours: Count = 400  #: distances are to the nearest feature of this rank
    boundary: Count = 200  #: features with the largest distances
    chosen: Count = 2  #: random features of the boundary
    perturbations: Count = 1000  #: of each chosen feature
    kept: Count = 300  #: perturbations of each chosen feature, the farthest
    sigma: Positive = 0.1
    distances: Literal["directions", "features"] = "directions"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours >= self.queue:
            raise ValueError(f"neighbours = {self.neighbours} should be below queue = {self.queue}")
        for small, large in (("boundary", "queue"), ("chosen", "boundary"), ("kept", "perturbations")):
            few, many = getattr(self, small), getattr(self, large)
            if few > many:
                raise ValueError(f"{small} = {few} should be at most {large} = {many}")

    @torch.no_grad()
    def outliers(self, features: Tensor, batch: Batch) -> Tensor:
        """Return ``kept`` perturbations of each chosen feature of each class, computed in parts."""
        pairs = self.queue * (self.queue + self.chosen * self.perturbations)  # of a class
        parts = torch.split(features, rows_at_a_time(2 * pairs))
        return torch.cat([self._outliers(part, batch.generator) for part in parts])

    def _outliers(self, features: Tensor, numbers: torch.Generator) -> Tensor:
        classes, _, width = features.shape
        # The nearest feature of each is the feature itself.
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
        """Return distances of points [classes, N, D] to the class's k-th nearest feature, [classes, N]."""
        if self.distances == "directions":
            points, features = F.normalize(points, dim=2), F.normalize(features, dim=2)
        return torch.cdist(points, features).kthvalue(k, dim=2).values


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    """Return ``table[g, rows[g]]`` for each group g: [G, R, D]."""
    return table.gather(1, rows[..., None].expand(*rows.shape, table.shape[-1]))
