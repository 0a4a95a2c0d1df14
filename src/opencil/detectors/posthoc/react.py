"""ReAct: rectified activations."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.posthoc.shaping import Percentile, Shaper


@register_detector(
    "react",
    paper=Paper("ReAct: Out-of-distribution Detection With Rectified Activations", 2021, "2111.12797"),
)
@dataclass
class ReAct(Shaper, SetUpDetector):
    """Energy of features clipped at a percentile q of the set-up features: logsumexp(h(min(φ, q)))."""

    equation = (
        r"S(x) = \log \sum_c e^{h(\min(\varphi, q))_c} \\ "
        r"q = \text{percentile of all set-up features}"
    )

    percentile: Percentile = 90.0

    named = {**SetUpDetector.named, "released": {"setup": "memory+test"}}

    def set_up(self, outputs: Outputs) -> None:
        """Compute the percentile q of all feature values together, interpolated linearly."""
        # numpy is linear in time; torch.quantile refuses more than 2^24 values.
        self._limit = float(np.percentile(outputs.features.cpu().numpy(), self.percentile))

    def shape(self, features: Tensor) -> Tensor:
        """Return min(φ, q)."""
        return features.clamp(max=self._limit)
