"""What LUCIR and PODNet share: a cosine head whose old rows stay, and a balanced fine-tuning of it."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import FORWARD, Learner, Setting, Task
from opencil.data.stream import Step
from opencil.engine.loop import Stage
from opencil.engine.schedule import Schedule
from opencil.nets.cosine import CosineModel
from opencil.nets.model import Model
from opencil.validation import Count


@dataclass(frozen=True)
class Rebalanced(Learner):
    """Later steps begin with rows imprinted for the new classes, and train all but the rows of old ones.

    Then comes a tuning on the memory as it will be after the step, with as many images of every class. A
    subclass says by which losses.
    """

    family: ClassVar[str] = "distillation"
    linear: ClassVar[bool] = False

    train: Schedule = Schedule(epochs=160, lr=0.1, milestones=(80, 120), weight_decay=5e-4)
    balance: Schedule = Schedule(epochs=20, lr=0.01, milestones=(10,), weight_decay=5e-4)
    tunes: Literal["head", "all"] = "head"  #: all rows on fixed features, or all that is trained before
    proxies: Count = 1  #: rows of a class

    @abstractmethod
    def classification(self, task: Task, cosines: Tensor, labels: Tensor) -> Tensor:
        """The loss of the classes' cosines [B, classes]."""

    @abstractmethod
    def retention(self, task: Task, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features of images, and the cost of what is not as it is in the teacher; for steps from 2 on."""

    def effort(self, *, first: bool) -> float:
        """That of the training: the balanced images are few."""
        return self.train.epochs * (1 if first else 1 + FORWARD)

    def blank(self, setting: Setting, step: Step) -> Model:
        """A model with a cosine head."""
        return CosineModel(setting.new_backbone(), step.sizes, self.proxies)

    def stages(self, task: Task) -> Iterator[Stage]:
        """The training; after step 1 the tuning too."""
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


def turned(features: Tensor, before: Tensor) -> Tensor:
    """Batch mean of 1 − cos(f, f')."""
    return (1 - F.cosine_similarity(features.float(), before.float(), dim=1)).mean()
