"""Base of methods that train the backbone at the first step only."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Learner, Model, Schedule, Stage, Task


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

    def training_logits(self, model: Model, images: Tensor) -> Tensor:
        """Return the logits of the training at step 1."""
        return attrgetter(self.trained_head)(model)(model.features(images))  # type: ignore[no-any-return]

    def trained_part(self, model: Model) -> nn.Module:
        """Return the module whose parameters are trained at step 1."""
        return model

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train the backbone by CE at step 1, then fit the head."""
        model = task.model
        if task.first and not model.backbone.frozen:

            def loss(images: Tensor, labels: Tensor) -> Tensor:
                return F.cross_entropy(self.training_logits(model, images), labels)

            yield Stage("train", self.trained_part(model), loss, self.first, task.train_plus)
        yield from self.fit(task) or ()
