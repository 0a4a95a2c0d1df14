"""Optimisers: any class of ``torch.optim`` by its name, with its values and its state as named tensors."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from opencil.errors import BadInput, nearest, unknown

if TYPE_CHECKING:
    from opencil.engine.schedule import Schedule

#: State of an optimiser by parameter and key, such as ``00003.exp_avg``.
State = dict[str, Tensor]

#: Arguments set by a schedule itself, or choosing an implementation.
_RESERVED = {"params", "lr", "weight_decay", "capturable", "differentiable", "foreach", "fused", "maximize"}
#: Defaults in place of torch's.
_DEFAULTS = {"sgd": {"momentum": 0.9}}
#: Classes with several losses a step, or for sparse gradients only.
_UNSUPPORTED = {"optimizer", "lbfgs", "sparseadam"}


def find_optimiser(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of ``torch.optim`` with this name in lower case."""
    classes: dict[str, Any] = {k.lower(): v for k, v in vars(torch.optim).items() if inspect.isclass(v)}
    if name not in classes or name in _UNSUPPORTED:
        raise unknown("optimiser", name, classes.keys() - _UNSUPPORTED)
    return classes[name]  # type: ignore[no-any-return]


def check_optimiser(schedule: "Schedule") -> None:
    """Raise if there is no such optimiser, or if it does not take the schedule's values."""
    name, takes = find_optimiser(schedule.optimiser).__name__, _arguments_of(schedule)
    allowed = sorted(takes - _RESERVED)
    for key in schedule.values.keys() - set(allowed):
        raise BadInput(f"values.{key} is unknown: {name} takes {', '.join(allowed)}{nearest(key, allowed)}")
    if schedule.weight_decay and "weight_decay" not in takes:
        decay = schedule.weight_decay
        raise BadInput(f"weight_decay = {decay} is not allowed: {name} has none; set it to 0")
    try:
        _create(schedule, [torch.zeros(1, 1, requires_grad=True)], lr=0.1)
    except (TypeError, ValueError, IndexError) as error:
        raise BadInput(f"values = {schedule.values} are not allowed by {name}: {error}") from None


def is_capturable(schedule: "Schedule") -> bool:
    """Return whether a CUDA graph can hold the steps of the schedule's optimiser."""
    return schedule.optimiser == "sgd" or "capturable" in _arguments_of(schedule)


class Optimiser:
    """The schedule's optimiser of some parameters.

    On a GPU its steps can be captured, if torch can: the learning rate is a tensor, read at every replay.
    """

    def __init__(self, schedule: "Schedule", parameters: Sequence[Tensor], on_gpu: bool = False) -> None:
        options: dict[str, Any] = {"lr": schedule.lr}
        if on_gpu and is_capturable(schedule):
            options = dict.fromkeys(_arguments_of(schedule) & {"capturable", "fused"}, True)
            options["lr"] = torch.tensor(schedule.lr, device=parameters[0].device)
        try:
            own = _create(schedule, parameters, **options)
        except ValueError as error:
            raise BadInput(f"optimiser {schedule.optimiser!r} cannot train this model: {error}") from None
        self._torch, self.step, self.zero_grad = own, own.step, own.zero_grad

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next steps, captured ones too."""
        for group in self._torch.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state(self) -> State:
        """Return the state; a parameter without a gradient so far may have none."""
        return {
            f"{number:05d}.{key}": torch.as_tensor(value)
            for number, values in self._torch.state_dict()["state"].items()
            for key, value in values.items()
            if value is not None
        }

    def restore(self, state: State) -> None:
        """Load copies of another optimiser's state."""
        by_parameter: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            number, _, key = name.partition(".")
            by_parameter.setdefault(int(number), {})[key] = tensor.clone()
        groups = self._torch.state_dict()["param_groups"]
        self._torch.load_state_dict({"state": by_parameter, "param_groups": groups})


def fits(schedule: "Schedule", parameters: Sequence[Tensor], state: State) -> bool:
    """Return whether a state has the shapes of the optimiser's state after a step on these parameters."""
    copies = [nn.Parameter(torch.zeros(p.shape, dtype=p.dtype)) for p in parameters]
    optimiser = Optimiser(schedule, copies)
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    optimiser.step()
    numbers = {name.partition(".")[0] for name in state}
    expected = {k: v.shape for k, v in optimiser.state().items() if k.partition(".")[0] in numbers}
    return {name: tensor.shape for name, tensor in state.items()} == expected


def _arguments_of(schedule: "Schedule") -> set[str]:
    return set(inspect.signature(find_optimiser(schedule.optimiser)).parameters)


def _create(schedule: "Schedule", parameters: Sequence[Tensor], **options: Any) -> torch.optim.Optimizer:
    make, values = find_optimiser(schedule.optimiser), _DEFAULTS.get(schedule.optimiser, {}) | schedule.values
    if "weight_decay" in _arguments_of(schedule):
        options["weight_decay"] = schedule.weight_decay
    return make(parameters, **options, **values)
