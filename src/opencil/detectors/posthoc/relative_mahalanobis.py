"""Relative Mahalanobis distance."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, register_detector
from opencil.detectors.moments import Gaussians, merge_moments, moments_of
from opencil.detectors.posthoc.mahalanobis import Mahalanobis
from opencil.engine.forward import Statistics


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

    def combine(self, parts: Sequence[Statistics], outputs: Outputs) -> None:
        """Compute the classes' Gaussians, and one of all features."""
        super().combine(parts, outputs)
        features = self.features(outputs)
        if len(parts) == 1:
            labels = torch.zeros(len(outputs), dtype=torch.int64, device=features.device)
            together = moments_of(features, labels)
        else:
            together = merge_moments([{**part, "labels": 0 * part["labels"]} for part in parts])
        self._all = Gaussians.of(together)
        if self._classes.whitening.shape[1] < self._all.whitening.shape[1]:
            self._all = Gaussians.of(together, along=self._classes.whitening)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return d₀ − min_c d_c, [N]."""
        return self._all.nearest(self.features(outputs)) + super().scores(outputs)
