"""GradNorm, without a gradient."""

from dataclasses import dataclass

from torch import Tensor

from opencil import Detector, Outputs, Paper, register_detector
from opencil.validation import Positive


@register_detector(
    "gradnorm",
    paper=Paper(
        "On the Importance of Gradients for Detecting Distributional Shifts in the Wild", 2021, "2110.00218"
    ),
)
@dataclass
class GradNorm(Detector):
    """Size of the head's gradient towards an even prediction: Σ|φ| · Σ|C softmax(z / T) − 1| / T."""

    equation = (
        r"S(x) = \left\| \nabla_W \sum_c -\log \text{softmax}(z / T)_c \right\|_1 "
        r"= \frac{1}{T} \sum_d |\varphi_d| \cdot \sum_c |C \, \text{softmax}(z / T)_c - 1|"
    )
    differs = (
        "The paper's code and OpenOOD run a backward pass for each sample; for a linear head the norm is "
        "this product of two sums. For other heads, such as cosine heads, the product is the score too."
    )

    temperature: Positive = 1.0

    reads = frozenset({"features", "logits"})

    def scores(self, outputs: Outputs) -> Tensor:
        """Return Σ|φ| · Σ|C p − 1| / T, [N]."""
        p = (outputs.logits / self.temperature).softmax(dim=1)
        uneven = (p.shape[1] * p - 1).abs().sum(dim=1)
        return outputs.features.abs().sum(dim=1) * uneven / self.temperature
