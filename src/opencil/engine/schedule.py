"""How long a stage trains, by which optimiser, and at which learning rate."""

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal

from opencil.validation import BelowOne, Bound, Count, Fraction, NonNegative, Positive, Values, Whole

#: Values that not every optimiser reads, and those that do.
_READ_BY = {"momentum": ("sgd",), "nesterov": ("sgd",), "betas": ("adam", "adamw"), "eps": ("adam", "adamw")}


@dataclass(frozen=True)
class Schedule(Values):
    """An optimiser with its values, and its learning rate over the epochs.

    ``decay``: ``steps`` multiplies the rate by ``factor`` at each of the ``milestones``, ``every`` does so
    every so many epochs, ``cosine`` follows half a cosine to 0, ``constant`` leaves it. During the first
    ``warmup`` epochs that rate is scaled up linearly. ``weight_decay`` is added to the gradient; AdamW takes
    it from the weights themselves.
    """

    epochs: Count
    lr: Annotated[float, Bound(gt=0, le=1e38)] = 0.1  #: what float32 can hold
    decay: Literal["steps", "cosine", "every", "constant"] = "steps"
    milestones: tuple[Count, ...] = ()
    factor: Fraction = 0.1
    momentum: Fraction = 0.9
    weight_decay: NonNegative = 0.0
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    nesterov: bool = False
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    eps: Positive = 1e-8
    every: Count | None = None
    warmup: Whole = 0

    def __post_init__(self) -> None:
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones = {list(self.milestones)} are not allowed: they should increase")
        if self.milestones and self.milestones[-1] >= self.epochs:
            raise ValueError(
                f"milestones = {list(self.milestones)} are not allowed: they should lie below "
                f"epochs = {self.epochs}; set both, or set the method's own epochs, "
                "which scales the milestones along"
            )
        if self.warmup >= self.epochs:
            raise ValueError(
                f"warmup = {self.warmup} is not allowed: it should be below epochs = {self.epochs}"
            )
        if (self.every is None) == (self.decay == "every"):
            raise ValueError(
                f"every = {self.every} is not allowed with decay = {self.decay!r}: it is the number of "
                "epochs that decay = 'every' needs and no other takes"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = True is not allowed: it should have a momentum above 0")
        for field in fields(self):
            value, readers = getattr(self, field.name), _READ_BY.get(field.name, (self.optimiser,))
            if self.optimiser not in readers and value != field.default:
                raise ValueError(
                    f"{field.name} = {value} is not allowed with optimiser = {self.optimiser!r}, which does "
                    f"not read it ({' and '.join(readers)} would): leave it at {field.default}"
                )

    def lr_at(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        rate = self._decayed(epoch)
        return rate * (epoch + 1) / (self.warmup + 1) if epoch < self.warmup else rate

    def _decayed(self, epoch: int) -> float:
        if self.decay == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        if self.decay == "constant":
            return self.lr
        times = epoch // self.every if self.every else sum(epoch >= m for m in self.milestones)
        return self.lr * self.factor**times

    def lasting(self, epochs: int) -> "Schedule":
        """The same shape over ``epochs`` epochs; milestones move along, and those that coincide merge."""
        share = epochs / self.epochs
        moved = {round(m * epochs / self.epochs) for m in self.milestones}
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(sorted(m for m in moved if 0 < m < epochs)),
            every=self.every and max(1, round(self.every * share)),
            warmup=min(round(self.warmup * share), epochs - 1),
        )
