"""The class-incremental stream and the growth of OOD data."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opencil.data.images import ImageSet
from opencil.data.stream import StepSizes, Stream, class_order, count_classes, ood_subset
from opencil.errors import BadInput

Maker = Callable[..., ImageSet]


def test_class_order_is_the_one_the_field_uses() -> None:
    assert class_order(100)[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    assert sorted(class_order(100)) == list(range(100))
    assert class_order(100, seed=1) == np.random.RandomState(1).permutation(100).tolist()
    assert class_order(100, seed=1) != class_order(100)


@pytest.mark.parametrize(
    ("classes", "per_step", "sizes"),
    [
        (100, 10, [10] * 10),
        (8, 2, [2] * 4),
        (10, 4, [4, 4, 2]),
        (5, 5, [5]),
        (3, 1, [1] * 3),
        (3, 7, [3]),
        (100, "50+10", [50, *[10] * 5]),
        (10, "4+4", [4, 4, 2]),
        (9, "4+2", [4, 2, 2, 1]),
        (4, "4+2", [4]),
        (50, "20-20-10", [20, 20, 10]),
        (60, "20-20+10", [20, 20, 10, 10]),
    ],
)
def test_step_sizes(classes: int, per_step: int | str, sizes: list[int]) -> None:
    assert list(StepSizes.parse(per_step).of(classes)) == sizes


@pytest.mark.parametrize(
    ("text", "label"),
    [("10", 10), (10, 10), ("50+10", "50+10"), ("10+10", 10), ("20-10+10", "20+10"), ("20-10", "20-10")],
)
def test_steps_have_one_label(text: int | str, label: int | str) -> None:
    assert StepSizes.parse(text).label == label
    assert StepSizes.parse(StepSizes.parse(text).label) == StepSizes.parse(text)
    assert StepSizes.parse(StepSizes.parse(text)) == StepSizes.parse(text)


def test_steps_sort_naturally() -> None:
    labels: list[int | str] = ["50+10", 20, "20-20-10+1", "20-20-10", 5, "50+5", 10]
    ordered = sorted(labels, key=lambda label: StepSizes.parse(label).order)
    assert ordered == [5, 10, 20, "20-20-10", "20-20-10+1", "50+5", "50+10"]


@pytest.mark.parametrize(
    "text", ["", "0", "a", "10+", "+10", "10+5-5", "10-0", "-10", "1.5", "10 + 5", True, -1]
)
def test_other_texts_are_no_steps(text: int | str) -> None:
    with pytest.raises(BadInput, match=r"50\+10"):
        StepSizes.parse(text)


@pytest.mark.parametrize(
    ("classes", "text", "why"),
    [
        (49, "50+10", "the first are more"),
        (50, "20-20", "they are 40 in all"),
        (30, "20-20", "they are 40 in all"),
    ],
)
def test_steps_that_do_not_fit_the_classes(classes: int, text: str, why: str) -> None:
    with pytest.raises(BadInput, match=f"there are {classes} classes, and {why}"):
        StepSizes.parse(text).of(classes)


def test_uneven_steps_know_their_tasks(make_images: Maker) -> None:
    images = make_images(range(9))
    step = Stream.create(images, images, "4+2")[2]
    assert (step.number, step.steps, step.old, step.seen, step.new) == (3, 4, 6, 8, 2)
    assert step.tasks == [range(4), range(4, 6), range(6, 8)]
    assert step.task_of_class == [1, 1, 1, 1, 2, 2, 3, 3]
    assert set(images.labels[step.test].tolist()) <= set(range(9))
    assert len(step.test) == 8


@settings(max_examples=40)
@given(classes=st.integers(1, 12), per_step=st.integers(1, 13), data=st.data())
def test_every_class_comes_in_exactly_one_step(
    make_images: Maker, classes: int, per_step: int, data: st.DataObject
) -> None:
    """Shuffled and unbalanced images, against a step-by-step reading of the protocol in original labels."""
    extra = data.draw(st.lists(st.integers(0, classes - 1), max_size=10))
    labels = data.draw(st.permutations([*range(classes), *extra]))
    train, test = make_images(labels), make_images(list(reversed(labels)))
    order = class_order(classes)
    stream = Stream.create(train, test, per_step)

    expected = [order[start : start + per_step] for start in range(0, classes, per_step)]
    assert len(stream) == len(expected)
    seen: list[int] = []
    for number, (step, new) in enumerate(zip(stream, expected, strict=True), start=1):
        assert (step.number, step.steps) == (number, len(expected))
        assert (step.old, step.seen, step.new) == (len(seen), len(seen) + len(new), len(new))
        seen += new
        assert step.train.tolist() == [i for i, c in enumerate(labels) if c in new]
        assert step.test.tolist() == [i for i, c in enumerate(reversed(labels)) if c in seen]
    assert sorted(seen) == list(range(classes))


def test_labels_are_positions_in_the_order(make_images: Maker) -> None:
    labels = [3, 1, 0, 2, 2, 4]
    stream = Stream.create(make_images(labels), make_images([4, 3, 2, 1, 0]), 2, order_seed=7)
    order = class_order(5, 7)
    assert stream.train.labels.tolist() == [order.index(c) for c in labels]
    assert stream.test.labels.tolist() == [order.index(c) for c in [4, 3, 2, 1, 0]]
    for step in stream:
        assert set(stream.train.labels[step.train].tolist()) == set(range(step.old, step.seen))
        assert set(stream.test.labels[step.test].tolist()) == set(range(step.seen))


def test_classes_come_in_the_order_that_is_given(make_images: Maker) -> None:
    images = make_images([0, 1, 2, 2])
    stream = Stream.create(images, images, 2, order=(2, 0, 1))
    assert stream.train.labels.tolist() == [1, 2, 0, 0]
    assert stream.classes == 3
    for order in ([2, 0], [2, 0, 0], [3, 2, 1]):
        with pytest.raises(
            BadInput, match="class_order is not allowed: each of 0 to 2 is needed in it, once"
        ):
            Stream.create(images, images, 2, order=order)


def test_steps_can_be_taken_by_number(make_images: Maker) -> None:
    images = make_images(range(5))
    stream = Stream.create(images, images, 2)
    assert [step.number for step in stream] == [1, 2, 3]
    assert stream[0].number == 1
    assert stream[-1].number == 3
    assert [step.number for step in stream[1:]] == [2, 3]
    with pytest.raises(IndexError):
        stream[3]


def test_a_set_without_images_is_refused(make_images: Maker) -> None:
    with pytest.raises(BadInput, match="'toy' has no images"):
        count_classes(make_images([]))


@pytest.mark.parametrize("labels", [[0, 2], [1, 2], [-1, 0]], ids=["gap", "starts at 1", "negative"])
def test_labels_with_a_gap_are_refused(make_images: Maker, labels: list[int]) -> None:
    with pytest.raises(
        BadInput, match=rf"'toy'.*lowest is {min(labels)}, the highest {max(labels)}, and 2 differ"
    ):
        Stream.create(make_images(labels), make_images([0, 1]), 1)


def test_training_and_test_must_have_the_same_classes(make_images: Maker) -> None:
    with pytest.raises(BadInput, match="'toy' has 3 classes in training and 2 in test images"):
        Stream.create(make_images([0, 1, 2]), make_images([0, 1]), 1)


def test_the_number_of_classes_is_counted_from_labels(make_images: Maker) -> None:
    images = make_images([0, 2, 1, 1])
    assert count_classes(images) == 3
    assert count_classes(replace(images, labels=torch.zeros(4, dtype=torch.int64))) == 1


GROWTH = given(
    count=st.integers(1, 300),
    steps=st.integers(1, 20),
    order=st.sampled_from(["permutation", "list"]),
    seed=st.integers(0, 2**40),
)


@settings(max_examples=60)
@GROWTH
def test_ood_subsets_grow_nested_to_the_whole_set(count: int, steps: int, order: str, seed: int) -> None:
    subsets = [ood_subset(count, t, steps, order, seed).tolist() for t in range(1, steps + 1)]
    for t, subset in enumerate(subsets, start=1):
        assert len(subset) == max(1, round(count * t / steps))
    for smaller, larger in pairwise(subsets):
        assert larger[: len(smaller)] == smaller
    assert sorted(subsets[-1]) == list(range(count))


@pytest.mark.parametrize("order", ["permutation", "list"])
def test_an_ood_set_without_images_is_refused(order: str) -> None:
    with pytest.raises(BadInput, match="an OOD dataset has no images"):
        ood_subset(0, 1, 4, order, seed=3)


def test_list_order_takes_the_first_images() -> None:
    assert ood_subset(10, 2, 4, "list", seed=3).tolist() == [0, 1, 2, 3, 4]


def test_the_subset_follows_from_the_seed_alone() -> None:
    def drawn(seed: int) -> list[int]:
        return ood_subset(100, 1, 4, "permutation", seed).tolist()

    state = torch.random.get_rng_state()
    first = drawn(5)
    np.random.seed(1)  # noqa: NPY002 the global generator must not matter
    assert drawn(5) == first
    assert drawn(6) != first
    assert first != list(range(25))
    assert torch.equal(torch.random.get_rng_state(), state)
