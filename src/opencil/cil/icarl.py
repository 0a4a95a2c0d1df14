"""iCaRL."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Learner, Memory, Outputs, Paper, Schedule, Stage, Task, register_learner
from opencil.cil.learner import classify_and_distil
from opencil.validation import Positive


@register_learner(
    "icarl", paper=Paper("iCaRL: Incremental Classifier and Representation Learning", 2017, "1611.07725")
)
@dataclass(frozen=True)
class ICaRL(Learner):
    """Cross-entropy on all seen classes plus distillation from the previous model, with a herded memory."""

    title = "iCaRL"
    family = "distillation"
    equation = r"L = \text{CE}(z, y) + \text{KD}(z_{1:\text{old}}, z')"
    differs = (
        "iCaRL's authors train by binary cross-entropy and classify by the nearest mean of exemplars. Here, "
        "as in the OpenCIL paper, training is by CE with distillation, and the head classifies; the accuracy "
        "of the nearest mean is reported beside it."
    )

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(80, 120), weight_decay=2e-4)
    temperature: Positive = 2.0

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE at step 1, by CE + KD after it."""
        loss = classify_and_distil(task, self.temperature)
        yield Stage("train", task.model, loss, self.first if task.first else self.later, task.train_plus)

    def other_predictions(self, task: Task, memory: Memory, test: Outputs) -> dict[str, Tensor]:
        """Return the class with the nearest mean feature of exemplars, iCaRL's own classifier."""
        exemplars = F.normalize(task.outputs(memory.indices).features)
        parts = torch.split(exemplars, [len(indices) for indices in memory.per_class])
        means = F.normalize(torch.stack([part.mean(dim=0) for part in parts]))
        # The nearest of unit vectors has the largest product.
        nearest = (F.normalize(test.features) @ means.T).argmax(dim=1)
        return {"accuracy_nearest_mean": nearest}
