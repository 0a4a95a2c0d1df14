"""The training loop, once, for everything that trains."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opencil.data.images import Images
from opencil.data.transforms import Draw, Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.iteration import Iteration
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import generator
from opencil.errors import BadInput, OpenCILError


class Diverged(OpenCILError):
    """A loss became infinite or not a number."""


@dataclass(frozen=True)
class Stage:
    """One training of one set of parameters.

    ``loss(images, labels)`` is a scalar on an augmented batch; ``module`` is in training mode meanwhile, and
    its parameters that require gradients are what trains. ``indices`` are the training images it sees.
    """

    name: str
    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    schedule: Schedule
    indices: Tensor


@dataclass(frozen=True)
class Progress:
    """Where a stage is after one more iteration; ``loss`` stays on the device until somebody reads it.

    ``total`` is the sum of the epoch's losses so far, on the device too; ``momentum`` gives the optimiser's
    buffers, for a checkpoint at the end of an epoch; ``stage_number`` counts a step's stages.
    """

    stage: str
    epoch: int
    epochs: int
    iteration: int
    iterations: int
    lr: float
    loss: Tensor
    total: Tensor
    momentum: Callable[[], list[Tensor]]
    stage_number: int = 0

    @property
    def epoch_ends(self) -> bool:
        """Whether this was the epoch's last iteration."""
        return self.iteration == self.iterations

    @property
    def mean_loss(self) -> float:
        """Mean of the epoch's losses so far. Reading it waits for the device: once an epoch, at its end."""
        return float(self.total) / self.iteration


@dataclass(frozen=True)
class Resume:
    """Where to take a stage up again: epochs done, and the optimiser's buffers after them."""

    epoch: int
    momentum: list[Tensor]


def train(
    stage: Stage,
    images: Images,
    transform: Transform,
    batch_size: int,
    seed: tuple[int | str, ...],
    arithmetic: Arithmetic = FULL,
    resume: Resume | None = None,
) -> Iterator[Progress]:
    """Run a stage, yielding after each iteration, so that several trainings can take turns.

    Every batch has the same size: an epoch's ragged tail is filled from the next permutation. All random
    choices of an epoch follow from ``seed`` and the epoch's number alone. The host waits for the device once
    an epoch, to see whether the loss is finite.
    """
    schedule, device = stage.schedule, images.device
    if not len(stage.indices):
        raise BadInput(f"stage {stage.name!r} has no images to train on: at least one is needed")
    batch = min(batch_size, len(stage.indices))
    iterations = -(-len(stage.indices) // batch)
    iterate = Iteration(stage.module, stage.loss, schedule, transform, arithmetic, device)
    if resume:
        iterate.restore_momentum(resume.momentum)
    stage.module.train()
    for epoch in range(resume.epoch if resume else 0, schedule.epochs):
        lr = schedule.lr_at(epoch)
        iterate.set_lr(lr)
        order, draw = _choices(stage.indices, batch * iterations, epoch, seed, images.side, transform, device)
        labels = images.labels[order]
        total = torch.zeros((), device=device)
        for i, pixels in enumerate(images.batches(order, batch)):
            rows = slice(i * batch, (i + 1) * batch)
            loss = iterate(pixels, labels[rows], draw[rows])
            total += loss
            if i + 1 == iterations and not torch.isfinite(total):
                raise Diverged(
                    f"the loss is {float(total / iterations)} in stage {stage.name!r}, epoch {epoch + 1} of "
                    f"{schedule.epochs}, at learning rate {lr:g}: a smaller one may help"
                )
            yield Progress(
                stage.name, epoch + 1, schedule.epochs, i + 1, iterations, lr, loss, total, iterate.momentum
            )
    if not all(torch.isfinite(p).all() for p in iterate.parameters):  # the last update has no loss to show it
        lr = schedule.lr_at(schedule.epochs - 1)
        raise Diverged(
            f"weights are not finite after stage {stage.name!r}, epoch {schedule.epochs}, "
            f"at learning rate {lr:g}: a smaller one may help"
        )
    stage.module.eval()
    stage.module.zero_grad(set_to_none=True)


def _choices(
    indices: Tensor,
    length: int,
    epoch: int,
    seed: tuple[int | str, ...],
    side: int,
    transform: Transform,
    device: torch.device,
) -> tuple[Tensor, Draw]:
    """An epoch's image indices and augmentations, on the device."""
    order = indices[epoch_order(len(indices), length, epoch, seed)]
    draw = transform.draw(length, side, generator(*seed, "augment", epoch))
    return _moved(order, device), Draw(*(_moved(part, device) for part in (draw.top, draw.left, draw.flip)))


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Copied without making the host wait for what the device has been given before."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def epoch_order(count: int, length: int, epoch: int, seed: tuple[int | str, ...]) -> Tensor:
    """Epoch's piece, int64 [length], of an endless sequence of permutations of ``count`` things."""
    first, skip = divmod(epoch * length, count)
    last = (epoch * length + length - 1) // count
    permutations = [
        torch.randperm(count, generator=generator(*seed, "order", number))
        for number in range(first, last + 1)
    ]
    return torch.cat(permutations)[skip : skip + length]
