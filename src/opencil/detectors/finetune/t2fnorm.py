"""T2FNorm: train-time feature normalisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from opencil.detectors.finetune.tuner import Batch, Extra, Tuner
from opencil.registry import Paper, register_detector
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
    """A head trained on features of norm 1 / τ, and scored on features that keep their norm."""

    equation: ClassVar[str] = (
        r"L = \text{CE}\left( f\left( \frac{\varphi}{\tau \|\varphi\|} \right),\; y \right)"
    )
    differs: ClassVar[str] = (
        "The paper scores f(φ/τ), `scored: scaled`, as T2FNorm's authors do for networks trained from "
        "scratch. The paper's code, and theirs for a head that is fine-tuned, scores f(φ): the default."
    )

    tau: Positive = 0.1
    scored: Literal["raw", "scaled"] = "raw"

    formerly: ClassVar[Mapping[str, Any]] = {"scored": "scaled"}

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """CE(f(φ / (‖φ‖ · τ))), the current images' plus the memory's."""
        losses = [
            F.cross_entropy(extra(F.normalize(views.features, dim=1) / self.tau), views.labels)
            for views in batch.parts
        ]
        return sum(losses[1:], losses[0])

    def logits(self, extra: Extra, features: Tensor) -> Tensor:
        """f(φ), or f(φ / τ)."""
        return super().logits(extra, features / self.tau if self.scored == "scaled" else features)
