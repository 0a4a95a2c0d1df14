"""Relative Mahalanobis distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import Gaussians


@register_detector(
    "relative-mahalanobis",
    paper=Paper("A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021, "2106.09022"),
)
@dataclass
class RelativeMahalanobis(SetUpDetector):
    """Distance to a Gaussian of all features minus the distance to the nearest class."""

    title = "relative Mahalanobis"
    equation = (
        r"S(x) = d_0(\varphi) - \min_c d_c(\varphi) \\ "
        r"d_c = (\varphi - \mu_c)^\top \Sigma^{+} (\varphi - \mu_c) \quad "
        r"d_0 = (\varphi - \mu_0)^\top \Sigma_0^{+} (\varphi - \mu_0)"
    )
    differs = (
        "The inverses are pseudo-inverses, as in `mahalanobis`; directions without variance within classes "
        "are ignored in both distances."
    )

    reads = frozenset({"features"})
    setup_reads = frozenset({"features", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute the classes' Gaussians, and one of all features."""
        assert outputs.labels is not None
        self._classes = Gaussians.of(outputs.features, outputs.labels)
        together = torch.zeros_like(outputs.labels)
        self._all = Gaussians.of(outputs.features, together)
        if self._classes.whitening.shape[1] < self._all.whitening.shape[1]:
            self._all = Gaussians.of(outputs.features, together, along=self._classes.whitening)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return d₀ − min_c d_c, [N]."""
        return self._all.nearest(outputs.features) - self._classes.nearest(outputs.features)
