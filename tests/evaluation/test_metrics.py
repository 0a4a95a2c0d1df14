"""OOD metrics against scikit-learn, and by their properties."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from opencil.errors import BadInput
from opencil.evaluation.metrics import (
    OODMetrics,
    accuracy,
    backward_transfer,
    forgetting,
    joint_metrics,
    ood_metrics,
)


def vectors(values: st.SearchStrategy[float]) -> st.SearchStrategy[Tensor]:
    return st.lists(values, min_size=1, max_size=60).map(lambda v: torch.tensor(v, dtype=torch.float64))


TIED = vectors(st.integers(-4, 4).map(float))
FLOATS = vectors(st.floats(-100, 100, width=32, allow_subnormal=False))
SCORES = TIED | FLOATS
many_examples = settings(max_examples=150)


def fpr_of(positive: Tensor, negative: Tensor) -> float:
    """scikit-learn's false-positive rate where its true-positive rate first reaches 95 %."""
    labels = np.r_[np.ones(len(positive)), np.zeros(len(negative))]
    fpr, tpr, _ = roc_curve(labels, np.r_[positive, negative], drop_intermediate=False)
    return float(fpr[np.argmax(tpr >= 0.95)])


def of_scikit_learn(inside: Tensor, outside: Tensor) -> OODMetrics:
    is_id = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    scores = np.r_[inside, outside]
    return OODMetrics(
        auc=float(roc_auc_score(is_id, scores)),
        fpr=fpr_of(inside, outside),
        ap=float(average_precision_score(1 - is_id, -scores)),
        fpr_ood_positive=fpr_of(-outside, -inside),
        ap_id_positive=float(average_precision_score(is_id, scores)),
    )


def close(one: OODMetrics, other: OODMetrics) -> bool:
    return asdict(one) == pytest.approx(asdict(other), rel=0, abs=1e-12)


@many_examples
@given(inside=SCORES, outside=SCORES)
def test_metrics_equal_scikit_learns(inside: Tensor, outside: Tensor) -> None:
    assert close(ood_metrics(inside, outside), of_scikit_learn(inside, outside))


@many_examples
@given(inside=SCORES, outside=SCORES)
def test_only_the_order_of_scores_matters(inside: Tensor, outside: Tensor) -> None:
    """Doubling is exact; so is replacing each score by its rank."""
    expected = ood_metrics(inside, outside)
    assert ood_metrics(2 * inside, 2 * outside) == expected
    ranks = torch.unique(torch.cat([inside, outside]), return_inverse=True)[1]
    assert ood_metrics(ranks[: len(inside)].double(), ranks[len(inside) :].double()) == expected


@pytest.mark.parametrize("count", [20, 40, 60, 100, 1000, 10_000])
def test_the_share_of_95_percent_is_exact(count: int) -> None:
    """The threshold leaves out exactly 5 % of the ID samples, never one fewer for a rounding error."""
    inside = torch.arange(count, dtype=torch.float64)
    left_out = count // 20
    outside = torch.tensor([left_out - 0.5, left_out - 0.5, left_out + 0.5])
    assert ood_metrics(inside, outside).fpr == pytest.approx(1 / 3, abs=1e-15)


def test_numpy_arrays_give_what_tensors_give() -> None:
    numbers = np.random.default_rng(0)
    inside, outside = numbers.normal(1, 1, 300), numbers.normal(size=200).astype("f4").astype("f8")
    tensors = torch.from_numpy(inside), torch.from_numpy(outside)
    assert ood_metrics(inside, outside) == ood_metrics(*tensors)
    inside.flags.writeable = False
    correct = numbers.random(300) > 0.3
    some = {"some": numbers.random(300) > 0.5}
    expected = joint_metrics(
        *tensors,
        correct=torch.from_numpy(correct),
        subsets={name: torch.from_numpy(chosen) for name, chosen in some.items()},
    )
    assert joint_metrics(inside, outside, correct=correct, subsets=some) == expected
    assert accuracy(np.array([1, 2, 3]), np.array([1, 0, 3])) == 2 / 3
    with pytest.raises(BadInput, match="ID scores"):
        ood_metrics([1.0], outside)  # type: ignore[arg-type]


def test_the_share_can_be_chosen() -> None:
    inside, outside = torch.arange(10.0), torch.tensor([4.5, 5.5, 7.5])
    assert ood_metrics(inside, outside, recall=0.5).fpr == pytest.approx(2 / 3)
    assert ood_metrics(inside, outside, recall=0.2).fpr == 0.0
    for recall in (0, 1.1, math.nan, None, "0.5"):
        with pytest.raises(BadInput, match="recall"):
            ood_metrics(inside, outside, recall=recall)  # type: ignore[arg-type]


