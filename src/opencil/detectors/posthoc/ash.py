"""ASH: activation shaping."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from opencil import Paper, register_detector
from opencil.detectors.posthoc.shaping import Percentile, Shaper, crowding, largest


@register_detector(
    "ash",
    paper=Paper("Extremely Simple Activation Shaping for Out-of-Distribution Detection", 2023, "2209.09858"),
)
@dataclass
class ASH(Shaper):
    """Energy of a sample's largest features: unchanged (P), made equal (B) or scaled up (S)."""

    equation = (
        r"S(x) = \log \sum_c e^{h(\tilde\varphi)_c} \\ "
        r"\tilde\varphi_i = 0 \text{ below the sample's own percentile, else} \\ "
        r"\text{P: } \varphi_i \quad \text{B: } \tfrac{1}{k} \sum_j \varphi_j \quad "
        r"\text{S: } \varphi_i \exp \frac{\sum_j \varphi_j}{\sum_{j \in \text{largest } k} \varphi_j}"
    )
    differs = (
        "65 is the default of the authors' functions; their file for CIFAR-100 has S at 95, `@authors`. "
        "OpenOOD has B and chooses the percentile on OOD images, starting at 90, `@openood`."
    )

    variant: Literal["p", "b", "s"] = "s"
    percentile: Percentile = 65.0

    named = {
        "p": {"variant": "p"},
        "b": {"variant": "b"},
        "authors": {"variant": "s", "percentile": 95.0},
        "openood": {"variant": "b", "percentile": 90.0},
    }

    def shape(self, features: Tensor) -> Tensor:
        """Return the largest features, shaped, and 0 for the others."""
        values, columns = largest(features, self.percentile)
        if self.variant == "b":
            mean = features.clamp(min=0).sum(dim=1, keepdim=True) / values.shape[1]
            values = mean.expand_as(values)
        elif self.variant == "s":
            values = values * crowding(features, values).exp()
        return torch.zeros_like(features).scatter_(1, columns, values)
