"""The metrics of old and new classes, and of classifying and rejecting together, against naive references."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


def big(seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(4000, generator=random) + 1, torch.randn(6000, generator=random)


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
    known = [(n, m.reads) for n, m in metrics().items() if m.standard]
    assert list(found) == [n for n, reads in known if "ranking" in reads and "id_tasks" not in reads]


@pytest.mark.parametrize("recall", [0.0, -1.0, 1.5, math.nan])
def test_an_impossible_recall_is_refused(recall: float) -> None:
    with pytest.raises(BadInput, match="recall"):
        ood_metrics(torch.ones(3), torch.zeros(3), recall=recall)
