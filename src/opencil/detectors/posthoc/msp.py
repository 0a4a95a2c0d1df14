"""Maximum softmax probability."""

from dataclasses import dataclass

from torch import Tensor

from opencil import LogitDetector, Outputs, Paper, register_detector


@register_detector(
    "msp",
    paper=Paper(
        "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks",
        2017,
        "1610.02136",
    ),
)
@dataclass
class MSP(LogitDetector):
    """Largest softmax probability: max softmax(z)."""

    equation = r"S(x) = \max_c \text{softmax}(z)_c"

    def scores(self, outputs: Outputs) -> Tensor:
        """Return max softmax(z), [N]."""
        return outputs.logits.softmax(dim=1).amax(dim=1)
