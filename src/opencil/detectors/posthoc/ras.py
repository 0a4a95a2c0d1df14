"""RAS: ranked activation shift."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import mean_of
from opencil.detectors.posthoc.shaping import Shaper


@register_detector(
    "ras",
    paper=Paper("Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection", 2026, "2604.08572"),
)
@dataclass
class RAS(Shaper, SetUpDetector):
    """Energy of features replaced, rank by rank, by the mean of sorted set-up features."""

    equation = (
        r"S(x) = \log \sum_c e^{h(\tilde\varphi)_c} \\ "
        r"\tilde\varphi_i = m_{\text{rank}(\varphi_i)}, \quad "
        r"m = \text{mean of sorted set-up features}"
    )
    differs = "Among equal features, such as zeros after a ReLU, the first has the lowest rank."

    def set_up(self, outputs: Outputs) -> None:
        """Compute the mean of the set-up features, each sorted, [D]."""
        ordered = outputs.features.sort(dim=1).values
        self._profile = mean_of(ordered).float().to(ordered.device)

    def shape(self, features: Tensor) -> Tensor:
        """Return the profile's values in the order of the features."""
        places = features.argsort(dim=1, stable=True)
        return torch.empty_like(features).scatter_(1, places, self._profile.expand_as(features))
