"""APER: class means of the pretrained and of the tuned backbone, side by side."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from opencil import Backbone, Model, Paper, Schedule, Setting, Step, register_learner
from opencil.cil.simplecil import SimpleCIL
from opencil.nets.cosine import CosineHead
from opencil.nets.growing import SideBySide


@register_learner(
    "aper",
    paper=Paper(
        "Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity are "
        "All You Need",
        2024,
        "2303.07338",
    ),
)
@dataclass(frozen=True)
class APER(SimpleCIL):
    """A copy of the backbone is tuned at step 1; cosines to class means of both backbones' features."""

    equation = (
        r"L = \text{CE}(\sigma \cos(\varphi^{*}, w), y) \text{ at step 1} \\ "
        r"z_c = \sigma \cos([\varphi; \varphi^{*}], \mu_c)"
    )
    differs = (
        "This is its variant for convolutional networks, which tunes the whole backbone. Batches have the "
        "benchmark's size; theirs are of 48. On a frozen backbone it is SimpleCIL."
    )

    first: Schedule = Schedule(epochs=20, lr=0.01, decay="cosine", weight_decay=5e-4)

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model of two backbones, the first of them frozen, under a cosine head."""
        return TunedBesideOriginal(setting.new_backbone(), step.sizes)

    def training_logits(self, model: Model, images: Tensor) -> Tensor:
        """Return logits of the tuned backbone alone, under a head of its own."""
        assert isinstance(model, TunedBesideOriginal)
        return model.first_head(model.backbone(images))  # type: ignore[no-any-return]


class TunedBesideOriginal(SideBySide):
    """A backbone beside a frozen copy of its initial weights; ``first_head`` is of the backbone alone."""

    head: CosineHead  # type: ignore[assignment]

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, sum(sizes))
        self.original = copy.deepcopy(backbone).freeze()
        self.first_head = CosineHead(backbone.width, sizes[:1])
        self.head = CosineHead(2 * backbone.width, sizes)

    def backbones(self) -> list[Backbone]:
        """Return the frozen backbone, then the tuned one."""
        return [self.original, self.backbone]
