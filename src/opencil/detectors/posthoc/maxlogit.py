"""Maximum logit."""

from dataclasses import dataclass

from torch import Tensor

from opencil import LogitDetector, Outputs, Paper, register_detector


@register_detector(
    "maxlogit",
    paper=Paper("Scaling Out-of-Distribution Detection for Real-World Settings", 2022, "1911.11132"),
)
@dataclass
class MaxLogit(LogitDetector):
    """Largest logit: max z."""

    equation = r"S(x) = \max_c z_c"

    def scores(self, outputs: Outputs) -> Tensor:
        """Return max z, [N]."""
        return outputs.logits.amax(dim=1)
