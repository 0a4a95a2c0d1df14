"""Relative Mahalanobis distance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, register_detector
from opencil.detectors.moments import Gaussians
from opencil.detectors.posthoc.mahalanobis import Mahalanobis


@register_detector(
    "relative-mahalanobis",
    paper=Paper("A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", 2021, "2106.09022"),
)
@dataclass
class RelativeMahalanobis(Mahalanobis):
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

    def set_up(self, outputs: Outputs) -> None:
        """Compute the classes' Gaussians, and one of all features."""
        super().set_up(outputs)
        together = torch.zeros(len(outputs), dtype=torch.int64, device=outputs.features.device)
        self._all = Gaussians.of(outputs.features, together)
        if self._classes.whitening.shape[1] < self._all.whitening.shape[1]:
            self._all = Gaussians.of(outputs.features, together, along=self._classes.whitening)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return d₀ − min_c d_c, [N]."""
        return self._all.nearest(outputs.features) + super().scores(outputs)
