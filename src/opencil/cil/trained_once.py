"""What methods share whose backbone is trained at the first step alone."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import Learner, Task
from opencil.engine.loop import Stage
from opencil.engine.schedule import Schedule


@dataclass(frozen=True)
class TrainedOnce(Learner):
    """The backbone learns by CE at step 1, unless it is frozen, and stays; each step then fits a head to it.

    A subclass says in ``fit`` how, from the new classes' images alone: no exemplars are kept.
    """

    family: ClassVar[str] = "trained-once"
    remembers: ClassVar[bool] = False
    revisits: ClassVar[bool] = False

    first: Schedule = Schedule(epochs=200, lr=0.1, decay="cosine", weight_decay=5e-4)

    @abstractmethod
    def fit(self, task: Task) -> Iterable[Stage] | None:
        """Set ``task.model``'s head by the features of the new images; give what has to be trained for it."""

    def first_logits(self, model: Any, images: Tensor) -> Tensor:
        """The logits that the first step is trained by."""
        logits: Tensor = model(images)
        return logits

    def stages(self, task: Task) -> Iterator[Stage]:
        """CE at step 1; then what ``fit`` says."""
        if task.first and not task.model.backbone.frozen:

            def loss(images: Tensor, labels: Tensor) -> Tensor:
                return F.cross_entropy(self.first_logits(task.model, images), labels)

            yield Stage("train", task.model, loss, self.first, task.train_plus)
        yield from self.fit(task) or ()
