"""T2FNorm: train-time feature normalisation."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Tuner, register_detector
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.validation import Positive


@register_detector(
    "t2fnorm",
    paper=Paper(
        "T2FNorm: Train-time Feature Normalization for OOD Detection in Image Classification",
        2023,
        "2305.17797",
    ),
)
@dataclass
class T2FNorm(Tuner):
    """A head trained on features of norm 1 / τ, and scored on features of their own norm."""

    equation = r"L = \text{CE}\left( f\left( \frac{\varphi}{\tau \|\varphi\|} \right),\; y \right)"
    differs = (
        "The paper scores f(φ/τ), `scored: scaled`. Its code, and the authors' for a fine-tuned head, "
        "scores f(φ): the default."
    )

    tau: Positive = 0.1
    scored: Literal["raw", "scaled"] = "raw"

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return CE(f(φ / (‖φ‖ · τ))), summed over the current images and the memory."""
        losses = [
            F.cross_entropy(extra(F.normalize(views.features, dim=1) / self.tau), views.labels)
            for views in batch.parts
        ]
        return sum(losses[1:], losses[0])

    def logits(self, extra: Extra, features: Tensor) -> Tensor:
        """Return f(φ), or f(φ / τ)."""
        return super().logits(extra, features / self.tau if self.scored == "scaled" else features)
