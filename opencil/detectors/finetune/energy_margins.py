"""The energy terms that BER, VOS and NPOS share: known samples below a margin, others above one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil.detectors.finetune.tuner import Tuner
from opencil.validation import NonNegative


@dataclass
class EnergyTuner(Tuner):
    """A tuner that pushes the energy E = −logsumexp(z) of known samples down and of others up.

    ``alpha`` weighs these terms against the cross-entropy; beyond its margin a sample costs nothing.
    """

    alpha: NonNegative = 0.1
    margin_in: float = -27.0
    margin_out: float = -5.0

    def hinge_in(self, logits: Tensor) -> Tensor:
        """Mean of max(0, E − m_in)²: of samples that should be known."""
        return (energy(logits) - self.margin_in).clamp(min=0).square().mean()

    def hinge_out(self, logits: Tensor) -> Tensor:
        """max(0, m_out − E)² of samples that should not be known, [N]."""
        return (self.margin_out - energy(logits)).clamp(min=0).square()


def energy(logits: Tensor) -> Tensor:
    """E = −logsumexp(z), [N]."""
    return -torch.logsumexp(logits, dim=1)
