"""LTS: logits scaled by how even the features are."""

from dataclasses import dataclass

from torch import Tensor

from opencil import Detector, Outputs, Paper, register_detector
from opencil.detectors.posthoc.shaping import crowding, largest
from opencil.validation import PositiveFraction


@register_detector("lts", paper=Paper("Logit Scaling for Out-of-Distribution Detection", 2024, "2409.01175"))
@dataclass
class LTS(Detector):
    """Energy of logits scaled by (Σφ⁺ / sum of the largest φ⁺)²."""

    equation = (
        r"S(x) = \log \sum_c e^{s \, z_c} \\ "
        r"s = \left( \frac{\sum_d \max(0, \varphi_d)}"
        r"{\sum_{d \in \text{largest}} \max(0, \varphi_d)} \right)^2"
    )
    differs = (
        "The number of features is rounded as in the authors' code, and at least one; if all features are 0, "
        "the logits are not scaled."
    )

    share: PositiveFraction = 0.05  #: of the features that count as the largest

    reads = frozenset({"features", "logits"})

    def scores(self, outputs: Outputs) -> Tensor:
        """Return logsumexp(s z), [N]."""
        features = outputs.features
        scale = crowding(features, largest(features, 100 * (1 - self.share))[0]).square()
        return (scale * outputs.logits).logsumexp(dim=1)
