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
from opencil.evaluation.ranking import Ranking


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


@pytest.mark.parametrize("seed", range(3))
def test_metrics_equal_scikit_learns_on_many_scores(seed: int) -> None:
    numbers = torch.Generator().manual_seed(seed)
    inside = torch.randn(3000, generator=numbers) + 1
    outside = torch.randn(1700, generator=numbers)
    assert close(ood_metrics(inside, outside), of_scikit_learn(inside, outside))
    inside, outside = ((4 * scores).round() for scores in (inside, outside))  # now with ties
    assert close(ood_metrics(inside, outside), of_scikit_learn(inside, outside))


@many_examples
@given(inside=SCORES, outside=SCORES)
def test_only_the_order_of_scores_matters(inside: Tensor, outside: Tensor) -> None:
    """Doubling is exact; so is replacing each score by its rank."""
    expected = ood_metrics(inside, outside)
    assert ood_metrics(2 * inside, 2 * outside) == expected
    ranks = torch.unique(torch.cat([inside, outside]), return_inverse=True)[1]
    assert ood_metrics(ranks[: len(inside)].double(), ranks[len(inside) :].double()) == expected


@pytest.mark.parametrize("offset", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@many_examples
@given(inside=TIED, outside=TIED)
def test_an_offset_changes_nothing(
    inside: Tensor, outside: Tensor, offset: float, dtype: torch.dtype
) -> None:
    """Eighths around 10,000 are exact in float32; a metric that squashes scores would see them all equal."""
    inside, outside = (scores.to(dtype) / 8 for scores in (inside, outside))
    assert ood_metrics(inside + offset, outside + offset) == ood_metrics(inside, outside)


@many_examples
@given(inside=SCORES, outside=SCORES)
def test_the_other_sign_gives_the_other_side_of_the_curve(inside: Tensor, outside: Tensor) -> None:
    assert ood_metrics(-inside, -outside).auc == pytest.approx(
        1 - ood_metrics(inside, outside).auc, abs=1e-12
    )


@many_examples
@given(inside=SCORES, outside=SCORES)
def test_exchanged_roles_exchange_the_conventions(inside: Tensor, outside: Tensor) -> None:
    metrics, exchanged = ood_metrics(inside, outside), ood_metrics(-outside, -inside)
    assert close(
        exchanged,
        OODMetrics(
            auc=metrics.auc,
            fpr=metrics.fpr_ood_positive,
            ap=metrics.ap_id_positive,
            fpr_ood_positive=metrics.fpr,
            ap_id_positive=metrics.ap,
        ),
    )


@many_examples
@given(inside=SCORES, outside=SCORES, seed=st.integers(0, 100))
def test_the_order_of_samples_does_not_matter(inside: Tensor, outside: Tensor, seed: int) -> None:
    numbers = torch.Generator().manual_seed(seed)
    shuffled = [s[torch.randperm(len(s), generator=numbers)] for s in (inside, outside)]
    assert ood_metrics(*shuffled) == ood_metrics(inside, outside)


def test_perfect_and_opposite_scores() -> None:
    high, low = torch.tensor([3.0, 4.0, 5.0]), torch.tensor([0.0, 1.0])
    assert ood_metrics(high, low) == OODMetrics(1.0, 0.0, 1.0, 0.0, 1.0)
    opposite = ood_metrics(low, high)
    assert (opposite.auc, opposite.fpr, opposite.fpr_ood_positive) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("value", [0.0, -3.5, 1e4])
def test_constant_scores_tell_nothing(value: float) -> None:
    metrics = ood_metrics(torch.full((3,), value), torch.full((7,), value))
    assert close(metrics, OODMetrics(auc=0.5, fpr=1.0, ap=0.7, fpr_ood_positive=1.0, ap_id_positive=0.3))


@pytest.mark.parametrize(
    ("outside", "fpr"),
    [(1.5, 0.0), (2.0, 1.0), (2.5, 1.0), (0.0, 0.0)],
    ids=["below the threshold", "at it", "above it", "below all"],
)
def test_of_20_samples_19_are_enough(outside: float, fpr: float) -> None:
    """ID scores 1 … 20: the threshold that accepts 95 % is 2."""
    inside = torch.arange(1.0, 21.0)
    assert ood_metrics(inside, torch.tensor([outside])).fpr == fpr
    assert ood_metrics(-torch.tensor([outside]), -inside).fpr_ood_positive == fpr


@pytest.mark.parametrize("count", [1, 19])
def test_of_fewer_than_20_samples_all_are_needed(count: int) -> None:
    inside = torch.arange(1.0, count + 1.0)
    assert ood_metrics(inside, torch.tensor([0.5])).fpr == 0.0
    assert ood_metrics(inside, torch.tensor([1.0])).fpr == 1.0


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
    with pytest.raises(BadInput, match="ID scores are a list: a tensor or a numpy array is needed"):
        ood_metrics([1.0], outside)  # type: ignore[arg-type]


def test_the_share_can_be_chosen() -> None:
    inside, outside = torch.arange(10.0), torch.tensor([4.5, 5.5, 7.5])
    assert ood_metrics(inside, outside, recall=0.5).fpr == pytest.approx(2 / 3)
    assert ood_metrics(inside, outside, recall=0.2).fpr == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_metrics_are_python_floats_of_any_floating_type(dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(0)
    inside = torch.randint(0, 9, (50,), generator=numbers).to(dtype)
    outside = torch.randint(-4, 5, (70,), generator=numbers).to(dtype)
    metrics = ood_metrics(inside, outside)
    assert all(type(value) is float for value in asdict(metrics).values())
    assert close(metrics, of_scikit_learn(inside.double(), outside.double()))


def test_float64_scores_are_not_rounded() -> None:
    inside = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    outside = torch.tensor([1.0], dtype=torch.float64)
    assert ood_metrics(inside, outside).auc == 1.0
    assert ood_metrics(inside, outside.float()).auc == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", [3.0, 0.5, 0.0, -0.5, -3.0])
def test_neighbouring_numbers_are_told_apart(score: float, dtype: torch.dtype) -> None:
    outside = torch.tensor([score], dtype=dtype)
    above, below = (outside.nextafter(torch.full_like(outside, end)) for end in (math.inf, -math.inf))
    assert [ood_metrics(inside, outside).auc for inside in (above, outside, below)] == [1.0, 0.5, 0.0]


def test_large_counts_do_not_overflow() -> None:
    """150,000 × 150,000 pairs are more than 32 bits hold."""
    inside = torch.arange(150_000, dtype=torch.float64)
    assert ood_metrics(inside + 0.5, inside).auc == pytest.approx(0.5 + 0.5 / 150_000, abs=1e-12)


def test_scores_are_not_changed() -> None:
    inside, outside = torch.tensor([2.0, 1.0]), torch.tensor([0.0, 3.0])
    ood_metrics(inside, outside)
    assert (inside.tolist(), outside.tolist()) == ([2.0, 1.0], [0.0, 3.0])


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (torch.empty(0), r"have shape \[0\]: a vector of at least one score is needed"),
        (torch.zeros(2, 1), r"have shape \[2, 1\]: a vector"),
        (torch.tensor(1.0), r"have shape \[\]: a vector"),
        (torch.tensor([True, False]), "are bool: numbers that put samples in an order are needed"),
    ],
    ids=["empty", "matrix", "number", "truths"],
)
def test_scores_that_are_no_vector_of_numbers_are_refused(bad: Tensor, sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^ID scores {sentence}"):
        ood_metrics(bad, torch.ones(2))
    with pytest.raises(BadInput, match=f"^OOD scores {sentence}"):
        ood_metrics(torch.ones(2), bad)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    bad = torch.tensor([0.0, value, value])
    with pytest.raises(BadInput, match=f"^ID score 1 is {value}: metrics need finite scores"):
        ood_metrics(bad, torch.ones(2))
    with pytest.raises(BadInput, match=f"^OOD score 1 is {value}"):
        ood_metrics(torch.ones(2), bad)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_whole_numbers_that_float64_rounds_are_refused(value: int) -> None:
    for one, other, name in (([value], [0], "ID"), ([0], [0, value], "OOD")):
        with pytest.raises(BadInput, match=rf"^{name} scores are whole numbers beyond 2\^53"):
            ood_metrics(torch.tensor(one), torch.tensor(other))
    end = value - value // abs(value)
    assert ood_metrics(torch.tensor([end]), torch.tensor([end])).auc == 0.5


class Elsewhere(Tensor):
    """A tensor that says it lies on a GPU."""

    device = torch.device("cuda", 0)  # type: ignore[assignment]


def test_numbers_on_two_devices_are_refused() -> None:
    here, there = torch.ones(3), torch.zeros(3).as_subclass(Elsewhere)
    with pytest.raises(BadInput, match=r"^ID scores on cpu, OOD scores on cuda:0: one device is needed"):
        ood_metrics(here, there)
    with pytest.raises(BadInput, match=r"^samples are chosen on cuda:0, they are sorted on cpu"):
        Ranking(here, here).accepted(there.bool())
    with pytest.raises(BadInput, match=r"^predictions on cpu, labels on cuda:0"):
        accuracy(here, there)


@pytest.mark.parametrize(
    ("predicted", "labels", "share"),
    [([1, 0], [1, 0], 1.0), ([1, 0], [0, 1], 0.0), ([1, 1, 0], [1, 2, 0], 2 / 3)],
)
def test_accuracy(predicted: list[int], labels: list[int], share: float) -> None:
    found = accuracy(torch.tensor(predicted), torch.tensor(labels))
    assert found == pytest.approx(share, rel=0, abs=1e-15)


@pytest.mark.parametrize("shape", [(0,), (2,), (1, 3)])
def test_accuracy_needs_a_prediction_for_each_label(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        BadInput, match="give no accuracy: two vectors of the same length, at least 1, are needed"
    ):
        accuracy(torch.zeros(shape), torch.zeros(3 if shape != (0,) else 0))
    with pytest.raises(BadInput, match="predictions are a list: a tensor or a numpy array is needed"):
        accuracy([1], [1])  # type: ignore[arg-type]


ACCURACIES = torch.tensor([[0.9, 0.0, 0.0], [0.95, 0.8, 0.0], [0.5, 0.7, 0.6]])  # a_tj after step t on task j


def test_forgetting_is_the_best_earlier_accuracy_minus_the_last() -> None:
    assert forgetting(ACCURACIES) == pytest.approx(((0.95 - 0.5) + (0.8 - 0.7)) / 2)


def test_backward_transfer_is_the_last_accuracy_minus_the_first() -> None:
    assert backward_transfer(ACCURACIES) == pytest.approx(((0.5 - 0.9) + (0.7 - 0.8)) / 2)


def test_two_steps_are_enough_to_forget() -> None:
    assert forgetting(ACCURACIES[:2, :2]) == pytest.approx(0.9 - 0.95)
    assert backward_transfer(ACCURACIES[:2, :2]) == pytest.approx(0.95 - 0.9)


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
def test_tasks_that_are_not_learned_yet_do_not_count(metric: Any) -> None:
    marked = ACCURACIES.clone()
    marked[0, 1:] = marked[1, 2] = 7.0
    assert metric(marked) == metric(ACCURACIES)


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (2,)])
def test_one_step_forgets_nothing_to_speak_of(metric: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="a square of at least 2 steps is needed"):
        metric(torch.zeros(shape))
