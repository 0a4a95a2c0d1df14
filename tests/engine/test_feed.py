"""Feeds of images and tensors, losses of their batches, and training on any feed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine.feed import EXTRAS, ImageFeed, TensorFeed, augmented_loss, epoch_order, extras_of
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


def test_random_choices_are_of_the_epoch_and_the_seed(images: ImageSet) -> None:
    def choices(number: int, seed: tuple[int | str, ...] = SEED) -> list[float]:
        feed = ImageFeed(images, TRANSFORM, torch.arange(10), 5, seed)
        return [v for _, _, *drawn in feed.epoch(number) for t in drawn for v in t.tolist()]

    first = choices(1)
    torch.manual_seed(8)
    assert choices(1) == first
    assert first != choices(2)
    assert first != choices(1, (6, "feed"))


@pytest.mark.parametrize("brightness", [False, True])
def test_a_loss_gets_what_it_names(images: ImageSet, brightness: bool) -> None:
    """The index, whether the class is old, and a second view, in any order."""
    seen: list[tuple[Tensor, ...]] = []

    def loss(
        batch: Tensor, labels: Tensor, from_memory: Tensor, *, second_view: Tensor, index: Tensor
    ) -> Tensor:
        seen.append((batch, labels, from_memory, second_view, index))
        return batch.sum()

    bright = replace(TRANSFORM, brightness=0.5) if brightness else TRANSFORM
    drawn = 4 if brightness else 3
    extras = extras_of(loss, "train")
    assert extras == set(EXTRAS)
    feed = ImageFeed(images, bright, torch.tensor([9, 1, 4, 0, 7]), 3, SEED, extras)
    plain = ImageFeed(images, bright, torch.tensor([9, 1, 4, 0, 7]), 3, SEED)
    views = {}
    for number in range(4):
        for served, without in zip(feed.epoch(number), plain.epoch(number), strict=True):
            assert len(without) == 2 + drawn
            same = zip(served[: 2 + drawn], without, strict=True)
            assert all(torch.equal(a, b) for a, b in same), "the same draws without extras"
            with torch.autocast("cpu", torch.bfloat16):
                augmented_loss(loss, bright, extras, old=2)(*served)
            batch, labels, old, second_view, index = seen.pop()
            assert batch.dtype == torch.float32, "autocast does not round images"
            assert torch.equal(labels, images.labels[index])
            assert torch.equal(old, labels < 2)
            first, second = served[2 : 2 + drawn], served[2 + drawn : 2 + 2 * drawn]
            assert torch.equal(batch, bright.train(images.images[index], first))
            assert torch.equal(second_view, bright.train(images.images[index], second))
            views[number] = torch.equal(batch, second_view)
    assert not any(views.values()), "the second view is another one"


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
def test_extras_are_read_from_the_signature(loss: Callable[..., Tensor], expected: set[str]) -> None:
    assert extras_of(loss, "train") == expected
    with pytest.raises(BadInput, match="'indices'"):
        extras_of(lambda images, labels, indices: images, "boost")


def test_images_are_augmented_in_full_precision() -> None:
    class Product(Transform):
        def train(self, pixels: Tensor, drawn: object) -> Tensor:
            return pixels.float() @ pixels.float().mT

    pixels = torch.arange(192, dtype=torch.uint8).view(1, 3, 8, 8)
    transform = Product(mean=(0, 0, 0), std=(1, 1, 1), crop=8)
    loss = augmented_loss(lambda images, labels: images, transform)
    with torch.autocast("cpu", torch.bfloat16):
        images = loss(pixels, torch.zeros(1).long())
    assert torch.equal(images, pixels.float() @ pixels.float().mT)


def test_the_epochs_of_a_filled_batch_go_on_in_the_next_permutation() -> None:
    drawn = torch.cat([epoch_order(5, 6, epoch, (0,)) for epoch in range(5)])
    assert drawn.view(6, 5).sort(dim=1).values.tolist() == [list(range(5))] * 6


def test_a_ragged_epoch_has_every_image_once(images: ImageSet) -> None:
    count = len(images)
    feed = ImageFeed(
        images, TRANSFORM, torch.arange(count), count - 1, (0,), frozenset({"index"}), ragged=True
    )
    sizes, order = [], []
    for batch in feed.epoch(2):
        assert {len(tensor) for tensor in batch} == {len(batch[0])}
        sizes.append(len(batch[0]))
        order += batch[-1].tolist()
    assert sizes == [count - 1, 1]
    assert sorted(order) == list(range(count))
