"""NECO: neural collapse."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from opencil.data.precision import placed
from opencil.detectors.detector import SetUpDetector
from opencil.detectors.moments import in_chunks, means_of, products_of
from opencil.engine.forward import Outputs
from opencil.registry import Paper, register_detector
from opencil.validation import Bound


@register_detector(
    "neco", paper=Paper("NECO: NEural Collapse Based Out-of-distribution Detection", 2024, "2310.06823")
)
@dataclass
class NECO(SetUpDetector):
    """Share of a standardised feature's length that lies along the first principal axes."""

    equation: ClassVar[str] = (
        r"S(x) = \frac{\| P \tilde{\varphi} \|}{\| \tilde{\varphi} \|}, \quad "
        r"\tilde{\varphi}_d = \frac{\varphi_d - \mu_d}{\sigma_d}"
    )
    differs: ClassVar[str] = (
        "The authors' code is given the number of axes, by model and dataset; here it is as many as hold "
        "nine tenths of the variance. It multiplies by the largest logit for all models but ResNets: "
        "`max_logit`."
    )

    variance: Annotated[float, Bound(gt=0, le=1)] = 0.9  #: that the axes hold of all
    max_logit: bool = False  #: times the largest logit

    def set_up(self, outputs: Outputs) -> None:
        """Mean and spread of every feature, and the principal axes [D, d] of what is standardised by them."""
        features = outputs.features
        member = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        self._mean = means_of(features, member, 1)[0]
        covariance = products_of(features, self._mean) / len(features)
        spread = covariance.diagonal().sqrt()
        self._spread = torch.where(spread > 0, spread, 1.0)  # a feature that is the same in all
        found, axes = torch.linalg.eigh(covariance / self._spread / self._spread[:, None])
        found, axes = found.flip(0).clamp(min=0), axes.flip(1)
        held = found.cumsum(0) < (self.variance - 1e-9) * found.sum()
        self._axes = axes[:, : min(int(held.sum()) + 1, len(found))]

    def scores(self, outputs: Outputs) -> Tensor:
        """‖Pφ̃‖ / ‖φ̃‖, 1 for φ̃ = 0; times max z if that is asked for, [N]."""
        found = []
        for (rows,) in in_chunks(outputs.features):
            standard = (rows - self._mean) / self._spread
            length, inside = standard.norm(dim=1), (standard @ self._axes).norm(dim=1)
            found.append(torch.where(length > 0, inside / length, 1.0))
        ratio = placed(torch.cat(found), outputs.features.device)
        return ratio * outputs.logits.amax(dim=1) if self.max_logit else ratio
