"""ReAct: rectified activations."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.posthoc.shaping import Percentile, shaped_energy


@register_detector(
    "react",
    paper=Paper("ReAct: Out-of-distribution Detection With Rectified Activations", 2021, "2111.12797"),
)
@dataclass
class ReAct(SetUpDetector):
    """Energy of features clipped at a percentile q of the set-up features: logsumexp(h(min(φ, q)))."""

    equation = (
        r"S(x) = \log \sum_c e^{h(\min(\varphi, q))_c} \\ "
        r"q = \text{percentile of all set-up features}"
    )

    percentile: Percentile = 90.0

    reads = frozenset({"features", "head"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute the percentile q of all feature values together, interpolated linearly."""
        # numpy is linear in time; torch.quantile refuses more than 2^24 values.
        self._limit = float(np.percentile(outputs.features.cpu().numpy(), self.percentile))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return logsumexp(h(min(φ, q))), [N]."""
        return shaped_energy(outputs, lambda features: features.clamp(max=self._limit))