def test_reversed_arrays_of_any_length_are_read_and_masked_ones_refused() -> None:
    for count in (1, 2, 3):
        inside, outside = np.arange(count)[::-1] + 0.5, np.arange(count)[::-1]
        assert ood_metrics(inside, outside).auc == (count + 1) / (2 * count)
    with pytest.raises(BadInput, match="masked"):
        ood_metrics(np.ma.masked_array([1.0, 2.0], mask=[True, False]), np.zeros(1))


def test_large_counts_do_not_overflow() -> None:
    """150,000 × 150,000 pairs are more than 32 bits hold."""
    inside = torch.arange(150_000, dtype=torch.float64)
    assert ood_metrics(inside + 0.5, inside).auc == pytest.approx(0.5 + 0.5 / 150_000, abs=1e-12)


@pytest.mark.parametrize(
    "bad",
    [
        torch.empty(0),
        torch.zeros(2, 1),
        torch.tensor(1.0),
        torch.tensor([True, False]),
        torch.tensor([0.0, math.nan]),
        torch.tensor([0.0, -math.inf]),
        torch.zeros(2, device="meta"),
    ],
    ids=str,
)
def test_scores_that_are_no_vector_of_finite_numbers_are_refused(bad: Tensor) -> None:
    for name, scores in (("ID", (bad, torch.ones(2))), ("OOD", (torch.ones(2), bad))):
        with pytest.raises(BadInput, match=f"^{name} score"):
            ood_metrics(*scores)


@pytest.mark.parametrize(
    ("predicted", "labels", "share"),
    [([1, 0], [1, 0], 1.0), ([1, 0], [0, 1], 0.0), ([1, 1, 0], [1, 2, 0], 2 / 3)],
)
def test_accuracy(predicted: list[int], labels: list[int], share: float) -> None:
    found = accuracy(torch.tensor(predicted), torch.tensor(labels))
    assert found == pytest.approx(share, rel=0, abs=1e-15)


def test_predictions_of_another_type_are_compared_exactly() -> None:
    assert accuracy(np.array([2048, 2049]), np.array([2048, 2048], np.float16)) == 0.5
    assert accuracy(torch.tensor([2**24 + 1]), torch.tensor([2.0**24])) == 0


@pytest.mark.parametrize("shape", [(0,), (2,), (1, 3)])
def test_accuracy_needs_a_prediction_for_each_label(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="labels"):
        accuracy(torch.zeros(shape), torch.zeros(3 if shape != (0,) else 0))


ACCURACIES = torch.tensor([[0.9, 0.0, 0.0], [0.95, 0.8, 0.0], [0.5, 0.7, 0.6]])  # a_tj after step t on task j


def test_forgetting_is_the_best_earlier_accuracy_minus_the_last() -> None:
    assert forgetting(ACCURACIES) == pytest.approx(((0.95 - 0.5) + (0.8 - 0.7)) / 2)


def test_backward_transfer_is_the_last_accuracy_minus_the_first() -> None:
    assert backward_transfer(ACCURACIES) == pytest.approx(((0.5 - 0.9) + (0.7 - 0.8)) / 2)


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
def test_tasks_that_are_not_learned_yet_do_not_count(metric: Any) -> None:
    marked = ACCURACIES.clone()
    marked[0, 1:] = marked[1, 2] = 7.0
    assert metric(marked) == metric(ACCURACIES)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (torch.tensor([2**62 + 1]), torch.tensor([2**62])),
        (torch.tensor([257]), torch.tensor([256.0], dtype=torch.bfloat16)),
        (torch.tensor([2**24 + 1], dtype=torch.int32), torch.tensor([2.0**24])),
        (torch.tensor([1.001], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float16)),
        (torch.tensor([1.0009765625], dtype=torch.float16), torch.tensor([1.0], dtype=torch.bfloat16)),
        (np.array([3], np.uint8), np.array([-(2**63)])),
    ],
)
def test_scores_of_any_types_are_compared_exactly(inside: Any, outside: Any) -> None:
    assert ood_metrics(inside, outside).auc == 1
    assert ood_metrics(outside, inside).auc == 0


@pytest.mark.parametrize("outside", [np.array([2**53 + 1]), np.array([2**63], np.uint64)])
def test_scores_that_cannot_be_compared_exactly_are_refused(outside: Any) -> None:
    with pytest.raises(BadInput, match=r"2\^"):
        ood_metrics(torch.tensor([2.0**53]), outside)
