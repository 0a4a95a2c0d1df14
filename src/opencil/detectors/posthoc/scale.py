"""SCALE."""

from dataclasses import dataclass

from torch import Tensor

from opencil import Paper, register_detector
from opencil.detectors.posthoc.shaping import Percentile, Shaper, crowding, largest


@register_detector(
    "scale",
    paper=Paper(
        "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", 2024, "2310.00227"
    ),
)
@dataclass
class SCALE(Shaper):
    """Energy of features scaled up by the share of the smaller ones: h(φ · exp(Σφ / Σ largest))."""

    equation = (
        r"S(x) = \log \sum_c e^{h(r \varphi)_c} \\ "
        r"r = \exp \frac{\sum_j \varphi_j}{\sum_{j \in \text{largest } k} \varphi_j}"
    )
    differs = (
        "The authors' and OpenOOD's code start at 85, as here, and choose the percentile on OOD images; "
        "pytorch-ood has 65, `@pytorch-ood`. With a cosine head, which ignores the length of features, the "
        "score is Energy."
    )

    percentile: Percentile = 85.0

    named = {"pytorch-ood": {"percentile": 65.0}}

    def shape(self, features: Tensor) -> Tensor:
        """Return r φ."""
        return features * crowding(features, largest(features, self.percentile)[0]).exp()
