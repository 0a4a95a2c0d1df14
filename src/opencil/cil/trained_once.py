"""Base of methods that train the backbone at the first step only."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

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
    #: The attribute of the model that maps features to logits in the training at step 1.
    trained_head: ClassVar[str] = "head"

    first: Schedule = Schedule(epochs=200, lr=0.1, decay="cosine", weight_decay=5e-4)

    @abstractmethod
    def fit(self, task: Task) -> Iterable[Stage] | None:
        """Fit ``task.model``'s head to features of the new images; yield stages if it has to be trained."""

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train the backbone by CE at step 1, then fit the head."""
        model, head = task.model, attrgetter(self.trained_head)(task.model)
        if task.first and not model.backbone.frozen:

            def loss(images: Tensor, labels: Tensor) -> Tensor:
                return F.cross_entropy(head(model.features(images)), labels)

            yield Stage("train", model, loss, self.first, task.train_plus)
        yield from self.fit(task) or ()
