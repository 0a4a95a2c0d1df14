"""Kernel PCA: reconstruction error in the space of a kernel."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64
from opencil.detectors.moments import compute_by_parts, mean_of
from opencil.engine.seeding import generator
from opencil.validation import Count, Positive, PositiveFraction, Whole


@register_detector(
    "kernel-pca", paper=Paper("Kernel PCA for Out-of-Distribution Detection", 2024, "2402.02949")
)
@dataclass
class KernelPCA(SetUpDetector):
    """Negative reconstruction error of mapped unit features from their first principal axes."""

    title = "Kernel PCA"
    equation = (
        r"S(x) = -\| (I - U U^\top) (\Phi(x) - \bar\Phi) \| \\ "
        r"\Phi(x) = \sqrt{\tfrac{2}{M}} \cos \left( \Omega \tfrac{\varphi}{\|\varphi\|} + u \right), "
        r"\quad \Omega_{ij} \sim N(0, 2 \gamma), \; u_i \sim U(0, 2 \pi) \\ "
        r"U = \text{first principal axes of } \Phi \text{ over set-up images}"
    )
    differs = (
        "The values are those of the authors' script for CIFAR-10 and its cosine-Gaussian kernel (CoRP); "
        "they choose them for each network. `@cosine` is their cosine kernel (CoP), unit features alone."
    )

    kernel: Literal["gaussian", "cosine"] = "gaussian"
    variance: PositiveFraction = 0.8  #: share of it along the axes
    gamma: Positive = 2.0
    width: Count = 2048  #: M, the number of random Fourier features
    seed: Whole = 0

    named = {**SetUpDetector.named, "cosine": {"kernel": "cosine", "variance": 0.85}}
    reads = frozenset({"features"})

    def set_up(self, outputs: Outputs) -> None:
        """Draw Ω and u; compute the mean and the principal axes of mapped features."""
        features = outputs.features
        if self.kernel == "gaussian":
            random = generator(self.seed, "kernel-pca")
            drawn = torch.randn(self.width, features.shape[1], generator=random)
            self._omega = (math.sqrt(2 * self.gamma) * drawn).to(features.device)
            self._phase = (2 * math.pi * torch.rand(self.width, generator=random)).to(features.device)
        mapped = compute_by_parts(self._map, 3 * self._mapped_width(features), features)
        mean = mean_of(mapped)
        centred = as_float64(mapped) - mean
        # The axes of many samples from their covariance, of few from their inner products.
        few = len(centred) < centred.shape[1]
        values, vectors = torch.linalg.eigh(centred @ centred.T if few else centred.T @ centred)
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
        count = int((values.cumsum(0) < (self.variance - 1e-9) * values.sum()).sum()) + 1
        axes = vectors[:, : min(count, int((values > 1e-10 * values[0]).sum()))]
        axes = F.normalize(centred.T @ axes, dim=0) if few else axes
        self._mean, self._axes = (t.float().to(features.device) for t in (mean, axes))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −‖(I − U Uᵀ)(Φ − mean Φ)‖, [N]."""
        numbers = 6 * self._mapped_width(outputs.features)
        return -compute_by_parts(self._error, numbers, outputs.features)

    def _mapped_width(self, features: Tensor) -> int:
        return self.width if self.kernel == "gaussian" else features.shape[1]

    def _map(self, features: Tensor) -> Tensor:
        """Return Φ, [n, M]."""
        unit = F.normalize(features, dim=1)
        if self.kernel == "cosine":
            return unit
        return math.sqrt(2 / self.width) * torch.cos(unit @ self._omega.T + self._phase)

    def _error(self, features: Tensor) -> Tensor:
        centred = self._map(features) - self._mean
        errors: Tensor = (centred - (centred @ self._axes) @ self._axes.T).norm(dim=1)
        return errors
