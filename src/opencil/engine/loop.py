"""The training loop, once, for everything that trains."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.batch_norm import average_statistics
from opencil.engine.feed import Feed, ImageFeed, TensorFeed, asked, augmented
from opencil.engine.iteration import Iteration
from opencil.engine.optimiser import State
from opencil.engine.ranks import at_work
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput, OpenCILError


class Diverged(OpenCILError):
    """A loss became infinite or not a number."""


@dataclass(frozen=True)
class Stage:
    """One training of one set of parameters.

    ``loss(images, labels)`` is a scalar on an augmented batch, a mean over its images: ranks that share one
    each compute that of their own. ``module`` is in training mode meanwhile, and its parameters that require
    gradients are what trains. ``indices`` are the training images it sees. A loss that names ``index``,
    ``from_memory`` or ``second_view`` as further arguments gets them too (``EXTRAS`` in feed.py says what
    they are); what none names is neither made nor drawn.

    With ``tensors`` the loss gets rows of these instead, drawn together: features that were computed from the
    images, say, so that none passes through a backbone again.
    """

    name: str
    module: nn.Module
    loss: Callable[..., Tensor]
    schedule: Schedule
    indices: Tensor
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Progress:
    """Where a stage is after one more iteration; ``loss`` stays on the device until somebody reads it.

    ``total`` is the sum of the epoch's losses so far, on the device too; ``state`` gives what the optimiser
    keeps, for a checkpoint at the end of an epoch; ``stage_number`` counts a step's stages.
    """

    stage: str
    epoch: int
    epochs: int
    iteration: int
    iterations: int
    lr: float
    loss: Tensor
    total: Tensor
    state: Callable[[], State]
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
    """Where to take a stage up again: epochs done, and what the optimiser keeps after them."""

    epoch: int
    state: State


def train(
    stage: Stage,
    images: Images,
    transform: Transform,
    batch_size: int,
    seed: tuple[int | str, ...],
    arithmetic: Arithmetic = FULL,
    resume: Resume | None = None,
    old: int = 0,
) -> Iterator[Progress]:
    """Run a stage on augmented images, yielding after each iteration; labels below ``old`` are not new."""
    if not len(stage.indices):
        raise BadInput(f"stage {stage.name!r} has no images to train on: at least one is needed")
    if (ranks := at_work()) is not None:
        ranks.agree(f"what stage {stage.name!r} trains on", stage.indices, *stage.tensors, batch_size, seed)
    feed, loss = batches(stage, images, transform, batch_size, seed, old)
    yield from optimise(stage.name, stage.module, loss, stage.schedule, feed, arithmetic, resume)


def batches(
    stage: Stage, images: Images, transform: Transform, batch_size: int, seed: tuple[int | str, ...], old: int
) -> tuple[Feed, Callable[..., Tensor]]:
    """What a stage learns from, and its loss as one of what that serves.

    Ranks that work together share batches of images; rows of tensors, too few to share, each has them all.
    """
    if stage.tensors:
        return TensorFeed(stage.tensors, batch_size, seed), stage.loss
    extras, ranks = asked(stage.loss, stage.name), at_work()
    batch = min(batch_size, len(stage.indices))
    share = None if ranks is None else ranks.share(batch, f"a batch of stage {stage.name!r}")
    feed = ImageFeed(images, transform, stage.indices, batch, seed, extras, share)
    return feed, augmented(stage.loss, transform, extras, old)


def optimise(
    name: str,
    module: nn.Module,
    loss: Callable[..., Tensor],
    schedule: Schedule,
    feed: Feed,
    arithmetic: Arithmetic,
    resume: Resume | None = None,
) -> Iterator[Progress]:
    """Train a module on what a feed serves, yielding after each iteration, so that trainings can take turns.

    ``loss`` is a scalar of the tensors of one iteration. The host waits for the device once an epoch, to see
    whether the loss is finite.
    """
    if not any(p.requires_grad for p in module.parameters()):
        raise BadInput(f"stage {name!r} has nothing to train: no parameter of its module requires gradients")
    iterate = Iteration(module, loss, schedule, arithmetic, feed.device, feed.generator, share=feed.share)
    ranks = at_work() if feed.share is not None else None
    if resume:
        iterate.restore(resume.state)
    module.train()
    for epoch in range(resume.epoch if resume else 0, schedule.epochs):
        lr = schedule.lr_at(epoch)
        iterate.set_lr(lr)
        total = torch.zeros((), device=feed.device)
        for i, batch in enumerate(feed.epoch(epoch), start=1):
            if ranks is not None:
                ranks.meet(f"{name}, epoch {epoch}, iteration {i}")
            value = iterate(*batch)
            total += value
            if i == feed.iterations and not torch.isfinite(total):
                raise Diverged(
                    f"the loss is {float(total / i)} in stage {name!r}, epoch {epoch + 1} of "
                    f"{schedule.epochs}, at learning rate {lr:g}: a smaller one may help"
                )
            if ranks is not None and i == feed.iterations:
                assert feed.share is not None
                if arithmetic.batch_norm == "local":
                    average_statistics(module, ranks, feed.share)
                sums = [tensor.double().sum() for tensor in module.state_dict().values()]
                ranks.agree(f"the model after epoch {epoch + 1} of stage {name!r}", torch.stack(sums))
            yield Progress(
                name, epoch + 1, schedule.epochs, i, feed.iterations, lr, value, total, iterate.state
            )
    if not all(torch.isfinite(p).all() for p in iterate.parameters):  # the last update has no loss to show it
        lr = schedule.lr_at(schedule.epochs - 1)
        raise Diverged(
            f"weights are not finite after stage {name!r}, epoch {schedule.epochs}, "
            f"at learning rate {lr:g}: a smaller one may help"
        )
    module.eval()
    module.zero_grad(set_to_none=True)
