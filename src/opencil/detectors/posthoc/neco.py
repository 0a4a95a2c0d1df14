"""NECO: neural collapse."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import copy_to_device
from opencil.detectors.moments import in_chunks, means_of, products_of
from opencil.validation import PositiveFraction


@register_detector(
    "neco", paper=Paper("NECO: NEural Collapse Based Out-of-distribution Detection", 2024, "2310.06823")
)
@dataclass
class NECO(SetUpDetector):
    """Share of a standardised feature's length along the first principal axes."""

    equation = (
        r"S(x) = \frac{\| P \tilde{\varphi} \|}{\| \tilde{\varphi} \|}, \quad "
        r"\tilde{\varphi}_d = \frac{\varphi_d - \mu_d}{\sigma_d}"
    )
    differs = (
        "In the authors' code the number of axes depends on the model and the dataset; here they contain "
        "nine tenths of the variance. Their code multiplies by the largest logit for all models except "
        "ResNets: `max_logit`."
    )

    variance: PositiveFraction = 0.9  #: share of it along the axes
    max_logit: bool = False  #: multiply by the largest logit

    def set_up(self, outputs: Outputs) -> None:
        """Compute each feature's mean and spread, and the principal axes [D, d] of standardised features."""
        features = outputs.features
        member = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        self._mean = means_of(features, member, 1)[0]
        covariance = products_of(features, self._mean) / len(features)
        spread = covariance.diagonal().sqrt()
        self._spread = torch.where(spread > 0, spread, 1.0)  # constant features
        found, axes = torch.linalg.eigh(covariance / self._spread / self._spread[:, None])
        found, axes = found.flip(0).clamp(min=0), axes.flip(1)
        inside = found.cumsum(0) < (self.variance - 1e-9) * found.sum()
        self._axes = axes[:, : min(int(inside.sum()) + 1, len(found))]

    def scores(self, outputs: Outputs) -> Tensor:
        """Return ‖Pφ̃‖ / ‖φ̃‖, 1 for φ̃ = 0; times max z with ``max_logit``, [N]."""
        found = []
        for (rows,) in in_chunks(outputs.features):
            standard = (rows - self._mean) / self._spread
            length, inside = standard.norm(dim=1), (standard @ self._axes).norm(dim=1)
            found.append(torch.where(length > 0, inside / length, 1.0))
        ratio = copy_to_device(torch.cat(found), outputs.features.device)
        return ratio * outputs.logits.amax(dim=1) if self.max_logit else ratio
