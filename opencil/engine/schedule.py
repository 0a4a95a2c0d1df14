"""How long a stage trains, and at which learning rate."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from opencil.validation import Bound, Count, Fraction, NonNegative, Values


@dataclass(frozen=True)
class Schedule(Values):
    """SGD with momentum; the learning rate falls in steps (``milestones``) or along a half cosine to 0."""

    epochs: Count
    lr: Annotated[float, Bound(gt=0, le=1e38)] = 0.1  #: what float32 can hold
    decay: Literal["steps", "cosine"] = "steps"
    milestones: tuple[Count, ...] = ()
    factor: Fraction = 0.1
    momentum: Fraction = 0.9
    weight_decay: NonNegative = 0.0

    def __post_init__(self) -> None:
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones = {list(self.milestones)} are not allowed: they should increase")
        if self.milestones and self.milestones[-1] >= self.epochs:
            raise ValueError(
                f"milestones = {list(self.milestones)} are not allowed: they should lie below "
                f"epochs = {self.epochs}; set both, or set the method's own epochs, "
                "which scales the milestones along"
            )

    def lr_at(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        if self.decay == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * self.factor ** sum(epoch >= m for m in self.milestones)

    def lasting(self, epochs: int) -> "Schedule":
        """The same shape over ``epochs`` epochs; milestones move along, and those that coincide merge."""
        moved = {round(m * epochs / self.epochs) for m in self.milestones}
        return replace(self, epochs=epochs, milestones=tuple(sorted(m for m in moved if 0 < m < epochs)))
