"""Mahalanobis distance to the nearest class."""

from dataclasses import dataclass

from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import Gaussians


@register_detector(
    "mahalanobis",
    paper=Paper(
        "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks",
        2018,
        "1807.03888",
    ),
)
@dataclass
class Mahalanobis(SetUpDetector):
    """Negative squared distance to the nearest class mean, with one covariance for all classes."""

    equation = (
        r"S(x) = -\min_c (\varphi - \mu_c)^\top \Sigma^{+} (\varphi - \mu_c) \\ "
        r"\Sigma = \text{mean} \, (\varphi_j - \mu_{y_j})(\varphi_j - \mu_{y_j})^\top"
    )
    differs = (
        "The paper combines several layers and perturbs the images, tuned on OOD data; here is the last "
        "layer alone, as in OpenOOD's MDS. Directions in which set-up features do not vary are ignored."
    )

    reads = frozenset({"features"})
    setup_reads = frozenset({"features", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute a mean for each class of the set-up, and one covariance."""
        assert outputs.labels is not None
        self._classes = Gaussians.of(outputs.features, outputs.labels)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −min_c (φ − μ_c)ᵀ Σ⁺ (φ − μ_c), [N]."""
        return -self._classes.nearest(outputs.features)
