"""Replay: plain fine-tuning with a memory, a lower bound."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F

from opencil import Learner, Schedule, Stage, Task, register_learner


@register_learner("replay")
@dataclass(frozen=True)
class Replay(Learner):
    """Cross-entropy on the new classes and the memory, nothing else: a lower bound."""

    family = "rehearsal"
    equation = r"L = \text{CE}(z, y) \text{ on new classes and memory}"

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(80, 120), weight_decay=2e-4)

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE."""
        model, schedule = task.model, self.first if task.first else self.later
        yield Stage("train", model, lambda x, y: F.cross_entropy(model(x), y), schedule, task.train_plus)
