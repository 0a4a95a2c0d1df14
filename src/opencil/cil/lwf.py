"""LwF: learning without forgetting."""

from collections.abc import Iterator
from dataclasses import dataclass

from opencil import Learner, Paper, Schedule, Stage, Task, register_learner
from opencil.cil.learner import classify_and_distil
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
        loss = classify_and_distil(task, self.temperature, kd=self.weight, only_new=True)
        yield Stage("train", task.model, loss, self.first if task.first else self.later, task.train_plus)
