"""Energy terms of BER, VOS and NPOS, and the queue of features that the outliers of the latter come from."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.detectors.finetune.tuner import Batch, Extra, Tuner
from opencil.detectors.finetune.views import ViewSource, head_size
from opencil.errors import BadInput
from opencil.validation import Count, NonNegative


@dataclass
class EnergyTuner(Tuner):
    """A tuner that pushes the energy E = −logsumexp(z) of known samples down, and of outliers up.

    ``alpha`` weights these terms against the cross-entropy; beyond its margin a sample costs nothing. With
    ``margins: model`` the margins are the mean energies of the same samples under the model's own head, so
    that f stays in the range of the model's energies.
    """

    alpha: NonNegative = 0.1
    margins: Literal["fixed", "model"] = "fixed"
    margin_in: float = -27.0
    margin_out: float = -5.0

    def extra(self, source: ViewSource) -> Extra:
        """Return the head f and, if it sets the margins, a copy of the model's own head."""
        extra = super().extra(source)
        if self.margins == "model":
            extra.model_head = source.extra_head().to(source.device).requires_grad_(False)
        return extra

    def hinge_in(self, extra: Extra, features: Tensor, z: Tensor) -> Tensor:
        """Return the mean of max(0, E − m_in)² over samples that should be known; z are f's logits."""
        return (energy(z) - self._margin(extra, features, self.margin_in)).clamp(min=0).square().mean()

    def hinge_out(self, extra: Extra, features: Tensor, z: Tensor) -> Tensor:
        """Return the mean of max(0, m_out − E)² over outliers."""
        return (self._margin(extra, features, self.margin_out) - energy(z)).clamp(min=0).square().mean()

    def _margin(self, extra: Extra, features: Tensor, fixed: float) -> Tensor | float:
        return fixed if extra.model_head is None else energy(extra.model_head(features)).mean()


def energy(logits: Tensor) -> Tensor:
    """Return E = −logsumexp(z), [N]."""
    return -torch.logsumexp(logits, dim=1)


@dataclass
class Synthesiser(EnergyTuner):
    """A tuner with outliers from the last features of each new class, as soon as its queue is full."""

    differs = (
        "On BiC, the paper's code does not correct the logits of outliers, `outliers_by: linear`; here they"
        " are corrected as all others."
    )

    queue: Count = 1000  #: length, in features of each new class
    #: The source of the outliers' logits: f, or its linear layer without a model's corrections.
    outliers_by: Literal["head", "linear"] = "head"

    named = {**EnergyTuner.named, "released": {"outliers_by": "linear"}}

    @property
    def fewest(self) -> int:
        """Return the number of images that fill the queue of one class."""
        return max(super().fewest, -(-self.queue // self.schedule.epochs))

    @abstractmethod
    def outliers(self, features: Tensor, batch: Batch) -> Tensor:
        """Return outliers [N, D] from the last features of the classes [classes, queue, D]."""

    def extra(self, source: ViewSource) -> Extra:
        """Return the head f and an empty queue of features."""
        extra = super().extra(source)
        few, label = min((count, label) for label, count in source.new_counts.items())
        if few * self.schedule.epochs < self.queue:
            most = few * self.schedule.epochs
            raise BadInput(f"queue = {self.queue} is never full: class {label} allows at most {most}")
        classes = torch.tensor(list(source.new_counts))
        extra.queue = Queue(classes, self.queue, head_size(extra.head)[1]).to(source.device)
        return extra

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return CE(x, y) + CE(m, y_m) + α (hinge_in(x) + hinge_out(outliers) + hinge_in(m))."""
        x, m, queue = batch.current, batch.memory, extra.queue
        assert isinstance(queue, Queue)
        z = extra(x.features)
        with torch.no_grad():
            queue.push(x.features, x.labels)
        total = F.cross_entropy(z, x.labels)
        if queue.may_be_full:
            outliers = self.outliers(queue.contents, batch)
            layers = (part for part in extra.head.modules() if isinstance(part, nn.Linear))
            head = next(layers, extra.head) if self.outliers_by == "linear" else extra.head
            terms = self.hinge_in(extra, x.features, z) + self.hinge_out(extra, outliers, head(outliers))
            # Selected, not branched on: a captured step cannot depend on the host.
            total = total + self.alpha * terms.where(queue.full, 0.0)
        if m is None:
            return total
        z = extra(m.features)
        return total + F.cross_entropy(z, m.labels) + self.alpha * self.hinge_in(extra, m.features, z)


class Queue(nn.Module):
    """The last ``size`` features of each class, first in, first out, computed without the host."""

    def __init__(self, classes: Tensor, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        # One additional slot, for features that are dropped.
        self.register_buffer("slots", torch.zeros(len(classes) * size + 1, width))
        self.register_buffer("pushed", torch.zeros(len(classes), dtype=torch.int64))
        self.register_buffer("classes", classes, persistent=False)
        self.slots: Tensor
        self.pushed: Tensor
        self.classes: Tensor

    @property
    def contents(self) -> Tensor:
        """Return the features [classes, size, width]; zeros in empty slots."""
        return self.slots[:-1].view(len(self.pushed), self.size, -1)

    @property
    def full(self) -> Tensor:
        """Return whether the queues of all classes are full, bool []."""
        return (self.pushed >= self.size).all()

    @property
    def may_be_full(self) -> bool:
        """Return whether it is full; always true on a GPU, to avoid synchronisation."""
        return self.slots.is_cuda or bool(self.full)

    def push(self, features: Tensor, labels: Tensor) -> None:
        """Add features [B, width]; each replaces the oldest of its class."""
        member = (labels[:, None] == self.classes).long()
        place = member.argmax(dim=1)
        rank = member.cumsum(dim=0).gather(1, place[:, None]).squeeze(1) - 1  # within its class
        total = member.sum(dim=0)
        fits = rank >= total[place] - self.size  # the last ones, if there are more than slots
        slot = place * self.size + (self.pushed[place] + rank) % self.size
        slot = slot.where(fits, len(self.slots) - 1)
        self.slots.index_copy_(0, slot, features)
        self.pushed += total
