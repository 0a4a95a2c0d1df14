"""LwF: learning without forgetting."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Learner, Paper, Schedule, Stage, Task, distillation, register_learner
from opencil.validation import NonNegative, Positive


@register_learner("lwf", paper=Paper("Learning without Forgetting", 2016, "1606.09282"))
@dataclass(frozen=True)
class LwF(Learner):
    """Cross-entropy among the new classes, and distillation from the previous model: no memory."""

    family = "distillation"
    equation = (
        r"L = \text{CE}(z_{\text{old}:}, y) + \lambda \text{KD}(z_{1:\text{old}}, z') \text{ on new classes}"
    )
    differs = (
        "For many steps and one head, as in PyCIL, with its λ = 3; the authors add one task to a trained "
        "network, with λ = 1, and first train the new head only."
    )

    remembers = False
    revisits = False

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 160), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=250, lr=0.1, milestones=(60, 120, 180, 220), weight_decay=2e-4)
    temperature: Positive = 2.0
    weight: NonNegative = 3.0

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE at step 1, by CE of the new logits + λ·KD of the old ones after it."""
        model, old, teacher = task.model, task.step.old, task.teacher

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits = model(images)
            total: Tensor = F.cross_entropy(logits[:, old:], labels - old)
            if teacher is None:
                return total
            with torch.no_grad():
                before = teacher(images)
            return total + self.weight * distillation(logits, before, self.temperature)

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
