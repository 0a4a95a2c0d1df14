"""Where batches come from: what an image feed serves, and losses of it; any feed can be trained on."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from opencil.data.images import ImageSet
from opencil.data.transforms import Draw, Transform
from opencil.engine.arithmetic import FULL
from opencil.engine.feed import EXTRAS, Feed, ImageFeed, TensorFeed, asked, augmented, epoch_order, laid_out
from opencil.engine.iteration import WARM_UP
from opencil.engine.loop import Diverged, Stage, optimise, train
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput

SEED = (5, "feed")
TRANSFORM = Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=8, padding=1)


@pytest.mark.parametrize(("size", "iterations"), [(4, 2), (3, 3), (7, 1), (64, 1)])
def test_an_image_feed_serves_batches_of_one_size(images: ImageSet, size: int, iterations: int) -> None:
    indices = torch.tensor([9, 1, 4, 0, 7, 5, 2])
    feed = ImageFeed(images, TRANSFORM, indices, size, SEED)
    assert (feed.iterations, feed.device, feed.generator) == (iterations, images.device, None)
    batch = min(size, 7)
    for number in (0, 3):
        served = list(feed.epoch(number))
        assert len(served) == iterations
        order = indices[epoch_order(7, batch * iterations, number, SEED)]
        for i, (pixels, labels, *choices) in enumerate(served):
            rows = order[i * batch : (i + 1) * batch]
            assert torch.equal(pixels, images.images[rows])
            assert torch.equal(labels, images.labels[rows])
            assert [len(choice) for choice in choices] == [batch] * 3


@pytest.mark.parametrize(("size", "iterations"), [(4, 2), (3, 3), (64, 1)])
def test_a_tensor_feed_serves_the_same_rows_of_each(size: int, iterations: int) -> None:
    points, labels = torch.rand(7, 2), torch.arange(7)
    feed = TensorFeed((points, labels), size, SEED)
    assert (feed.iterations, feed.device) == (iterations, points.device)
    batch, epochs = min(size, 7), []
    for number in (0, 3):
        served = list(feed.epoch(number))
        assert [len(rows) for _, rows in served] == [batch] * iterations
        assert all(torch.equal(part, points[rows]) for part, rows in served)
        epochs.append(torch.cat([rows for _, rows in served]))
        assert torch.equal(epochs[-1], epoch_order(7, batch * iterations, number, SEED))
    assert not torch.equal(*epochs)


def test_a_stage_with_tensors_is_trained_on_their_rows(images: ImageSet) -> None:
    """No image is read for it; what it learns is what a line through the points is."""
    module, points = nn.Linear(1, 1), torch.linspace(-1, 1, 32)[:, None]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (module(x) - y).square().mean()

    schedule = Schedule(epochs=60, lr=0.1)
    stage = Stage("line", module, loss, schedule, torch.arange(3), (points, 3 * points + 1))
    ends = [progress.epoch_ends for progress in train(stage, images, TRANSFORM, 8, SEED)]
    assert (len(ends), sum(ends)) == (240, 60)
    assert (module.weight.item(), module.bias.item()) == pytest.approx((3, 1), abs=1e-2)


def test_random_choices_are_of_the_epoch_and_the_seed(images: ImageSet) -> None:
    def choices(number: int, seed: tuple[int | str, ...] = SEED) -> list[float]:
        feed = ImageFeed(images, TRANSFORM, torch.arange(10), 5, seed)
        return [v for _, _, *drawn in feed.epoch(number) for t in drawn for v in t.tolist()]

    first = choices(1)
    torch.manual_seed(8)
    assert choices(1) == first
    assert first != choices(2)
    assert first != choices(1, (6, "feed"))


def test_an_augmented_loss_sees_transformed_images(images: ImageSet) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        seen.append((batch, labels))
        return batch.sum()

    feed = ImageFeed(images, TRANSFORM, torch.arange(10), 10, SEED)
    ((pixels, labels, *choices),) = feed.epoch(0)
    with torch.autocast("cpu", torch.bfloat16):
        augmented(loss, TRANSFORM)(pixels, labels, *choices)
    ((batch, given),) = seen
    assert torch.equal(batch, TRANSFORM.train(pixels, Draw(*choices)))
    assert batch.dtype == torch.float32, "a training's autocast does not round its images"
    assert torch.equal(given, labels)


def test_both_views_have_their_brightness(images: ImageSet) -> None:
    bright = replace(TRANSFORM, brightness=0.5)
    extras = frozenset({"second_view", "index"})
    seen: dict[str, Tensor] = {}

    def loss(batch: Tensor, labels: Tensor, **given: Tensor) -> Tensor:
        seen.update(given, batch=batch)
        return batch.sum()

    (served,) = ImageFeed(images, bright, torch.arange(10), 10, SEED, extras).epoch(0)
    augmented(loss, bright, extras)(*served)
    assert torch.equal(seen["batch"], bright.train(served[0], Draw(*served[2:6])))
    assert torch.equal(seen["second_view"], bright.train(served[0], Draw(*served[6:10])))
    assert torch.equal(images.images[seen["index"]], served[0])
    assert not torch.equal(seen["batch"], bright.train(served[0], Draw(*served[2:5])))


def test_a_loss_gets_what_it_names(images: ImageSet) -> None:
    """The index, whether the class is old, and a second view, whatever the order of the names."""
    seen: list[dict[str, Tensor]] = []

    def loss(
        batch: Tensor, labels: Tensor, from_memory: Tensor, *, second_view: Tensor, index: Tensor
    ) -> Tensor:
        seen.append(
            {"batch": batch, "labels": labels, "old": from_memory, "second": second_view, "index": index}
        )
        return batch.sum()

    extras = asked(loss, "train")
    assert extras == set(EXTRAS)
    feed = ImageFeed(images, TRANSFORM, torch.tensor([9, 1, 4, 0, 7]), 3, SEED, extras)
    plain = ImageFeed(images, TRANSFORM, torch.tensor([9, 1, 4, 0, 7]), 3, SEED)
    views = {}
    for number in range(4):
        for served, without in zip(feed.epoch(number), plain.epoch(number), strict=True):
            assert len(without) == 5
            assert all(torch.equal(a, b) for a, b in zip(served[:5], without, strict=True)), "nothing moves"
            augmented(loss, TRANSFORM, extras, old=2)(*served)
            got = seen.pop()
            pixels = images.images[got["index"]]
            assert torch.equal(got["labels"], images.labels[got["index"]])
            assert got["old"].tolist() == [label < 2 for label in got["labels"].tolist()]
            assert torch.equal(got["batch"], TRANSFORM.train(pixels, Draw(*served[2:5])))
            assert torch.equal(got["second"], TRANSFORM.train(pixels, Draw(*served[5:8])))
            views[number] = torch.equal(got["batch"], got["second"])
    assert not any(views.values()), "the second view is another one"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")
def test_a_captured_loss_gets_it_anew_in_every_iteration(images: ImageSet) -> None:
    device = torch.device("cuda")
    here, module = images.to(device), nn.Linear(3 * 8 * 8, 1).to(device)
    seen, old, apart = (torch.zeros(size, device=device) for size in (10, 3, 1))

    def loss(
        batch: Tensor, labels: Tensor, index: Tensor, from_memory: Tensor, second_view: Tensor
    ) -> Tensor:
        with torch.no_grad():
            seen.index_add_(0, index, torch.ones_like(index, dtype=torch.float32))
            old.index_add_(0, labels, from_memory.float())
            apart.add_((batch != second_view).any(dim=3).any(dim=2).any(dim=1).sum())
        return module(batch.flatten(1)).square().mean()

    stage = Stage("train", module, loss, Schedule(epochs=4, lr=1e-3), torch.arange(10))
    with torch.cuda.stream(torch.cuda.Stream()):
        progress = list(train(stage, here, TRANSFORM, 5, SEED, old=2))
        torch.cuda.synchronize()
    assert len(progress) == 8 > WARM_UP
    assert seen.tolist() == [4.0] * 10
    counts = images.labels.bincount().tolist()
    assert old.tolist() == [4.0 * counts[0], 4.0 * counts[1], 0.0]
    assert apart.item() > 20


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x, y: x, set()),
        (lambda images, labels, index: images, {"index"}),
        (lambda index, from_memory: index, set()),
        (lambda x, y, scale=2.0, second_view=None: x, {"second_view"}),
        (lambda *batch: batch[0], set()),
        (nn.CrossEntropyLoss(), set()),
        (torch.nn.functional.cross_entropy, set()),
        (partial(lambda model, x, y, from_memory: x, None), {"from_memory"}),
    ],
)
def test_what_is_asked_for_is_in_the_signature(loss: Callable[..., Tensor], expected: set[str]) -> None:
    assert asked(loss, "train") == expected


def test_an_argument_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        BadInput,
        match=r"the loss of stage 'boost' asks for 'indices': beyond \(images, labels\) it may name index, .*"
        r"from_memory, .*second_view, .*did you mean 'index'\?",
    ):
        asked(lambda images, labels, indices: images, "boost")


def test_layout_changes_no_value() -> None:
    images = torch.rand(2, 3, 4, 5)
    assert torch.equal(laid_out(images), images)


class Numbers(Feed):
    """One number an iteration, and noise from the device's generator, seeded when an epoch begins."""

    device, iterations = torch.device("cpu"), 2

    def __init__(self) -> None:
        self.generator: torch.Generator | None = torch.Generator()
        self.epochs: list[int] = []

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        self.epochs.append(number)
        assert self.generator is not None
        self.generator.manual_seed(number)
        for i in range(self.iterations):
            yield (torch.tensor([10.0 * number + i]),)


