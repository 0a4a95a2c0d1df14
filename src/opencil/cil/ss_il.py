"""SS-IL: separated softmax."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Stage, Task, register_learner
from opencil.cil.learner import soften, weights_by_share
from opencil.cil.wa import WA
from opencil.validation import ProperFraction


@register_learner(
    "ss-il", paper=Paper("SS-IL: Separated Softmax for Incremental Learning", 2021, "2003.13947")
)
@dataclass(frozen=True)
class SSIL(WA):
    """New images compete among the new classes, memory among the old ones; distillation task by task."""

    title = "SS-IL"
    equation = (
        r"L = \text{CE}(z_{\text{old}:}, y) \text{ on new images, CE}(z_{1:\text{old}}, y) \text{ on memory} "
        r"\\ {} + T^2 \sum_t \text{KL}(\text{softmax}(z'_t / T), \text{softmax}(z_t / T)), \; t < \text{now}"
    )
    differs = (
        "The authors draw 128 new images and 32 exemplars for every batch. Here batches are drawn from both "
        "together, and weights give the memory the same share of the mean loss, a fifth (`memory_share`). "
        "Schedules and temperature are WA's; the authors begin step t at a rate of 0.1 / t, and use for "
        "CIFAR-100 200 epochs and a decay of 1e-3. They found its results poor there, and suggest a larger "
        "dataset (issues 3 and 5 of their code)."
    )

    memory_share: ProperFraction = 0.2

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE at step 1; then by each image's separated CE and distillation, weighted."""
        model, teacher, old, sizes = task.model, task.teacher, task.step.old, list(task.step.sizes[:-1])
        weights = weights_by_share(task, self.memory_share)

        def loss(images: Tensor, labels: Tensor, from_memory: Tensor) -> Tensor:
            logits = model(images)
            if teacher is None:
                return F.cross_entropy(logits, labels)
            with torch.no_grad():
                before = teacher(images)
            # Both are computed for each image, one with a meaningless label, to keep shapes constant.
            among_old = F.cross_entropy(logits[:, :old], labels.clamp(max=old - 1), reduction="none")
            among_new = F.cross_entropy(logits[:, old:], (labels - old).clamp(min=0), reduction="none")
            total = torch.where(from_memory, among_old, among_new)
            softened = (soften(z[:, :old], self.temperature) for z in (logits, before))
            tasks = (torch.split(z, sizes, dim=1) for z in softened)
            for student, target in zip(*tasks, strict=True):
                difference = F.log_softmax(target, dim=1) - F.log_softmax(student, dim=1)
                total = total + self.temperature**2 * (F.softmax(target, dim=1) * difference).sum(dim=1)
            return (torch.where(from_memory, *weights) * total).mean()

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
