"""Schedules: how long a stage trains, by which class of ``torch.optim`` and at which learning rate."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import repeat
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from opencil.errors import BadInput, nearest, unknown
from opencil.validation import BelowOne, Bound, Count, Fraction, NonNegative, Positive, Values, Whole

#: Arguments set by a schedule itself, or choosing an implementation.
_RESERVED = {"params", "lr", "weight_decay", "capturable", "differentiable", "foreach", "fused", "maximize"}
#: Classes with several losses a step, or for sparse gradients only.
_UNSUPPORTED = {"optimizer", "lbfgs", "sparseadam"}


@dataclass(frozen=True)
class Schedule(Values):
    """An optimiser with its values, and its learning rate over the epochs.

    ``decay``: ``steps`` multiplies the rate by ``factor`` at each of the ``milestones``, ``every`` does so
    every ``every`` epochs, ``cosine`` follows half a cosine to 0, ``constant`` leaves it. During the first
    ``warmup`` epochs that rate is scaled up linearly. ``optimiser`` names a class of ``torch.optim``;
    ``values`` are its further arguments, for which ``momentum``, ``nesterov``, ``betas`` and ``eps`` are
    shorthands. None stands for a default, which is 0.9 for SGD's momentum.
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
        milestones = f"milestones = {list(self.milestones)} are not allowed: they should"
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"{milestones} increase")
        if self.milestones and self.milestones[-1] >= self.epochs:
            moves = f"cil.NAME.epochs={self.epochs}, of the whole method, moves them along"
            raise ValueError(f"{milestones} lie below epochs = {self.epochs}; --set {moves}")
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup = {self.warmup} is not allowed: {self.epochs} epochs are more")
        if (self.every is None) == (self.decay == "every"):
            raise ValueError(f"every = {self.every} is not allowed: decay = 'every' alone needs it")
        given = zip(("momentum", "nesterov", "betas", "eps"), shorthands, strict=True)
        values = self.values | {key: value for key, value in given if value is not None}
        object.__setattr__(self, "values", {k: v for k, v in values.items() if v is not None})
        object.__setattr__(self, "optimiser", self.optimiser.lower())
        if self.values or self.optimiser != "sgd":  # the default needs no check
            self._check_optimiser()

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

    @property
    def optimiser_class(self) -> Any:
        """Return the class of ``torch.optim`` with the optimiser's name in lower case."""
        classes = {name.lower(): value for name, value in vars(torch.optim).items() if inspect.isclass(value)}
        if self.optimiser not in classes or self.optimiser in _UNSUPPORTED:
            raise unknown("optimiser", self.optimiser, classes.keys() - _UNSUPPORTED)
        return classes[self.optimiser]

    @property
    def arguments(self) -> set[str]:
        """Return the names of the arguments of the optimiser's class."""
        return set(inspect.signature(self.optimiser_class).parameters)

    @property
    def capturable(self) -> bool:
        """Return whether a CUDA graph can hold the optimiser's steps."""
        return self.optimiser == "sgd" or "capturable" in self.arguments

    def create_optimiser(
        self, parameters: Sequence[Tensor], on_gpu: bool = False, factors: Sequence[float] = ()
    ) -> torch.optim.Optimizer:
        """Return the optimiser of some parameters, in a group for each of the ``factors`` of their rates.

        On a GPU its steps can be captured, if torch can: the learning rate is a tensor, read at every replay.
        """
        arguments, options = self.arguments, dict[str, Any](lr=self.lr)
        if captured := on_gpu and self.capturable:
            options = dict.fromkeys(arguments & {"capturable", "fused"}, True)
        if "weight_decay" in arguments:
            options["weight_decay"] = self.weight_decay
        values = {"momentum": 0.9} | self.values if self.optimiser == "sgd" else self.values
        groups: list[dict[str, Any]] = []
        for factor in sorted({*factors}) or [1.0]:
            chosen = [p for p, own in zip(parameters, factors or repeat(1.0), strict=False) if own == factor]
            rate = torch.tensor(self.lr, device=chosen[0].device) if captured else self.lr
            groups.append({"params": chosen, "factor": factor, "lr": rate})
        optimiser: torch.optim.Optimizer = self.optimiser_class(groups, **options, **values)
        return optimiser

    def _check_optimiser(self) -> None:
        """Raise if there is no such optimiser, or if it does not take the values."""
        name, takes = self.optimiser_class.__name__, self.arguments
        allowed = sorted(takes - _RESERVED)
        for key in self.values.keys() - set(allowed):
            hint = nearest(key, allowed)
            raise BadInput(f"values.{key} is unknown: {name} takes {', '.join(allowed)}{hint}")
        if self.weight_decay and "weight_decay" not in takes:
            raise BadInput(f"weight_decay = {self.weight_decay} is not allowed: {name} has none; set it to 0")
        if not self.values:
            return
        try:
            self.create_optimiser([torch.zeros(1, 1, requires_grad=True)])
        except (TypeError, ValueError, IndexError) as error:
            raise BadInput(f"values = {self.values} are not allowed by {name}: {error}") from None
