"""The metrics of old and new classes, and of classifying and rejecting together, against naive references."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from opencil import BadInput, joint_metrics, ood_metrics
from opencil.evaluation.metric import metrics

#: Few distinct values, so that ties are the rule; float32, as detectors give them.
SCORES = st.lists(st.integers(-3, 3).map(float) | st.floats(-9, 9, width=32), min_size=1, max_size=30)


def oscr(inside: list[float], outside: list[float], correct: list[bool]) -> float:
    """The trapezoids under the curve, threshold after threshold."""
    points = [(0.0, 0.0)]
    for threshold in sorted({*inside, *outside}, reverse=True):
        right = sum(s >= threshold and c for s, c in zip(inside, correct, strict=True)) / len(inside)
        points.append((sum(s >= threshold for s in outside) / len(outside), right))
    return sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(points))


def threshold_of_fpr(inside: list[float]) -> float:
    """The highest that accepts 95 % of the samples."""
    return max(t for t in inside if sum(s >= t for s in inside) / len(inside) >= 0.95)


@given(inside=SCORES, outside=SCORES, data=st.data())
def test_oscr_and_accuracy_with_rejection(
    inside: list[float], outside: list[float], data: st.DataObject
) -> None:
    correct = data.draw(st.lists(st.booleans(), min_size=len(inside), max_size=len(inside)))
    found = joint_metrics(torch.tensor(inside), torch.tensor(outside), correct=torch.tensor(correct))
    assert found["oscr"] == pytest.approx(oscr(inside, outside, correct), abs=1e-12)
    threshold = threshold_of_fpr(inside)
    accepted = sum(s >= threshold and c for s, c in zip(inside, correct, strict=True))
    rejected = sum(s < threshold for s in outside)
    expected = (accepted + rejected) / (len(inside) + len(outside))
    assert found["accuracy_with_rejection"] == pytest.approx(expected, abs=1e-12)


@given(inside=SCORES, outside=SCORES, data=st.data())
def test_a_subset_is_measured_as_if_it_were_alone(
    inside: list[float], outside: list[float], data: st.DataObject
) -> None:
    new = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(inside), max_size=len(inside))))
    found = joint_metrics(torch.tensor(inside), torch.tensor(outside), subsets={"old": ~new, "new": new})
    for name, chosen in (("old", ~new), ("new", new)):
        if not chosen.any():
            assert f"auc_{name}" not in found
            continue
        alone = ood_metrics(torch.tensor(inside)[chosen], torch.tensor(outside))
        assert found[f"auc_{name}"] == pytest.approx(alone.auc, abs=1e-12)
        assert found[f"fpr_{name}"] == pytest.approx(alone.fpr, abs=1e-12)


@given(inside=SCORES, outside=SCORES)
def test_all_correct_makes_oscr_the_auc(inside: list[float], outside: list[float]) -> None:
    correct = torch.ones(len(inside), dtype=torch.bool)
    found = joint_metrics(torch.tensor(inside), torch.tensor(outside), correct=correct)
    assert found["oscr"] == pytest.approx(found["auc"], abs=1e-12)


@pytest.mark.parametrize("count", [20, 40, 60, 100, 1000])
def test_exactly_95_percent_are_enough(count: int) -> None:
    """An OOD sample stands below each ID sample; 95 % of ID are accepted with 95 % of OOD less one."""
    inside = torch.arange(count, 0, -1).float()
    found = joint_metrics(inside, inside - 0.5, subsets={"all": torch.ones(count, dtype=torch.bool)})
    expected = (round(0.95 * count) - 1) / count
    assert found["fpr"] == found["fpr_all"] == pytest.approx(expected, abs=1e-12)


def big(seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(4000, generator=random) + 1, torch.randn(6000, generator=random)


def test_subsets_agree_with_scikit_learn_on_many_scores() -> None:
    inside, outside = big(0)
    new = torch.arange(4000) % 4 == 0
    found = joint_metrics(inside, outside, subsets={"new": new})
    scores = np.r_[inside[new].numpy(), outside.numpy()]
    assert found["auc_new"] == pytest.approx(
        roc_auc_score(np.r_[np.ones(1000), np.zeros(6000)], scores), abs=1e-9
    )


def test_the_order_of_integers_is_that_of_the_scores() -> None:
    """Scores of every sign and size, both zeros, in both precisions: AUC by counting pairs."""
    values = [3e38, 2.5, 1e-30, 1e-40, 0.0, -0.0, -1e-40, -1.5, -3e38]
    for dtype in (torch.float32, torch.float64):
        for split in range(1, 9):
            inside = torch.tensor(values[:split], dtype=dtype)
            outside = torch.tensor([*values[split:], 2.5], dtype=dtype)
            above = (inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside).double()
            assert ood_metrics(inside, outside).auc == pytest.approx(float(above.mean()), abs=1e-12)


def test_every_metric_is_defined() -> None:
    inside, outside = big(1)
    new = torch.arange(4000) % 2 == 0
    found = joint_metrics(inside, outside, correct=new, subsets={"old": ~new, "new": new})
    of_detection = [n for n, metric in metrics().items() if "ranking" in metric.reads and metric.standard]
    assert list(found) == of_detection


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_share_may_be_a_number_of_numpy(kind: Any) -> None:
    inside, share = torch.arange(100_000.0), kind(0.95)
    found = ood_metrics(inside, inside - 0.5, recall=share)
    assert found == ood_metrics(inside, inside - 0.5, recall=float(share))


@pytest.mark.parametrize("recall", [0.0, -1.0, 1.5, math.nan])
def test_an_impossible_recall_is_refused(recall: float) -> None:
    with pytest.raises(BadInput, match="recall"):
        ood_metrics(torch.ones(3), torch.zeros(3), recall=recall)


def test_subsets_without_names_are_refused() -> None:
    with pytest.raises(BadInput, match="subsets are a list: a mapping from names to bool"):
        joint_metrics(torch.rand(3), torch.rand(2), subsets=[torch.ones(3) > 0])  # type: ignore[arg-type]
