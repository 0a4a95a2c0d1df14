"""Base of LUCIR and PODNet: a cosine head with fixed old rows, and a balanced fine-tuning of it."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from opencil import Learner, Model, Schedule, Setting, Stage, Step, Task
from opencil.nets.cosine import CosineModel
from opencil.validation import Count


@dataclass(frozen=True)
class Rebalanced(Learner):
    """Imprint rows for new classes and train all but old rows, then tune on a balanced set.

    The balanced set is the memory after the step, with as many images of every class. A subclass defines the
    losses.
    """

    family = "distillation"
    linear = False

    train: Schedule = Schedule(epochs=160, lr=0.1, milestones=(80, 120), weight_decay=5e-4)
    balance: Schedule = Schedule(epochs=20, lr=0.01, milestones=(10,), weight_decay=5e-4)
    tunes: Literal["head", "all"] = "head"  #: all rows of the head, or all parameters trained before
    proxies: Count = 1  #: rows of a class

    @abstractmethod
    def classification(self, task: Task, cosines: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the classes' cosines [B, classes]."""

    @abstractmethod
    def retention(self, task: Task, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of images and the cost of their difference to the teacher's, at a step ≥ 2."""

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with a cosine head."""
        return CosineModel(setting.new_backbone(), step.sizes, self.proxies)

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train; after step 1 also tune on the balanced set."""
        model, head = task.model, task.model.head

        def classified(images: Tensor, labels: Tensor) -> Tensor:
            return self.classification(task, head.cosines(model.features(images)), labels)

        def retained(images: Tensor, labels: Tensor) -> Tensor:
            features, cost = self.retention(task, images)
            return self.classification(task, head.cosines(features), labels) + cost

        if task.first:
            yield Stage("train", model, classified, self.train, task.train_plus)
            return
        head.imprint(task.new_features())
        head.freeze_old()
        yield Stage("train", model, retained, self.train, task.train_plus)
        balanced = self.remember(task).indices
        if self.tunes == "all":
            yield Stage("balance", model, retained, self.balance, balanced)
            return
        model.requires_grad_(False)
        head.rows.requires_grad_(True)
        yield Stage("balance", head, classified, self.balance, balanced)


def cosine_distance(features: Tensor, before: Tensor) -> Tensor:
    """Return the batch mean of 1 − cos(f, f')."""
    return (1 - F.cosine_similarity(features.float(), before.float(), dim=1)).mean()
