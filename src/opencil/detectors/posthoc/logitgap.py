"""LogitGap: how far the largest logit stands out."""

import math
from dataclasses import dataclass

from torch import Tensor

from opencil import LogitDetector, Outputs, Paper, register_detector
from opencil.validation import Count, PositiveFraction


@register_detector(
    "logitgap",
    paper=Paper(
        "Revisiting Logit Distributions for Reliable Out-of-Distribution Detection", 2025, "2510.20134"
    ),
)
@dataclass
class LogitGap(LogitDetector):
    """Largest logit minus the mean of the N next largest."""

    equation = r"S(x) = z_{(1)} - \frac{1}{N} \sum_{i=2}^{N+1} z_{(i)}"
    differs = (
        "The authors' scripts set N for each dataset: 5 of 10 classes, 20 of 100, 88 of 1,000. Here the "
        "number of classes grows, so N is a share of it: a fifth, at most 88."
    )

    share: PositiveFraction = 0.2  #: N as a share of the classes
    most: Count = 88  #: upper limit of N

    def scores(self, outputs: Outputs) -> Tensor:
        """Return z₍₁₎ − mean of the next N, N ≥ 1; 0 for a single class, [N]."""
        classes = outputs.logits.shape[1]
        others = min(math.ceil(self.share * classes), self.most, classes - 1)
        largest = outputs.logits.topk(1 + others, dim=1).values
        # A difference of means would round twice.
        return (largest[:, :1] - largest[:, min(1, others) :]).mean(dim=1)
