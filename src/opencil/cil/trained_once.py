"""Base of methods that train the backbone at the first step only."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from opencil import Learner, Schedule, Stage, Task


@dataclass(frozen=True)
class TrainedOnce(Learner):
    """Train the backbone by CE at step 1, unless it is frozen; each step then fits a head to its features.

    A subclass implements ``fit``, from the new classes' images only: there are no exemplars.
    """

    family = "trained-once"
    remembers = False
    revisits = False

    first: Schedule = Schedule(epochs=200, lr=0.1, decay="cosine", weight_decay=5e-4)

    @abstractmethod
    def fit(self, task: Task) -> Iterable[Stage] | None:
        """Fit ``task.model``'s head to features of the new images; yield stages if it has to be trained."""

    def first_logits(self, model: Any, images: Tensor) -> Tensor:
        """Return the logits for the training at step 1."""
        logits: Tensor = model(images)
        return logits

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train the backbone by CE at step 1, then fit the head."""
        if task.first and not task.model.backbone.frozen:

            def loss(images: Tensor, labels: Tensor) -> Tensor:
                return F.cross_entropy(self.first_logits(task.model, images), labels)

            yield Stage("train", task.model, loss, self.first, task.train_plus)
        yield from self.fit(task) or ()
