"""A metric that is not ours: it needs no OOD set, and less of it is better."""

import torch
from torch import Tensor

import opencil


@opencil.register_metric(
    "aurc",
    label="AURC",
    definition="mean error rate of the ID images that are kept, over all thresholds.",
    lower_is_better=True,
)
def aurc(id_scores: Tensor, correct: Tensor) -> Tensor:
    """Area under the curve of risk against coverage."""
    wrong = (~correct[id_scores.argsort(descending=True)]).double()
    return (wrong.cumsum(0) / torch.arange(1, len(wrong) + 1, device=wrong.device)).mean()
