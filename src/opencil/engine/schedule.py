"""Schedules: how long a stage trains, by which optimiser and at which learning rate."""

import math
from dataclasses import InitVar, dataclass, field, replace
from typing import Annotated, Any, Literal

from opencil.engine.optimiser import check_optimiser
from opencil.validation import BelowOne, Bound, Count, Fraction, NonNegative, Positive, Values, Whole


@dataclass(frozen=True)
class Schedule(Values):
    """An optimiser with its values, and its learning rate over the epochs.

    ``decay``: ``steps`` multiplies the rate by ``factor`` at each of the ``milestones``, ``every`` does so
    every ``every`` epochs, ``cosine`` follows half a cosine to 0, ``constant`` leaves it. During the first
    ``warmup`` epochs that rate is scaled up linearly.

    ``optimiser`` names a class of ``torch.optim``, and ``values`` are further arguments of it; None stands
    for its default. SGD has a momentum of 0.9 by default. ``momentum``, ``nesterov``, ``betas`` and ``eps``
    are shorthands for keys of ``values``.
    """

    epochs: Count
    lr: Annotated[float, Bound(gt=0, le=1e38)] = 0.1  #: within float32
    decay: Literal["steps", "cosine", "every", "constant"] = "steps"
    milestones: tuple[Count, ...] = ()
    factor: Fraction = 0.1
    weight_decay: NonNegative = 0.0
    optimiser: str = "sgd"
    values: dict[str, Any] = field(default_factory=dict)
    every: Count | None = None
    warmup: Whole = 0

    momentum: InitVar[Fraction | None] = field(default=None, kw_only=True)
    nesterov: InitVar[bool | None] = field(default=None, kw_only=True)
    betas: InitVar[tuple[BelowOne, BelowOne] | None] = field(default=None, kw_only=True)
    eps: InitVar[Positive | None] = field(default=None, kw_only=True)

    def __post_init__(self, *shorthands: Any) -> None:
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones = {list(self.milestones)} are not allowed: they should increase")
        if self.milestones and self.milestones[-1] >= self.epochs:
            raise ValueError(
                f"milestones = {list(self.milestones)} are not allowed: they should lie below epochs = "
                f"{self.epochs}; set both, or the method's own epochs, which scales the milestones along"
            )
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup = {self.warmup} is not allowed: {self.epochs} epochs are more")
        if (self.every is None) == (self.decay == "every"):
            raise ValueError(
                f"every = {self.every} is not allowed with decay = {self.decay!r}: 'every' alone needs it"
            )
        given = zip(("momentum", "nesterov", "betas", "eps"), shorthands, strict=True)
        values = self.values | {key: value for key, value in given if value is not None}
        object.__setattr__(self, "values", {k: v for k, v in values.items() if v is not None})
        object.__setattr__(self, "optimiser", self.optimiser.lower())
        if self.values or self.optimiser != "sgd":  # the default needs no check
            check_optimiser(self)

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        rate = self.lr
        if self.decay == "cosine":
            rate = rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        elif self.decay != "constant":
            times = epoch // self.every if self.every else sum(epoch >= m for m in self.milestones)
            rate = rate * self.factor**times
        return rate * (epoch + 1) / (self.warmup + 1) if epoch < self.warmup else rate

    def with_epochs(self, epochs: int) -> "Schedule":
        """Return the same shape over ``epochs`` epochs; milestones move along, and equal ones merge."""
        share = epochs / self.epochs
        moved = {round(m * epochs / self.epochs) for m in self.milestones}
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(sorted(m for m in moved if 0 < m < epochs)),
            every=self.every and max(1, round(self.every * share)),
            warmup=min(round(self.warmup * share), epochs - 1),
        )
