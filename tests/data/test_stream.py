"""The class-incremental stream and the growth of OOD data."""

from collections.abc import Callable
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


def test_the_class_order_is_that_of_other_libraries() -> None:
    assert class_order(100)[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    assert class_order(100, seed=1) == np.random.RandomState(1).permutation(100).tolist()


@pytest.mark.parametrize(
    ("classes", "per_step", "sizes", "label"),
    [
        (100, 10, [10] * 10, 10),
        (8, "2", [2] * 4, 2),
        (10, 4, [4, 4, 2], 4),
        (3, 7, [3], 7),
        (100, "50+10", [50, *[10] * 5], "50+10"),
        (10, "4+4", [4, 4, 2], 4),
        (9, "4+2", [4, 2, 2, 1], "4+2"),
        (4, "4+2", [4], "4+2"),
        (50, "20-20-10", [20, 20, 10], "20-20-10"),
        (60, "20-20+10", [20, 20, 10, 10], "20-20+10"),
        (40, "20-10+10", [20, 10, 10], "20+10"),
    ],
)
def test_step_sizes(classes: int, per_step: int | str, sizes: list[int], label: int | str) -> None:
    parsed = StepSizes.parse(per_step)
    assert (list(parsed.of(classes)), parsed.label) == (sizes, label)
    assert StepSizes.parse(parsed.label) == parsed


def test_steps_are_sorted_naturally() -> None:
    labels: list[int | str] = ["50+10", 20, "20-20-10+1", "20-20-10", 5, "50+5", 10]
    ordered = sorted(labels, key=lambda label: StepSizes.parse(label).order)
    assert ordered == [5, 10, 20, "20-20-10", "20-20-10+1", "50+5", "50+10"]


@pytest.mark.parametrize(
    "text", ["", "0", "a", "10+", "+10", "10+5-5", "10-0", "-10", "1.5", "10 + 5", True, -1]
)
def test_other_texts_are_refused(text: int | str) -> None:
    with pytest.raises(BadInput, match="classes_per_step"):
        StepSizes.parse(text)


@pytest.mark.parametrize(("classes", "text"), [(49, "50+10"), (50, "20-20"), (30, "20-20")])
def test_steps_must_fit_the_classes(classes: int, text: str) -> None:
    with pytest.raises(BadInput, match="classes_per_step"):
        StepSizes.parse(text).of(classes)


def test_uneven_steps(make_images: Maker) -> None:
    images = make_images(range(9))
    stream = Stream.create(images, images, "4+2")
    step = stream[2]
    assert (step.number, step.steps, step.old, step.seen, step.new) == (3, 4, 6, 8, 2)
    assert step.tasks == [range(4), range(4, 6), range(6, 8)]
    assert step.task_of_class == [1, 1, 1, 1, 2, 2, 3, 3]
    assert len(step.test) == 8
    assert stream[-1].number == 4
    assert [step.number for step in stream] == [1, 2, 3, 4]
    with pytest.raises(IndexError):
        stream[4]


@settings(max_examples=40)
@given(classes=st.integers(1, 12), per_step=st.integers(1, 13), data=st.data())
def test_every_class_is_in_exactly_one_step(
    make_images: Maker, classes: int, per_step: int, data: st.DataObject
) -> None:
    """Compare shuffled and unbalanced images with a naive stream over the original labels."""
    extra = data.draw(st.lists(st.integers(0, classes - 1), max_size=10))
    labels = data.draw(st.permutations([*range(classes), *extra]))
    train, test = make_images(labels), make_images(list(reversed(labels)))
    order = class_order(classes)
    stream = Stream.create(train, test, per_step)
    assert stream.train.labels.tolist() == [order.index(c) for c in labels]

    expected = [order[start : start + per_step] for start in range(0, classes, per_step)]
    seen: list[int] = []
    for number, (step, new) in enumerate(zip(stream, expected, strict=True), start=1):
        assert (step.number, step.steps) == (number, len(expected))
        assert (step.old, step.seen, step.new) == (len(seen), len(seen) + len(new), len(new))
        seen += new
        assert step.train.tolist() == [i for i, c in enumerate(labels) if c in new]
        assert step.test.tolist() == [i for i, c in enumerate(reversed(labels)) if c in seen]


def test_classes_are_in_the_given_order(make_images: Maker) -> None:
    images = make_images([0, 1, 2, 2])
    assert Stream.create(images, images, 2, order=(2, 0, 1)).train.labels.tolist() == [1, 2, 0, 0]
    for order in ([2, 0], [2, 0, 0], [3, 2, 1]):
        with pytest.raises(BadInput, match="class_order"):
            Stream.create(images, images, 2, order=order)


@pytest.mark.parametrize("labels", [[], [0, 2], [1, 2], [-1, 0], [0, 1, 2]])
def test_labels_with_a_gap_or_of_other_classes_are_refused(make_images: Maker, labels: list[int]) -> None:
    assert count_classes(make_images([0, 1, 1])) == 2
    with pytest.raises(BadInput, match="'toy'"):
        Stream.create(make_images(labels), make_images([0, 1]), 1)


@settings(max_examples=60)
@given(
    count=st.integers(1, 300),
    steps=st.integers(1, 20),
    order=st.sampled_from(["permutation", "list"]),
    seed=st.integers(0, 2**40),
)
def test_ood_subsets_grow_to_the_whole_set(count: int, steps: int, order: str, seed: int) -> None:
    subsets = [ood_subset(count, t, steps, order, seed).tolist() for t in range(1, steps + 1)]
    for t, subset in enumerate(subsets, start=1):
        assert len(subset) == max(1, round(count * t / steps))
    for smaller, larger in pairwise(subsets):
        assert larger[: len(smaller)] == smaller
    assert sorted(subsets[-1]) == list(range(count))


def test_an_ood_subset_depends_only_on_the_seed() -> None:
    assert ood_subset(10, 2, 4, "list", seed=3).tolist() == [0, 1, 2, 3, 4]
    first = ood_subset(100, 1, 4, "permutation", 5)
    assert torch.equal(ood_subset(100, 1, 4, "permutation", 5), first)
    assert not torch.equal(ood_subset(100, 1, 4, "permutation", 6), first)
    with pytest.raises(BadInput):
        ood_subset(0, 1, 4, "list", seed=3)
