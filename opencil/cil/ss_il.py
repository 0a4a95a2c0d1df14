"""SS-IL: separated softmax."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import Learner, Task, softened
from opencil.engine.loop import Stage
from opencil.engine.schedule import Schedule
from opencil.registry import Paper, register_learner
from opencil.validation import Positive, ProperFraction

PAPER = Paper("SS-IL: Separated Softmax for Incremental Learning", 2021, "2003.13947")


@register_learner("ss-il", paper=PAPER)
@dataclass(frozen=True)
class SSIL(Learner):
    """New images compete among the new classes, memory among the old ones; distillation task by task."""

    equation: ClassVar[str] = (
        r"L = \text{CE}(z_{\text{old}:}, y) \text{ on new images or } \text{CE}(z_{1:\text{old}}, y) "
        r"\text{ on memory} \\ {} + T^2 \sum_{t} \text{KL}(\text{softmax}(z'_t / T), "
        r"\text{softmax}(z_t / T)) \text{ of each earlier task}"
    )
    differs: ClassVar[str] = (
        "The authors draw 128 new images and 32 of the memory for every batch. Here batches are drawn from "
        "both together, and weights give the memory the same share of the loss in the mean, a fifth "
        "(`memory_share`). The schedules are WA's: theirs are for ImageNet."
    )

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(60, 100, 140), weight_decay=2e-4)
    temperature: Positive = 2.0
    memory_share: ProperFraction = 0.2

    def stages(self, task: Task) -> Iterator[Stage]:
        """CE at step 1; then each image's separated CE and its distillation, weighted."""
        model, teacher, old, sizes = task.model, task.teacher, task.step.old, list(task.step.sizes[:-1])
        drawn = len(task.memory.indices) / len(task.train_plus)  # the memory's share of a batch, in the mean
        weights = self.memory_share / max(drawn, 1e-9), (1 - self.memory_share) / (1 - drawn)

        def loss(images: Tensor, labels: Tensor, from_memory: Tensor) -> Tensor:
            logits = model(images)
            if teacher is None:
                return F.cross_entropy(logits, labels)
            with torch.no_grad():
                before = teacher(images)
            # Of each image both are computed, one with a label that does not matter: shapes stay the same.
            among_old = F.cross_entropy(logits[:, :old], labels.clamp(max=old - 1), reduction="none")
            among_new = F.cross_entropy(logits[:, old:], (labels - old).clamp(min=0), reduction="none")
            total = torch.where(from_memory, among_old, among_new)
            parts = (
                torch.split(softened(z[:, :old], self.temperature), sizes, dim=1) for z in (logits, before)
            )
            for student, target in zip(*parts, strict=True):
                found, wanted = F.log_softmax(student, dim=1), F.log_softmax(target, dim=1)
                total = total + self.temperature**2 * (wanted.exp() * (wanted - found)).sum(dim=1)
            return (torch.where(from_memory, *weights) * total).mean()

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
