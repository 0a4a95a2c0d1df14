"""Relation: the neural relation graph."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import compute_by_parts
from opencil.validation import Fraction, Positive


@register_detector(
    "relation",
    paper=Paper(
        "Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data",
        2023,
        "2301.12321",
    ),
)
@dataclass
class Relation(SetUpDetector):
    """Sum of the relations to set-up images above a threshold: Σ r, r = max(0, cos(φ, φ_j)) · ⟨p, p_j⟩."""

    equation = (
        r"S(x) = \sum_{j:\, r_j > \theta} r_j^{\gamma} \\ "
        r"r_j = \max(0, \cos(\varphi, \varphi_j)) \cdot \langle p, p_j \rangle"
    )

    power: Positive = 1.0
    threshold: Fraction = 0.03

    named = {**SetUpDetector.named, "released": {"setup": "memory+test"}}

    def set_up(self, outputs: Outputs) -> None:
        """Store the set-up images' features, normalised to length 1, and probabilities."""
        self._features = F.normalize(outputs.features, dim=1)
        self._probabilities = outputs.logits.softmax(dim=1)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return Σ_j r_j^power over the relations above the threshold, [N]."""
        features, probabilities = F.normalize(outputs.features, dim=1), outputs.logits.softmax(dim=1)
        return compute_by_parts(self._strength, 2 * len(self._features), features, probabilities)

    def _strength(self, features: Tensor, probabilities: Tensor) -> Tensor:
        """Return the scores of a part, computed in place: [samples, set-up images] dominates the memory."""
        relation = features @ self._features.T
        relation *= probabilities @ self._probabilities.T
        torch.threshold_(relation, self.threshold, 0.0)  # at least 0, so it also removes negative cosines
        return (relation if self.power == 1 else relation.pow_(self.power)).sum(dim=1)