def test_any_feed_can_be_trained_on() -> None:
    """The loss gets what the feed serves and draws from its generator; p ← p − lr·(gradient of the loss)."""
    feed, module = Numbers(), nn.Linear(1, 1, bias=False)
    start, given = module.weight.item(), []

    def loss(number: Tensor) -> Tensor:
        given.append((float(number), float(torch.rand((), generator=feed.generator))))
        return (given[-1][0] + given[-1][1]) * module.weight.sum()

    schedule = Schedule(epochs=3, lr=0.5, momentum=0.0)
    told = list(optimise("mine", module, loss, schedule, feed, FULL))
    assert feed.epochs == [0, 1, 2]
    assert [number for number, _ in given] == [0, 1, 10, 11, 20, 21]
    expected = [float(v) for e in range(3) for v in torch.rand(2, generator=torch.Generator().manual_seed(e))]
    assert [noise for _, noise in given] == pytest.approx(expected)
    assert module.weight.item() == pytest.approx(start - 0.5 * sum(sum(pair) for pair in given), rel=1e-5)
    assert [(p.stage, p.epoch, p.iteration, p.iterations) for p in told] == [
        ("mine", e, i, 2) for e in (1, 2, 3) for i in (1, 2)
    ]


def test_a_feed_on_which_a_loss_diverges_is_named() -> None:
    module, schedule = nn.Linear(1, 1, bias=False), Schedule(epochs=3, lr=0.25)

    def loss(number: Tensor) -> Tensor:
        return module.weight.sum() + number.sum() / (number.sum() < 11)  # infinite at the end of epoch 2

    with pytest.raises(
        Diverged, match=r"the loss is inf in stage 'mine', epoch 2 of 3, at learning rate 0\.25"
    ):
        list(optimise("mine", module, loss, schedule, Numbers(), FULL))
