"""DICE: directed sparsification."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64
from opencil.detectors.moments import mean_of
from opencil.detectors.posthoc.shaping import Percentile


@register_detector(
    "dice",
    paper=Paper("DICE: Leveraging Sparsification for Out-of-Distribution Detection", 2022, "2111.09805"),
)
@dataclass
class DICE(SetUpDetector):
    """Energy of a head that keeps only the weights with the largest mean contributions to set-up images."""

    equation = (
        r"S(x) = \log \sum_c e^{(M \odot W)_c \varphi + b_c} \\ "
        r"M_{ci} = 1 \text{ if } W_{ci} \bar\varphi_i > \text{the percentile of all of these, else } 0"
    )
    differs = "The paper uses 90 on CIFAR and 70 on ImageNet: `@imagenet`."

    percentile: Percentile = 90.0

    named = {**SetUpDetector.named, "imagenet": {"percentile": 70.0}}
    reads = frozenset({"features"})
    setup_reads = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Set the weights to 0 whose contribution W · mean φ is at most the percentile."""
        weight, self._bias = outputs.linear()
        contribution = (as_float64(weight) * mean_of(outputs.features)).cpu()
        kept = contribution > np.percentile(contribution.numpy(), self.percentile)
        self._weight = weight * kept.to(weight.device)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return logsumexp((M ⊙ W) φ + b), [N]."""
        return F.linear(outputs.features, self._weight, self._bias).logsumexp(dim=1)
