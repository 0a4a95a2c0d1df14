"""The training loop, once, for everything that trains."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import generator
from opencil.errors import OpenCILError


class Diverged(OpenCILError):
    """A loss became infinite or not a number."""


@dataclass(frozen=True)
class Stage:
    """One training of one set of parameters.

    ``loss(images, labels)`` is a scalar on an augmented batch; ``module`` is in training mode meanwhile, and
    its parameters are what trains. ``indices`` are the training images it sees.
    """

    name: str
    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    schedule: Schedule
    indices: Tensor


@dataclass(frozen=True)
class Progress:
    """Where a stage is after one more iteration; ``loss`` stays on the device until somebody reads it."""

    stage: str
    epoch: int
    epochs: int
    iteration: int
    iterations: int
    lr: float
    loss: Tensor


def train(
    stage: Stage, images: Images, transform: Transform, batch_size: int, seed: tuple[int | str, ...]
) -> Iterator[Progress]:
    """Run a stage, yielding after each iteration, so that several trainings can take turns.

    Every batch has the same size: an epoch's ragged tail is filled from the next permutation. All random
    choices of an epoch follow from ``seed`` and the epoch's number alone.
    """
    schedule, device = stage.schedule, images.device
    batch = min(batch_size, len(stage.indices))
    iterations = -(-len(stage.indices) // batch)
    parameters = [p for p in stage.module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(
        parameters, lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay
    )
    stage.module.train()
    for epoch in range(schedule.epochs):
        lr = schedule.lr_at(epoch)
        for group in optimiser.param_groups:
            group["lr"] = lr
        order = stage.indices[epoch_order(len(stage.indices), batch * iterations, epoch, seed)].to(device)
        draw = transform.draw(len(order), images.side, generator(*seed, "augment", epoch)).to(device)
        total = torch.zeros((), device=device)
        for i, pixels in enumerate(images.batches(order, batch)):
            rows = slice(i * batch, (i + 1) * batch)
            loss = stage.loss(transform.train(pixels, draw[rows]), images.labels[order[rows]])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += loss.detach()
            yield Progress(stage.name, epoch + 1, schedule.epochs, i + 1, iterations, lr, loss.detach())
        if not torch.isfinite(total):
            raise Diverged(
                f"the loss is {float(total / iterations)} in stage {stage.name!r}, epoch {epoch + 1} of "
                f"{schedule.epochs}, at learning rate {lr:g}: a smaller one may help"
            )
    stage.module.eval()


def epoch_order(count: int, length: int, epoch: int, seed: tuple[int | str, ...]) -> Tensor:
    """Epoch's piece, int64 [length], of an endless sequence of permutations of ``count`` things."""
    first, skip = divmod(epoch * length, count)
    last = (epoch * length + length - 1) // count
    permutations = [
        torch.randperm(count, generator=generator(*seed, "order", number))
        for number in range(first, last + 1)
    ]
    return torch.cat(permutations)[skip : skip + length]
