"""DICE: directed sparsification."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.precision import reachable, widened
from opencil.detectors.detector import Reads, SetUpDetector
from opencil.detectors.posthoc.shaping import Percentile
from opencil.engine.forward import Outputs
from opencil.registry import Paper, register_detector


@register_detector(
    "dice",
    paper=Paper("DICE: Leveraging Sparsification for Out-of-Distribution Detection", 2022, "2111.09805"),
)
@dataclass
class DICE(SetUpDetector):
    """Energy of the head with the weights alone that contribute most in the mean over set-up images."""

    equation: ClassVar[str] = (
        r"S(x) = \log \sum_c e^{(M \odot W)_c \varphi + b_c} \\ "
        r"M_{ci} = 1 \text{ if } W_{ci} \bar\varphi_i > \text{the percentile of all of these, else } 0"
    )
    differs: ClassVar[str] = "The paper has 90 on CIFAR, and 70 on ImageNet: `@imagenet`."

    percentile: Percentile = 90.0

    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **SetUpDetector.named,
        "imagenet": {"percentile": 70.0},
    }

    reads: ClassVar[frozenset[Reads]] = frozenset({"features"})
    setup_reads: ClassVar[frozenset[Reads]] = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """W without the weights whose contribution W · mean φ is at most the percentile."""
        weight, self._bias = outputs.linear()
        mean = reachable(outputs.features).mean(dim=0, dtype=torch.float64)
        contribution = (widened(weight) * mean).cpu()
        kept = contribution > np.percentile(contribution.numpy(), self.percentile)
        self._weight = weight * kept.to(weight.device)

    def scores(self, outputs: Outputs) -> Tensor:
        """logsumexp((M ⊙ W) φ + b), [N]."""
        return F.linear(outputs.features, self._weight, self._bias).logsumexp(dim=1)
