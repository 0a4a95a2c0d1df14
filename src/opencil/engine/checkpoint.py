"""A training in the middle: what it takes to go on from the end of an epoch, bit for bit."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from opencil.engine.loop import Progress, Resume
from opencil.engine.optimiser import State, kept
from opencil.engine.schedule import Schedule
from opencil.errors import OpenCILError


class BadCheckpoint(OpenCILError):
    """Stored tensors are no checkpoint of the training at hand."""


@dataclass(frozen=True)
class Checkpoint:
    """The module that is stored and the optimiser, after some epochs of one of a training's stages."""

    stage: int
    epoch: int
    weights: dict[str, Tensor]
    state: State  #: of the optimiser
    #: The weights after each stage before this one.
    ended: list[dict[str, Tensor]] = field(default_factory=list)

    @classmethod
    def take(
        cls, module: nn.Module, progress: Progress, ended: list[dict[str, Tensor]] | None = None
    ) -> "Checkpoint":
        """The state at the end of an epoch."""
        return cls(progress.stage_number, progress.epoch, module.state_dict(), progress.state(), ended or [])

    @property
    def finite(self) -> bool:
        """Whether training can go on from it."""
        tensors = (*self.weights.values(), *self.state.values())
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

    def tensors(self) -> dict[str, Tensor]:
        """What to store."""
        return (
            {"position": torch.tensor([self.stage, self.epoch])}
            | {f"model.{name}": tensor for name, tensor in self.weights.items()}
            | {f"optimiser.{name}": tensor for name, tensor in self.state.items()}
            | {f"ended.{i}.{name}": t for i, end in enumerate(self.ended) for name, t in end.items()}
        )

    def restore(self, module: nn.Module, trained: nn.Module, schedule: Schedule) -> Resume:
        """Put the weights back into the module, a part of which is trained: all must fit."""
        if self.epoch > schedule.epochs:
            raise BadCheckpoint(f"it is of epoch {self.epoch}, and there are {schedule.epochs}")
        _load(module, self.weights)
        parameters = [p for p in trained.parameters() if p.requires_grad]
        shapes = {name: blank.shape for name, _, _, blank in kept(schedule, parameters)}
        if {name: tensor.shape for name, tensor in self.state.items()} != shapes:
            raise BadCheckpoint(f"its optimiser is not {schedule.optimiser}, or is one of other parameters")
        return Resume(self.epoch, self.state)

    def restore_end(self, module: nn.Module, stage: int) -> None:
        """Put back the weights that the module had after a stage."""
        _load(module, self.ended[stage])

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Checkpoint":
        """The stored checkpoint again."""
        position = tensors.get("position", torch.empty(0))
        if position.shape != (2,) or position.dtype != torch.int64 or (position < torch.tensor([0, 1])).any():
            raise BadCheckpoint("it does not say where it was taken")
        stage, epoch = position.tolist()

        def under(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in sorted(tensors.items()) if n.startswith(prefix)}

        ended = [under(f"ended.{i}.") for i in range(stage)]
        # SGD was the only optimiser once, and its buffers went by their number alone.
        before = {f"{number}.momentum_buffer": tensor for number, tensor in under("momentum.").items()}
        return cls(stage, epoch, under("model."), before | under("optimiser."), ended)


def _load(module: nn.Module, weights: dict[str, Tensor]) -> None:
    try:
        module.load_state_dict(weights, strict=True)
    except RuntimeError:
        raise BadCheckpoint("its weights are of another model") from None
