"""The training loop: batches, optimiser, modes, divergence."""

import copy
import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL
from opencil.engine.feed import epoch_order
from opencil.engine.loop import Checkpoint, Diverged, Progress, Stage, batches, optimise
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.nets.model import Model

Batch = tuple[Tensor, Tensor]
SEED = (3, "step", 1)


def train(
    stage: Stage, images: ImageSet, transform: Transform, resume: Checkpoint | None = None
) -> Iterator[Progress]:
    """Train a stage on batches of four images."""
    feed, loss = batches(stage, images, transform, 4, SEED, 0)
    return optimise(stage, loss, feed, FULL, resume)


def run(
    module: nn.Module, images: ImageSet, transform: Transform, schedule: Schedule, seen: list[Batch]
) -> list[Progress]:
    """Train to the end, and note the batches of the loss."""

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        assert module.training
        seen.append((pixels.clone(), labels.clone()))
        return F.cross_entropy(module(pixels), labels)

    return list(train(Stage("train", module, loss, schedule, torch.arange(10)), images, transform))


def naive_sgd(module: nn.Module, batches: list[Batch], rates: list[float], decay: float) -> None:
    """SGD with momentum .9 and weight decay, parameter by parameter: v ← .9·v + g + wd·p; p ← p − lr·v."""
    module.train()
    velocity: dict[str, Tensor] = {}
    for (images, labels), rate in zip(batches, rates, strict=True):
        module.zero_grad()
        F.cross_entropy(module(images), labels).backward()
        with torch.no_grad():
            for name, p in module.named_parameters():
                gradient = p.grad.add(p, alpha=decay)
                velocity[name] = velocity[name].mul(0.9).add(gradient) if name in velocity else gradient
                p.add_(velocity[name], alpha=-rate)


def test_training_is_plain_sgd_bit_for_bit(images: ImageSet, model: Model) -> None:
    naive = copy.deepcopy(model)
    schedule = Schedule(epochs=3, lr=0.1, milestones=(2,), weight_decay=1e-2)
    transform = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=8, padding=1)
    batches: list[Batch] = []
    assert len(run(model.eval(), images, transform, schedule, batches)) == 9
    assert not any(module.training for module in model.modules())
    naive_sgd(naive, batches, rates=[0.1] * 6 + [0.1 * 0.1] * 3, decay=1e-2)
    for (name, trained), expected in zip(
        model.state_dict().items(), naive.state_dict().values(), strict=True
    ):
        assert torch.equal(trained, expected), name


def test_only_the_modules_trainable_parameters_change(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    """Neither a frozen layer, nor a module that the loss reads but that is not the stage's."""
    model.backbone.requires_grad_(False)
    other = nn.Linear(3, 3)
    frozen = {name: p.clone() for name, p in model.backbone.named_parameters()}
    outside = copy.deepcopy(other.state_dict())
    head = model.head.weight.clone()
    stage = Stage(
        "train",
        model,
        lambda pixels, labels: F.cross_entropy(other(model(pixels)), labels),
        Schedule(epochs=2, weight_decay=0.1),
        torch.arange(10),
    )
    list(train(stage, images, plain))
    assert all(torch.equal(p, frozen[name]) for name, p in model.backbone.named_parameters())
    assert all(torch.equal(tensor, outside[name]) for name, tensor in other.state_dict().items())
    assert not torch.equal(model.head.weight, head)
    with pytest.raises(BadInput, match="nothing to train"):
        run(model.requires_grad_(False), images, plain, Schedule(epochs=1), [])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_the_training(
    images: ImageSet, model: Model, plain: Transform, bad: float
) -> None:
    """In one batch of the second epoch: named with stage, epoch and learning rate."""
    calls = 0

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(model(pixels), labels) + (bad if calls == 4 else 0)

    schedule = Schedule(epochs=5, lr=0.25, milestones=(1,))
    training = train(Stage("boost", model, loss, schedule, torch.arange(10)), images, plain)
    with pytest.raises(Diverged, match=f"{bad} in stage 'boost', epoch 2 of 5, at learning rate 0.025"):
        list(training)
    assert calls == 6


def test_weights_that_the_last_update_spoils_are_found_out(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    """No loss comes after the last update, as after resuming from the end of a stage."""
    with torch.no_grad():
        model.head.bias.fill_(math.nan)
    stage = Stage("train", model, lambda x, y: model(x).sum(), Schedule(epochs=2), torch.arange(10))
    with pytest.raises(Diverged, match="weights are not finite after stage 'train'"):
        list(train(stage, images, plain, Checkpoint(0, 2, {}, {})))


@settings(max_examples=60)
@given(
    count=st.integers(1, 12),
    length=st.integers(1, 30),
    epochs=st.integers(1, 8),
    seed=st.tuples(st.integers(0, 9), st.sampled_from(["a", "b"])),
)
def test_epoch_orders_join_to_whole_permutations(
    count: int, length: int, epochs: int, seed: tuple[int | str, ...]
) -> None:
    joined = torch.cat([epoch_order(count, length, epoch, seed) for epoch in range(epochs)]).tolist()
    assert len(joined) == length * epochs
    for start in range(0, len(joined), count):
        piece = joined[start : start + count]
        assert len(set(piece)) == len(piece)
        assert set(piece) <= set(range(count))
    assert torch.equal(epoch_order(count, length, epochs - 1, seed), torch.tensor(joined[-length:]))
