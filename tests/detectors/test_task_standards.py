"""Scores by task against a naive reference, where images are few, and where tasks are not known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from opencil import BadInput, Outputs, create_detector
from opencil.detectors.moments import TaskStandards

TASKS = [1, 1, 2, 2, 2, 3]


def samples(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, logits and labels of six classes."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 6
    logits = torch.randn(count, 6, generator=random) + 3 * torch.eye(6)[labels]
    return torch.rand(count, 8, generator=random), logits, labels


def naive(scores: Tensor, logits: Tensor, of_setup: Tensor, labels: Tensor) -> list[float]:
    """Sample by sample, from the definition."""
    found = []
    for score, z in zip(scores.numpy().astype(float), logits.numpy(), strict=True):
        task = TASKS[int(np.argmax(z))]
        own = [float(s) for s, label in zip(of_setup, labels, strict=True) if TASKS[label] == task]
        mean = sum(own) / len(own)
        spread = (sum((s - mean) ** 2 for s in own) / (len(own) - 1)) ** 0.5
        found.append((score - mean) / spread)
    return found


@pytest.mark.parametrize("name", ["energy", "msp", "react", "knn", "nnguide", "vim"])
def test_scores_are_those_of_the_naive_reference(name: str) -> None:
    setup, (features, logits, _) = samples(150, 0), samples(40, 1)
    head = torch.nn.Linear(8, 6)
    own = create_detector(name).fit(*setup, classify=head)
    by_task = create_detector(name, by_task=True).fit(*setup, classify=head, tasks=TASKS)
    given = {"features": features, "logits": logits, "classify": head}
    expected = naive(own.score(**given), logits, own.score(*setup[:2], classify=head), setup[2])
    assert by_task.score(**given).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_by_task_removes_a_bias_of_one_task() -> None:
    """A head that favours the new classes, in every image alike, favours them no more by task."""
    (_, setup, labels), (_, logits, of_test) = samples(60, 0), samples(20, 1)
    setup, logits = setup + 20 * torch.eye(6)[labels], logits + 20 * torch.eye(6)[of_test]
    more = torch.tensor([0.0, 0, 0, 0, 0, 5])
    fair, biased = (
        create_detector("maxlogit", by_task=True)
        .fit(logits=setup + bias, labels=labels, tasks=TASKS)
        .score(logits=logits + bias)
        for bias in (0 * more, more)
    )
    assert torch.allclose(fair, biased, atol=1e-4)
    plain = create_detector("maxlogit")
    assert not torch.allclose(plain.score(logits=logits), plain.score(logits=logits + more))


@pytest.mark.parametrize(
    ("scores", "labels", "mean", "spread"),
    [
        # One image: its score, and the spread within all tasks together, √((1 + 1) / (3 − 2)).
        ([1.0, 3.0, 7.0], [0, 0, 2], [2.0, 7.0], [2**0.5, 2**0.5]),
        # Images that score alike: theirs, and √((1 + 1) / (4 − 2)).
        ([1.0, 3.0, 7.0, 7.0], [0, 0, 2, 2], [2.0, 7.0], [2**0.5, 1.0]),
        # No image: the mean of all.
        ([1.0, 3.0], [0, 1], [2.0, 2.0], [2**0.5, 2**0.5]),
        # One image of each: the spread of all.
        ([1.0, 3.0], [0, 2], [1.0, 3.0], [2**0.5, 2**0.5]),
        # All alike, and a single one.
        ([4.0, 4.0, 4.0], [0, 2, 2], [4.0, 4.0], [1.0, 1.0]),
        ([4.0], [2], [4.0, 4.0], [1.0, 1.0]),
    ],
)
def test_few_images_fall_back(
    scores: list[float], labels: list[int], mean: list[float], spread: list[float]
) -> None:
    found = TaskStandards.of(torch.tensor(scores), torch.tensor(labels), torch.tensor([1, 1, 2]))
    assert found.mean[[0, 2]].tolist() == pytest.approx(mean)
    assert found.spread[[0, 2]].tolist() == pytest.approx(spread)
    assert found.mean[0] == found.mean[1]


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": None},
        {"labels": None},
        {"tasks": TASKS[:5]},
        {"labels": torch.arange(60) % 6 + 1},
        {"labels": torch.arange(60) % 6 - 5},
        {"labels": torch.rand(60)},
        {"labels": torch.rand(60) > 0.5},
        {"tasks": ["a"]},
        {"tasks": [0, 1, 1, 1, 1, 1]},
        {"tasks": [1.5] * 6},
        {"tasks": []},
        {"tasks": [[1] * 6]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_invalid_labels_and_tasks_are_refused(change: dict[str, Any]) -> None:
    _, logits, labels = samples(60, 0)
    with pytest.raises(BadInput):
        create_detector("energy", by_task=True).fit(
            **{"logits": logits, "labels": labels, "tasks": TASKS} | change
        )


def test_scores_by_task_need_a_fit_and_logits() -> None:
    features, logits, labels = samples(60, 0)
    energy, near = create_detector("energy", by_task=True), create_detector("knn", by_task=True)
    with pytest.raises(BadInput):
        energy.score(logits=logits)
    energy.fit(logits=logits.numpy(), labels=labels.numpy(), tasks=np.array(TASKS))
    with pytest.raises(BadInput):
        energy.score(logits=logits[:, :5])
    near.fit(features, logits, labels, tasks=TASKS)
    with pytest.raises(BadInput):
        near.score(features)


def test_the_memory_may_be_others_than_the_set_up() -> None:
    setup, memory, (features, logits, _) = samples(150, 0), samples(60, 2), samples(40, 1)
    told = Outputs(*memory, tasks=torch.tensor(TASKS))
    own = create_detector("react").fit(*setup, classify=torch.nn.Linear(8, 6))
    by_task = create_detector("react", by_task=True)
    by_task.fit(*setup, classify=own._classify, memory=told)
    expected = naive(own.score(features, logits), logits, own.score(*memory[:2]), memory[2])
    assert by_task.score(features, logits).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    completed = create_detector("react", by_task=True).complete(Outputs(*setup, own._classify), told)
    assert torch.equal(completed.score(features, logits), by_task.score(features, logits))


def test_a_set_up_that_fails_leaves_none() -> None:
    """Half of the new one and half of the old would score, by standards of other classes."""
    logits, labels = torch.randn(60, 6), torch.arange(60) % 6
    made = create_detector("energy", by_task=True).fit(logits=logits, labels=labels, tasks=TASKS)
    with pytest.raises(BadInput):
        made.fit(logits=logits[:, :4], labels=labels, tasks=TASKS[:4])
    with pytest.raises(BadInput):
        made.score(logits=logits[:, :4])
    knn = create_detector("knn", neighbours=3, by_task=True)
    given = Outputs(torch.randn(60, 4), logits, labels, tasks=torch.tensor(TASKS))
    with pytest.raises(BadInput):
        knn.fit(given, memory=replace(given, labels=labels + 3))
    assert not knn.learned, "else the next model would be scored by these features"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_whole_numbers_are_the_same_labels(dtype: torch.dtype) -> None:
    """Bytes, as CIFAR's files have them, would choose tasks as a mask does."""
    logits, labels = torch.randn(60, 6, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 6
    expected, found = (
        create_detector("energy", by_task=True)
        .fit(logits=logits, labels=given, tasks=TASKS)
        .score(logits=logits)
        for given in (labels, labels.to(dtype))
    )
    assert torch.equal(found, expected)


def test_scores_that_differ_by_rounding_are_equal() -> None:
    scores, labels = torch.tensor([5.0, 5.0000005, 1.0, 3.0]), torch.tensor([0, 0, 1, 1])
    spread = TaskStandards.of(scores, labels, torch.tensor([1, 2])).spread
    assert float(spread[0]) == pytest.approx(1.0)  # that within all tasks
