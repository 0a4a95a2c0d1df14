"""Replay by AdamW, in which an image of the memory weighs more than a new one."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

import opencil
from opencil import Schedule, Stage, Task


@opencil.register_learner("adamw-replay")
@dataclass(frozen=True)
class AdamWReplay(opencil.Learner):
    """Cross-entropy, the memory's images weighted, by AdamW with a warm-up and a cosine."""

    train: Schedule = Schedule(
        epochs=100, lr=2e-3, optimiser="adamw", decay="cosine", weight_decay=0.05, warmup=5
    )
    weight: float = 2.0

    def stages(self, task: Task) -> Iterator[Stage]:
        def loss(images: Tensor, labels: Tensor, from_memory: Tensor) -> Tensor:
            each = F.cross_entropy(task.model(images), labels, reduction="none")
            return (each * (1 + (self.weight - 1) * from_memory)).mean()

        yield Stage("train", task.model, loss, self.train, task.train_plus)
