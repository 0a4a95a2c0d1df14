"""Entropy of the prediction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import LogitDetector, Outputs, Paper, register_detector


@register_detector(
    "entropy",
    paper=Paper(
        "Entropy Maximization and Meta Classification for Out-of-Distribution Detection in Semantic "
        "Segmentation",
        2021,
        "2012.06575",
    ),
)
@dataclass
class Entropy(LogitDetector):
    """Negative entropy of the prediction: Σ p log p."""

    equation = r"S(x) = \sum_c p_c \log p_c"
    differs = "The paper scores pixels, and trains a network for that; here is only the score."

    def scores(self, outputs: Outputs) -> Tensor:
        """Return Σ p log p, [N]."""
        entropy: Tensor = torch.special.entr(outputs.logits.softmax(dim=1)).sum(dim=1)
        return -entropy
