"""iCaRL."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import Learner, Task, distillation
from opencil.engine.loop import Stage
from opencil.engine.schedule import Schedule
from opencil.registry import Paper, register_learner
from opencil.validation import Positive


@register_learner(
    "icarl", paper=Paper("iCaRL: Incremental Classifier and Representation Learning", 2017, "1611.07725")
)
@dataclass(frozen=True)
class ICaRL(Learner):
    """Cross-entropy on all seen classes plus distillation from the previous model, with a herded memory."""

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(80, 120), weight_decay=2e-4)
    temperature: Positive = 2.0

    def stages(self, task: Task) -> Iterator[Stage]:
        """One training: CE at step 1, CE + KD after it."""
        model, teacher = task.model, task.teacher

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits = model(images)
            classification = F.cross_entropy(logits, labels)
            if teacher is None:
                return classification
            with torch.no_grad():
                before = teacher(images)
            return classification + distillation(logits, before, self.temperature)

        yield Stage("train", model, loss, self.first if teacher is None else self.later, task.train_plus)
