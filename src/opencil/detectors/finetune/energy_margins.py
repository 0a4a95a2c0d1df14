"""Energy terms of BER, VOS and NPOS: known samples below a margin, outliers above another."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from opencil.detectors.finetune.tuner import Extra, Tuner
from opencil.detectors.finetune.views import ViewSource
from opencil.validation import NonNegative


@dataclass
class EnergyTuner(Tuner):
    """A tuner that pushes the energy E = −logsumexp(z) of known samples down, and of outliers up.

    ``alpha`` weights these terms against the cross-entropy; beyond its margin a sample costs nothing. With
    ``margins: model`` the margins are the mean energies of the same samples under the model's own head, so
    that f stays in the range of the model's energies.
    """

    alpha: NonNegative = 0.1
    margins: Literal["fixed", "model"] = "fixed"
    margin_in: float = -27.0
    margin_out: float = -5.0

    def extra(self, source: ViewSource) -> Extra:
        """Return the head f and, if it sets the margins, a copy of the model's own head."""
        extra = super().extra(source)
        if self.margins == "model":
            extra.model_head = source.extra_head().to(source.device).requires_grad_(False)
        return extra

    def hinge_in(self, extra: Extra, features: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the mean of max(0, E − m_in)² over samples that should be known."""
        z = extra(features) if logits is None else logits
        return (energy(z) - self._margin(extra, features, self.margin_in)).clamp(min=0).square().mean()

    def hinge_out(self, extra: Extra, features: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the mean of max(0, m_out − E)² over outliers."""
        z = extra(features) if logits is None else logits
        return (self._margin(extra, features, self.margin_out) - energy(z)).clamp(min=0).square().mean()

    def _margin(self, extra: Extra, features: Tensor, fixed: float) -> Tensor | float:
        return fixed if extra.model_head is None else energy(extra.model_head(features)).mean()


def energy(logits: Tensor) -> Tensor:
    """Return E = −logsumexp(z), [N]."""
    return -torch.logsumexp(logits, dim=1)
