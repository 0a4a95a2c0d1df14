"""ASH: activation shaping."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from opencil.detectors.detector import Detector, Reads
from opencil.detectors.posthoc.shaping import Percentile, crowding, largest, shaped_energy
from opencil.engine.forward import Outputs
from opencil.registry import Paper, register_detector


@register_detector(
    "ash",
    paper=Paper("Extremely Simple Activation Shaping for Out-of-Distribution Detection", 2023, "2209.09858"),
)
@dataclass
class ASH(Detector):
    """Energy of a sample's largest features alone: as they are (P), all alike (B) or scaled up (S)."""

    equation: ClassVar[str] = (
        r"S(x) = \log \sum_c e^{h(\tilde\varphi)_c} \\ "
        r"\tilde\varphi_i = 0 \text{ below the sample's own percentile, else} \\ "
        r"\text{P: } \varphi_i \quad \text{B: } \tfrac{1}{k} \sum_j \varphi_j \quad "
        r"\text{S: } \varphi_i \exp \frac{\sum_j \varphi_j}{\sum_{j \in \text{largest } k} \varphi_j}"
    )
    differs: ClassVar[str] = (
        "65 is the default of the authors' functions; their file for CIFAR-100 has S at 95, `@authors`. "
        "OpenOOD has B, and chooses the percentile on OOD images, beginning with 90: `@openood`. Sums count "
        "features above 0; after a ReLU there are no others. Where fewer than k are above 0, B raises zeros "
        "too, as the authors' code does: here the first of them, there any. On a cosine head S is P."
    )

    variant: Literal["p", "b", "s"] = "s"
    percentile: Percentile = 65.0

    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "p": {"variant": "p"},
        "b": {"variant": "b"},
        "authors": {"variant": "s", "percentile": 95.0},
        "openood": {"variant": "b", "percentile": 90.0},
    }

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "head"})

    def scores(self, outputs: Outputs) -> Tensor:
        """logsumexp(h(φ̃)), [N]."""
        return shaped_energy(outputs, self._shaped)

    def _shaped(self, features: Tensor) -> Tensor:
        values, columns = largest(features, self.percentile)
        if self.variant == "b":
            mean = features.clamp(min=0).sum(dim=1, keepdim=True) / values.shape[1]
            values = mean.expand_as(values)
        elif self.variant == "s":
            values = values * crowding(features, values).exp()
        return torch.zeros_like(features).scatter_(1, columns, values)
