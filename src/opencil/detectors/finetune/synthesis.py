"""Outliers synthesised in feature space: the queue of features and the loss that VOS and NPOS share."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.detectors.finetune.energy_margins import EnergyTuner
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.detectors.finetune.views import ViewSource
from opencil.errors import BadInput
from opencil.validation import Count


@dataclass
class Synthesiser(EnergyTuner):
    """A tuner whose outliers are made of the last features of each new class, once there are enough."""

    differs: ClassVar[str] = (
        "On BiC, outliers skip the correction of logits in the paper's code, `outliers_by: linear`; here "
        "they get it as all samples do. Images of the memory are taken as they are, not mixed as BER's are."
    )

    queue: Count = 1000  #: features of each new class
    #: What gives outliers their logits: f whole, or its linear layer without what a model has after it.
    outliers_by: Literal["head", "linear"] = "head"

    @property
    def fewest(self) -> int:
        """As many of one class as fill its queue."""
        return max(super().fewest, -(-self.queue // self.schedule.epochs))

    @abstractmethod
    def outliers(self, features: Tensor, batch: Batch) -> Tensor:
        """Features [N, D] outside the classes, from their last features [classes, queue, D]."""

    def extra(self, source: ViewSource) -> Extra:
        """The head f, and the queue of features beside it."""
        extra = super().extra(source)
        few, label = min((count, label) for label, count in source.new_counts.items())
        if few * self.schedule.epochs < self.queue:
            raise BadInput(
                f"{type(self).__name__}'s queue = {self.queue} is never full: class {label} has {few} images "
                f"and each is seen {self.schedule.epochs} times: {few * self.schedule.epochs} is the most"
            )
        classes, labels = torch.tensor(list(source.new_counts)), int(source.labels.max()) + 1
        extra.queue = Queue(classes, self.queue, extra.width, labels).to(source.device)
        return extra

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """CE(x, y) + CE(m, y_m) + α (hinge_in(x) + hinge_out(outliers) + hinge_in(m))."""
        x, m, queue = batch.current, batch.memory, extra.queue
        assert isinstance(queue, Queue)
        z = extra(x.features)
        with torch.no_grad():
            queue.push(x.features, x.labels)
        total = F.cross_entropy(z, x.labels)
        if not queue.known_to_wait:
            made = self.outliers(queue.contents, batch)
            outside = extra.linear(made) if self.outliers_by == "linear" else None
            terms = self.hinge_in(extra, x.features, z) + self.hinge_out(extra, made, outside)
            # Chosen, not branched on: a captured step cannot ask the host.
            total = total + self.alpha * terms.where(queue.full, 0.0)
        if m is None:
            return total
        z = extra(m.features)
        return total + F.cross_entropy(z, m.labels) + self.alpha * self.hinge_in(extra, m.features, z)


class Queue(nn.Module):
    """The last ``size`` features of each class, first in, first out; on the device, without a host's help."""

    def __init__(self, classes: Tensor, size: int, width: int, labels: int) -> None:
        super().__init__()
        self.size = size
        count = len(classes)
        # One slot more than is kept, for what is pushed and has no place.
        self.register_buffer("slots", torch.zeros(count * size + 1, width))
        self.register_buffer("pushed", torch.zeros(count, dtype=torch.int64))
        place = torch.zeros(labels, dtype=torch.int64)  # of a label among the classes
        place[classes.cpu()] = torch.arange(count)
        self.register_buffer("place", place, persistent=False)
        self.slots: Tensor
        self.pushed: Tensor
        self.place: Tensor

    @property
    def contents(self) -> Tensor:
        """[classes, size, width]; zeros where nothing has come yet."""
        return self.slots[:-1].view(len(self.pushed), self.size, -1)

    @property
    def full(self) -> Tensor:
        """Whether every class has as many features as it keeps, bool []."""
        return (self.pushed >= self.size).all()

    @property
    def known_to_wait(self) -> bool:
        """Whether it is not full yet, where asking costs nothing; a GPU is not asked, and may be filling."""
        return not self.slots.is_cuda and not self.full

    def push(self, features: Tensor, labels: Tensor) -> None:
        """Add features [B, width]; each displaces the oldest of its class."""
        place = self.place[labels]
        member = (place[:, None] == torch.arange(len(self.pushed), device=place.device)).long()
        rank = member.cumsum(dim=0).gather(1, place[:, None]).squeeze(1) - 1  # among those of its class
        total = member.sum(dim=0)
        kept = rank >= total[place] - self.size  # of more than the queue holds, the last
        slot = place * self.size + (self.pushed[place] + rank) % self.size
        slot = slot.where(kept, len(self.slots) - 1)
        self.slots.index_copy_(0, slot, features)
        self.pushed += total
