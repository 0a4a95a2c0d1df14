"""Mahalanobis distance to the nearest class."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, register_detector
from opencil.detectors.detector import CarryingDetector, CarryingSetup
from opencil.detectors.moments import Gaussians, merge_moments, moments_of
from opencil.engine.forward import Statistics


@register_detector(
    "mahalanobis",
    paper=Paper(
        "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks",
        2018,
        "1807.03888",
    ),
)
@dataclass
class Mahalanobis(CarryingDetector):
    """Negative squared distance to the nearest class mean, with one covariance for all classes."""

    equation = (
        r"S(x) = -\min_c (\varphi - \mu_c)^\top \Sigma^{+} (\varphi - \mu_c) \\ "
        r"\Sigma = \text{mean} \, (\varphi_j - \mu_{y_j})(\varphi_j - \mu_{y_j})^\top"
    )
    differs = (
        "The paper combines several layers and perturbs the images, tuned on OOD data; here is the last "
        "layer alone, as in OpenOOD's MDS. Directions in which set-up features do not vary are ignored."
    )

    setup: CarryingSetup = field(default="memory", kw_only=True)
    unit: bool = False  #: whether features are scaled to length 1

    named = {"stated": {"setup": "train+"}, "carried": {"setup": "statistics"}}
    reads = frozenset({"features"})
    setup_reads = frozenset({"features", "labels"})

    @property
    def summary(self) -> str:
        """Return the kind of features that the moments are of."""
        return "moments-unit" if self.unit else "moments"

    def features(self, outputs: Outputs) -> Tensor:
        """Return the features, of length 1 if ``unit``."""
        return F.normalize(outputs.features, dim=1) if self.unit else outputs.features

    def summarise(self, outputs: Outputs) -> Statistics:
        """Return count and mean of each class, and the scatter within all."""
        assert outputs.labels is not None
        return moments_of(self.features(outputs), outputs.labels)

    def combine(self, parts: Sequence[Statistics], outputs: Outputs) -> None:
        """Compute a mean for each class, and one covariance."""
        self._classes = Gaussians.of(parts[0] if len(parts) == 1 else merge_moments(parts))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −min_c (φ − μ_c)ᵀ Σ⁺ (φ − μ_c), [N]."""
        return -self._classes.nearest(self.features(outputs))
