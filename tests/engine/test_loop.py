"""The training loop: batches, random choices, optimiser, and what it leaves alone."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from opencil.data.images import ImageSet
from opencil.data.transforms import Draw, Transform
from opencil.engine.feed import epoch_order
from opencil.engine.loop import Diverged, Progress, Resume, Stage, train
from opencil.engine.optimiser import kept
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.nets.model import Model

Batch = tuple[Tensor, Tensor]
SEED = (3, "step", 1)


def cross_entropy(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda images, labels: F.cross_entropy(module(images), labels)


def recording(
    loss: Callable[[Tensor, Tensor], Tensor], batches: list[Batch]
) -> Callable[[Tensor, Tensor], Tensor]:
    def recorded(images: Tensor, labels: Tensor) -> Tensor:
        batches.append((images.clone(), labels.clone()))
        return loss(images, labels)

    return recorded


def run(
    module: nn.Module,
    images: ImageSet,
    transform: Transform,
    schedule: Schedule,
    *,
    indices: Tensor | None = None,
    batch_size: int = 4,
    seed: tuple[int | str, ...] = SEED,
) -> tuple[list[Batch], list[Progress]]:
    """Train to the end: the batches that the loss saw, and the progress told."""
    batches: list[Batch] = []
    indices = torch.arange(len(images)) if indices is None else indices
    stage = Stage("train", module, recording(cross_entropy(module), batches), schedule, indices)
    return batches, list(train(stage, images, transform, batch_size, seed))


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
    batches, _ = run(model, images, transform, schedule)
    naive_sgd(naive, batches, rates=[0.1] * 6 + [0.1 * 0.1] * 3, decay=1e-2)
    for (name, trained), expected in zip(
        model.state_dict().items(), naive.state_dict().values(), strict=True
    ):
        assert torch.equal(trained, expected), name


def test_every_batch_has_the_same_size(images: ImageSet, model: Model, plain: Transform) -> None:
    batches, progress = run(model, images, plain, Schedule(epochs=2), batch_size=4)
    assert [len(labels) for _, labels in batches] == [4] * 6
    assert [(p.epoch, p.iteration) for p in progress] == [(e, i) for e in (1, 2) for i in (1, 2, 3)]
    assert {(p.stage, p.epochs, p.iterations) for p in progress} == {("train", 2, 3)}


def test_a_batch_is_never_larger_than_the_data(images: ImageSet, model: Model, plain: Transform) -> None:
    batches, progress = run(model, images, plain, Schedule(epochs=1), batch_size=64)
    assert [len(labels) for _, labels in batches] == [10]
    assert len(progress) == 1


def which(batches: list[Batch], images: ImageSet, transform: Transform) -> list[int]:
    """The indices of images that went through a transform without random choices."""
    known = {image.numpy().tobytes(): i for i, image in enumerate(transform.test(images.images))}
    return [known[image.numpy().tobytes()] for batch, _ in batches for image in batch]


def test_epochs_go_through_whole_permutations_of_the_indices(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    """Seven images in batches of 3: an epoch is 9, its tail comes from the next permutation."""
    indices = torch.tensor([9, 1, 4, 0, 7, 5, 2])
    batches, _ = run(model, images, plain, Schedule(epochs=7), indices=indices, batch_size=3)
    served = which(batches, images, plain)
    assert len(served) == 63
    for start in range(0, 63, 7):
        assert sorted(served[start : start + 7]) == sorted(indices.tolist())
    labels = torch.cat([labels for _, labels in batches]).tolist()
    assert labels == images.labels[served].tolist()
    order = torch.cat([epoch_order(7, 9, epoch, SEED) for epoch in range(7)])
    assert served == indices[order].tolist()


def test_every_image_is_augmented_as_the_transform_allows(images: ImageSet, model: Model) -> None:
    transform = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=8, padding=1)
    batches, _ = run(model, images, transform, Schedule(epochs=20), batch_size=5)
    views: dict[bytes, tuple[int, int, int, bool]] = {}
    count = len(images)
    for top in range(3):
        for left in range(3):
            for flip in (False, True):
                draw = Draw(*(torch.full((count,), value) for value in (top, left, flip)))
                for i, view in enumerate(transform.train(images.images, draw)):
                    views[view.numpy().tobytes()] = (i, top, left, flip)
    seen = Counter(views[image.numpy().tobytes()] for batch, _ in batches for image in batch)
    assert sum(seen.values()) == 200
    assert {choice[1:] for choice in seen} == {
        (t, x, f) for t in range(3) for x in range(3) for f in (False, True)
    }
    first, second = (
        [image.numpy().tobytes() for batch, _ in part for image in batch]
        for part in (batches[:2], batches[2:4])
    )
    assert {views[b][0] for b in first} == {views[b][0] for b in second}  # the same images
    assert set(first) != set(second)  # in other views


def test_random_choices_follow_from_the_seed_alone(images: ImageSet, model: Model) -> None:
    transform = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=8, padding=2)

    def trained(seed: tuple[int | str, ...]) -> Tensor:
        start = copy.deepcopy(model)
        run(start, images, transform, Schedule(epochs=2), seed=seed)
        return start.head.weight.detach()

    first = trained(SEED)
    torch.manual_seed(1234)  # the global generator must not matter
    assert torch.equal(trained(SEED), first)
    assert not torch.equal(trained((4, "step", 1)), first)
    assert not torch.equal(trained((3, "step", 2)), first)


def test_the_learning_rate_is_the_schedules(images: ImageSet, model: Model, plain: Transform) -> None:
    schedule = Schedule(epochs=4, lr=0.05, decay="cosine")
    _, progress = run(model, images, plain, schedule, batch_size=5)
    assert [p.lr for p in progress] == [schedule.lr_at(e) for e in range(4) for _ in range(2)]


def test_progress_tells_the_loss_of_the_batch(images: ImageSet, model: Model, plain: Transform) -> None:
    start = copy.deepcopy(model).train()
    batches, progress = run(model, images, plain, Schedule(epochs=1))
    assert torch.equal(progress[0].loss, F.cross_entropy(start(batches[0][0]), batches[0][1]).detach())
    assert not progress[0].loss.requires_grad


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
    list(train(stage, images, plain, 4, SEED))
    assert all(torch.equal(p, frozen[name]) for name, p in model.backbone.named_parameters())
    assert all(torch.equal(tensor, outside[name]) for name, tensor in other.state_dict().items())
    assert not torch.equal(model.head.weight, head)


def test_a_stage_with_nothing_to_train_is_refused(images: ImageSet, model: Model, plain: Transform) -> None:
    model.requires_grad_(False)
    with pytest.raises(BadInput, match="stage 'train' has nothing to train: no parameter"):
        run(model, images, plain, Schedule(epochs=1))


def test_the_module_trains_in_training_mode_and_is_left_in_eval_mode(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    model.eval()
    modes = []

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        modes.append(model.training)
        return cross_entropy(model)(pixels, labels)

    list(train(Stage("train", model, loss, Schedule(epochs=1), torch.arange(10)), images, plain, 4, SEED))
    assert modes == [True] * 3
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_the_training(
    images: ImageSet, model: Model, plain: Transform, bad: float
) -> None:
    """In one batch of the second epoch: named with stage, epoch and learning rate."""
    calls = 0

    def loss(pixels: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return cross_entropy(model)(pixels, labels) + (bad if calls == 4 else 0)

    schedule = Schedule(epochs=5, lr=0.25, milestones=(1,))
    training = train(Stage("boost", model, loss, schedule, torch.arange(10)), images, plain, 4, SEED)
    with pytest.raises(
        Diverged, match=f"the loss is {bad} in stage 'boost', epoch 2 of 5, at learning rate 0.025"
    ):
        list(training)
    assert calls == 6


def test_a_learning_rate_that_is_too_large_is_found_out(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    with pytest.raises(Diverged, match=r"learning rate 1e\+30"):
        run(model, images, plain, Schedule(epochs=50, lr=1e30))


@pytest.mark.parametrize("resumed", [False, True], ids=["at once", "from a checkpoint after it"])
def test_weights_that_the_last_update_spoils_are_found_out(
    images: ImageSet, model: Model, plain: Transform, resumed: bool
) -> None:
    """No loss comes after it to show it."""
    updates = []

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        updates.append(batch)
        total = model(batch).sum()
        nothing = total - total.detach()
        return nothing.sqrt() if len(updates) == 6 else nothing  # 0 both times, one with an infinite gradient

    stage = Stage("train", model, loss, Schedule(epochs=2), torch.arange(10))
    resume = None
    if resumed:
        with torch.no_grad():
            model.head.bias.fill_(math.nan)
        blank = kept(stage.schedule, list(model.parameters()))
        resume = Resume(2, {tensor.name: tensor.blank for tensor in blank})
    with pytest.raises(Diverged, match="weights are not finite after stage 'train'"):
        list(train(stage, images, plain, 4, SEED, resume=resume))
    assert len(updates) == (0 if resumed else 6)


def test_images_are_not_changed(images: ImageSet, model: Model, plain: Transform) -> None:
    before = images.images.clone()
    run(model, images, replace(plain, padding=1, flip=True), Schedule(epochs=1))
    assert torch.equal(images.images, before)


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


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = [epoch_order(20, 20, epoch, (seed, "a")).tolist() for epoch in range(3) for seed in range(3)]
    assert len({tuple(order) for order in orders}) == 9
