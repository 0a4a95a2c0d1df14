"""The one training loop of learners and fine-tuning detectors, and its checkpoints."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.batch_norm import average_statistics
from opencil.engine.feed import Feed, ImageFeed, TensorFeed, augmented_loss, extras_of
from opencil.engine.iteration import Iteration, State
from opencil.engine.ranks import agree, current
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput, OpenCILError


class Diverged(OpenCILError):
    """A loss became infinite or not a number."""


class BadCheckpoint(OpenCILError):
    """The stored tensors are no checkpoint of this training."""


@dataclass(frozen=True)
class Stage:
    """One training of the parameters of ``module`` that require gradients, in training mode.

    ``loss(images, labels)`` is a scalar on an augmented batch of the training images at ``indices``: a mean
    over its images, as ranks share a batch. It may take further arguments, the ``EXTRAS`` of feed.py. With
    ``tensors`` the loss gets rows of these instead, for example of precomputed features. ``ragged``: the last
    batch of an epoch has the images that are left, in place of a full size. ``rates`` are parts of the module
    with a factor of their learning rate.
    """

    name: str
    module: nn.Module
    loss: Callable[..., Tensor]
    schedule: Schedule
    indices: Tensor
    tensors: tuple[Tensor, ...] = ()
    ragged: bool = False
    rates: tuple[tuple[nn.Module, float], ...] = ()


@dataclass(frozen=True)
class Progress:
    """Position of a stage after an iteration, with its ``loss`` on the device.

    ``total`` is the sum of the epoch's losses so far, also on the device; ``state`` returns the optimiser's
    state, for a checkpoint at the end of an epoch; ``stage_number`` counts a step's stages from 0.
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
        """Return whether this was the epoch's last iteration."""
        return self.iteration == self.iterations

    @property
    def mean_loss(self) -> float:
        """Return the mean of the epoch's losses so far; each call waits for the device."""
        return float(self.total) / self.iteration


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
        cls, module: nn.Module, progress: Progress, ended: Sequence[dict[str, Tensor]] = ()
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
        groups = {"model": self.weights, "optimiser": self.state}
        groups |= {f"ended.{i}": weights for i, weights in enumerate(self.ended)}
        named = {f"{group}.{name}": t for group, tensors in groups.items() for name, t in tensors.items()}
        return {"position": torch.tensor([self.stage, self.epoch])} | named

    def restore(self, module: nn.Module, stage: int = -1) -> dict[str, Tensor]:
        """Load the weights after an earlier stage, by default the newest, into the module; return them."""
        weights = [*self.ended, self.weights][stage]
        try:
            module.load_state_dict(weights, strict=True)
        except RuntimeError:
            raise BadCheckpoint("its weights are of another model") from None
        return weights


def batches(
    stage: Stage, images: Images, transform: Transform, batch_size: int, seed: tuple[int | str, ...], old: int
) -> tuple[Feed, Callable[..., Tensor]]:
    """Return the feed of a stage, and its loss as a function of the feed's tensors.

    Labels below ``old`` are of earlier steps. Ranks share batches of images, but not the few of tensors.
    """
    if not len(stage.indices):
        raise BadInput(f"stage {stage.name!r} has no images to train on: at least one is needed")
    if stage.tensors:
        return TensorFeed(stage.tensors, batch_size, seed), stage.loss
    extras, ranks = extras_of(stage.loss, stage.name), current()
    batch = min(batch_size, len(stage.indices))
    if stage.ragged and ranks is not None:
        raise BadInput(f"stage {stage.name!r} has a ragged last batch: train without torchrun")
    share = None if ranks is None else ranks.share(batch, f"a batch of stage {stage.name!r}")
    feed = ImageFeed(images, transform, stage.indices, batch, seed, extras, share, stage.ragged)
    return feed, augmented_loss(stage.loss, transform, extras, old)


def optimise(
    stage: Stage, loss: Callable[..., Tensor], feed: Feed, arithmetic: Arithmetic, resume: Checkpoint | None
) -> Iterator[Progress]:
    """Train a stage's module on a feed, yielding after each iteration: heads can be tuned in turn.

    ``loss`` is a scalar function of the feed's tensors. The host waits for the device once an epoch, to
    refuse a loss that is not finite.
    """
    name, module, schedule = stage.name, stage.module, stage.schedule
    if not any(p.requires_grad for p in module.parameters()):
        raise BadInput(f"stage {name!r} has nothing to train: no parameter of its module requires gradients")
    iterate = Iteration(
        module, loss, schedule, arithmetic, feed.device, feed.generator, share=feed.share, rates=stage.rates
    )
    if resume:
        if resume.epoch > schedule.epochs or not iterate.fits(resume.state):
            way = f"{schedule.epochs} epochs by {schedule.optimiser}"
            raise BadCheckpoint(f"it is not of {way} of the same parameters")
        iterate.restore(resume.state)
    module.train()
    for epoch in range(resume.epoch if resume else 0, schedule.epochs):
        lr = schedule.lr_at(epoch)
        iterate.set_lr(lr)
        total = torch.zeros((), device=feed.device)
        for i, batch in enumerate(feed.epoch(epoch), start=1):
            value = iterate(*batch)
            total += value
            last = i == feed.iterations
            if last and not torch.isfinite(total):
                raise _diverged(f"the loss is {float(total / i)} in stage {name!r}", epoch, schedule)
            if last and feed.share is not None and (ranks := current()) is not None:
                if arithmetic.batch_norm == "local":
                    average_statistics(module, ranks, feed.share)
                sums = [tensor.double().sum() for tensor in module.state_dict().values()]
                agree(f"the model after epoch {epoch + 1} of stage {name!r}", torch.stack(sums))
            position = epoch + 1, schedule.epochs, i, feed.iterations
            yield Progress(name, *position, lr, value, total, iterate.state)
    # No loss shows whether the last update diverged.
    if not all(torch.isfinite(p).all() for p in iterate.parameters):
        raise _diverged(f"weights are not finite after stage {name!r}", schedule.epochs - 1, schedule)
    module.eval()
    module.zero_grad(set_to_none=True)


def _diverged(problem: str, epoch: int, schedule: Schedule) -> Diverged:
    place = f"epoch {epoch + 1} of {schedule.epochs}, at learning rate {schedule.lr_at(epoch):g}"
    return Diverged(f"{problem}, {place}: a smaller one may help")
