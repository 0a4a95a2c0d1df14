"""LogitNorm."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Tuner, register_detector
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.validation import Positive


@register_detector(
    "logitnorm",
    paper=Paper("Mitigating Neural Network Overconfidence with Logit Normalization", 2022, "2205.09310"),
)
@dataclass
class LogitNorm(Tuner):
    """A head trained by CE on logits of norm 1 / τ, so that confidence cannot grow with the norm."""

    equation = r"L = \text{CE}\left( \frac{z}{\tau (\|z\| + 10^{-7})},\; y \right)"

    tau: Positive = 0.04

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return CE(z / (‖z‖ + 1e-7) / τ), summed over the current images and the memory."""
        total = batch.current.features.new_zeros(())
        for views in batch.parts:
            z = extra(views.features)
            total = total + F.cross_entropy(z / (z.norm(dim=1, keepdim=True) + 1e-7) / self.tau, views.labels)
        return total
