"""DER: dynamically expandable representation."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from opencil import Learner, Model, Paper, Schedule, Setting, Stage, Step, Task, register_learner
from opencil.cil.wa import align
from opencil.nets.growing import GrownModel

PAPER = Paper("DER: Dynamically Expandable Representation for Class Incremental Learning", 2021, "2103.16788")


@register_learner("der", paper=PAPER)
@dataclass(frozen=True)
class DER(Learner):
    """A new backbone a step beside the older ones, which are frozen; then the head's new rows are scaled."""

    family = "expansion"
    beside = 4.5  #: older backbones, in the mean of ten steps
    equation = (
        r"L = \text{CE}(z, y) + \text{CE}(z_{\text{aux}}, \max(0, y - \text{old} + 1)) \\ "
        r"w_{\text{new}} \leftarrow w_{\text{new}} "
        r"\frac{\text{mean} \|w_{\text{old}}\|}{\text{mean} \|w_{\text{new}}\|}"
    )
    differs = (
        "The paper masks and prunes channels; its authors' release and PyCIL do not, nor does this. The "
        "authors then train the head once more on a balanced set; here it is aligned as WA's, as in PyCIL."
    )

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(80, 120, 150), weight_decay=2e-4)

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with a backbone for each step so far."""
        *older, newest = (setting.new_backbone() for _ in range(step.number))
        return GrownModel(older, newest, step.seen, step.new)

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        """Freeze all backbones and add one, a copy of the newest."""
        old = copy.deepcopy(previous)
        newest = copy.deepcopy(old.backbone)
        return GrownModel(old.backbones(), newest, step.seen, step.new, old.head, old.shared)

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE; after step 1 with CE of the newest backbone too, then align the head."""
        model, old = task.model, task.step.old

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = model.features(images)
            total = F.cross_entropy(model.classify(features), labels)
            if task.first:
                return total
            of_newest = model.auxiliary(features[:, -model.backbone.width :])
            return total + F.cross_entropy(of_newest, (labels - old + 1).clamp(min=0))

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
        if not task.first:
            align(model.head, old)
