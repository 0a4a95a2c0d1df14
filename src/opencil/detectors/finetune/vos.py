"""VOS: virtual outliers from class-conditional Gaussians."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Paper, register_detector
from opencil.data.precision import as_float64
from opencil.detectors.finetune.energy_margins import Synthesiser
from opencil.detectors.finetune.tuner import Batch
from opencil.detectors.moments import compute_by_parts
from opencil.validation import Count, Positive


@register_detector(
    "vos", paper=Paper("VOS: Learning What You Don't Know by Virtual Outlier Synthesis", 2022, "2202.01197")
)
@dataclass
class VOS(Synthesiser):
    """Outliers from each class's Gaussian, the least likely of many samples: their energy is pushed up."""

    equation = (
        r"L = \text{CE} + \alpha \left( \text{in}(x) + \text{out}(o) + \text{in}(m) \right) \\ "
        r"o_c = \text{the least likely of } \mathcal N(\mu_c, \Sigma)"
    )

    samples: Count = 10_000  #: of each class, of which one is the outlier
    ridge: Positive = 1e-4  #: added to the covariance's diagonal

    @torch.no_grad()
    def outliers(self, features: Tensor, batch: Batch) -> Tensor:
        """Return an outlier for each class: μ_c + L ε with the largest ‖ε‖, for a shared covariance L Lᵀ.

        The density of μ_c + L ε depends on ‖ε‖ alone.
        """
        width = features.shape[2]
        mean = features.mean(dim=1)
        # In float64: the ridge is below float32's rounding of a covariance of large features.
        centred = as_float64((features - mean[:, None]).reshape(-1, width))
        covariance = centred.T @ centred / len(centred)
        covariance.diagonal().add_(self.ridge)
        # torch.linalg.cholesky synchronises with the host.
        factor: Tensor = torch.linalg.cholesky_ex(covariance).L.float().to(features.device)

        def draw_rarest(part: Tensor) -> Tensor:
            shape = len(part), self.samples, width
            noise = torch.randn(shape, generator=batch.generator, device=part.device)
            farthest = noise.square().sum(dim=2).argmax(dim=1)
            return noise[torch.arange(len(part), device=part.device), farthest]

        return mean + compute_by_parts(draw_rarest, 2 * self.samples * width, mean) @ factor.T
