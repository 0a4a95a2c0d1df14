"""Checkpoints: resume a training from the end of an epoch, with the same bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from opencil.engine.optimiser import State, fits
from opencil.engine.schedule import Schedule
from opencil.errors import OpenCILError

if TYPE_CHECKING:
    from opencil.engine.loop import Progress


class BadCheckpoint(OpenCILError):
    """The stored tensors are no checkpoint of this training."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights of a module and state of its optimiser, after some epochs of one of a training's stages."""

    stage: int
    epoch: int
    weights: dict[str, Tensor]
    state: State  #: of the optimiser
    ended: Sequence[dict[str, Tensor]] = ()  #: weights after each stage before this one

    @classmethod
    def take(
        cls, module: nn.Module, progress: "Progress", ended: Sequence[dict[str, Tensor]] = ()
    ) -> "Checkpoint":
        """Return the checkpoint of a module at the end of an epoch."""
        return cls(progress.stage_number, progress.epoch, module.state_dict(), progress.state(), ended)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Checkpoint":
        """Return the checkpoint made of stored tensors."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in sorted(tensors.items()) if n.startswith(prefix)}

        stage, epoch = tensors["position"].tolist()
        ended = [under(f"ended.{i}.") for i in range(stage)]
        return cls(stage, epoch, under("model."), under("optimiser."), ended)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be stored."""
        return (
            {"position": torch.tensor([self.stage, self.epoch])}
            | {f"model.{name}": tensor for name, tensor in self.weights.items()}
            | {f"optimiser.{name}": tensor for name, tensor in self.state.items()}
            | {f"ended.{i}.{name}": t for i, end in enumerate(self.ended) for name, t in end.items()}
        )

    def restore(self, module: nn.Module, trained: nn.Module, schedule: Schedule) -> Self:
        """Load the weights into the module; raise if they, or the state for ``trained``, do not fit."""
        if self.epoch > schedule.epochs:
            raise BadCheckpoint(f"it is of epoch {self.epoch}, and there are {schedule.epochs}")
        _load(module, self.weights)
        if not fits(schedule, [p for p in trained.parameters() if p.requires_grad], self.state):
            raise BadCheckpoint(f"its optimiser is not {schedule.optimiser}, or is one of other parameters")
        return self

    def restore_end(self, module: nn.Module, stage: int) -> None:
        """Load the weights after a stage."""
        _load(module, self.ended[stage])


def _load(module: nn.Module, weights: dict[str, Tensor]) -> None:
    try:
        module.load_state_dict(weights, strict=True)
    except RuntimeError:
        raise BadCheckpoint("its weights are of another model") from None
