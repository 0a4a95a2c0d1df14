"""TempScale: MSP at a temperature fitted to labels."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import check_labels, in_chunks


@register_detector("tempscale", paper=Paper("On Calibration of Modern Neural Networks", 2017, "1706.04599"))
@dataclass
class TempScale(SetUpDetector):
    """Log-odds of the largest softmax(z / T), at the maximum-likelihood temperature for set-up labels."""

    equation = (
        r"S(x) = \max_c \log \frac{p_c}{1 - p_c}, \quad p = \text{softmax}(z / T) \\ "
        r"T = \text{argmin} \sum_j \text{CE}(z_j / T, y_j), \quad 0.1 \le T \le 10"
    )
    differs = (
        "The paper fits T on held-out images; here the model was trained on the set-up images, so T is too "
        "low. Log-odds order samples as the probability does, which at a low temperature rounds to 1."
    )

    reads = frozenset({"logits"})
    setup_reads = frozenset({"logits", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Find T by bisection: CE is convex in 1 / T."""
        labels = check_labels(outputs.labels, outputs.logits.shape[1])
        # If all set-up images are predicted correctly, the optimum would be T = 0.
        low, high = -math.log(10), -math.log(0.1)
        for _ in range(40):
            middle = (low + high) / 2
            falls = self._slope(outputs.logits, labels, math.exp(middle)) < 0
            low, high = (middle, high) if falls else (low, middle)
        self._inverse = math.exp((low + high) / 2)

    @staticmethod
    def _slope(logits: Tensor, labels: Tensor, inverse: float) -> float:
        """Return the derivative of Σ CE by 1 / T, Σ ⟨p, z − z_y⟩; as a difference of sums it rounds to 0."""
        return sum(
            float(((inverse * z).softmax(dim=1) * (z - z.gather(1, y[:, None]))).sum())
            for z, y in in_chunks(logits, labels)
        )

    def scores(self, outputs: Outputs) -> Tensor:
        """Return log p / (1 − p) = −log Σ of the others over the largest, [N]; 0 for a single class."""
        ordered = outputs.logits.sort(dim=1, descending=True).values
        others = self._inverse * (ordered[:, 1:] - ordered[:, :1])
        return -others.logsumexp(dim=1) if others.shape[1] else torch.zeros_like(ordered[:, 0])
