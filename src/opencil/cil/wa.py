"""WA: weight aligning."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from opencil import Learner, Paper, Schedule, Stage, Task, register_learner
from opencil.cil.learner import classify_and_distil
from opencil.nets.model import Head
from opencil.validation import Positive


@register_learner(
    "wa",
    paper=Paper("Maintaining Discrimination and Fairness in Class Incremental Learning", 2020, "1911.07053"),
)
@dataclass(frozen=True)
class WA(Learner):
    """Distillation weighted by the share of old classes; after a step the head's new rows are scaled down."""

    family = "distillation"
    equation = (
        r"L = (1 - \lambda) \text{CE}(z, y) + \lambda \text{KD}(z_{1:\text{old}}, z') \\ "
        r"\lambda = \frac{\text{old}}{\text{seen}} \\ w_{\text{new}} \leftarrow w_{\text{new}} "
        r"\frac{\text{mean} \|w_{\text{old}}\|}{\text{mean} \|w_{\text{new}}\|}"
    )

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(60, 100, 140), weight_decay=2e-4)
    temperature: Positive = 2.0

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE at step 1, then by (1−λ)CE + λKD with λ = old/seen, and align the head."""
        share = task.step.old / task.step.seen
        loss = classify_and_distil(task, self.temperature, ce=1 - share, kd=share)
        yield Stage("train", task.model, loss, self.first if task.first else self.later, task.train_plus)
        if not task.first:
            align(task.model.head, task.step.old)


@torch.no_grad()
def align(head: Head, old: int) -> None:
    """Scale the new classes' weight rows by mean ‖old rows‖ / mean ‖new rows‖, not the bias."""
    norms = head.weight.norm(dim=1)
    head.weight[old:] *= norms[:old].mean() / norms[old:].mean()
