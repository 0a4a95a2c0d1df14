"""The optimisers that a schedule can name, and what they keep of each parameter from step to step."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opencil.engine.schedule import Schedule

#: All that an optimiser keeps, by parameter and key, such as ``00003.exp_avg``.
State = dict[str, Tensor]


class Kept(NamedTuple):
    """One tensor that an optimiser keeps of a parameter; ``blank`` is what it begins with."""

    name: str
    parameter: Tensor
    key: str
    blank: Tensor


def create(
    schedule: Schedule, parameters: Sequence[Tensor], lr: float | Tensor, on_gpu: bool
) -> torch.optim.Optimizer:
    """The schedule's optimiser; on a GPU one whose steps can be captured, with the rate as a tensor."""
    values: dict[str, Any] = {"lr": lr, "weight_decay": schedule.weight_decay, "fused": on_gpu}
    if schedule.optimiser == "sgd":
        return torch.optim.SGD(parameters, momentum=schedule.momentum, nesterov=schedule.nesterov, **values)
    make = torch.optim.Adam if schedule.optimiser == "adam" else torch.optim.AdamW
    return make(parameters, betas=schedule.betas, eps=schedule.eps, capturable=on_gpu, **values)


def kept(schedule: Schedule, parameters: Sequence[Tensor]) -> Iterator[Kept]:
    """Every tensor that the schedule's optimiser keeps."""
    for i, parameter in enumerate(parameters):
        for key in ("momentum_buffer",) if schedule.optimiser == "sgd" else ("exp_avg", "exp_avg_sq"):
            yield Kept(f"{i:05d}.{key}", parameter, key, torch.zeros_like(parameter))
        if schedule.optimiser != "sgd":  # how many steps there have been
            yield Kept(f"{i:05d}.step", parameter, "step", torch.zeros((), device=parameter.device))
