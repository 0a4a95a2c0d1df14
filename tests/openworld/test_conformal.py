"""Thresholds and p-values against their definition, and what they promise."""

from typing import get_args

import pytest
import torch
from hypothesis import given, strategies
from torch import Tensor

from opencil.openworld.conformal import Calibration, Per, spread

TASKS = [1, 1, 2, 2]


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores with ties, and predicted classes."""
    numbers = torch.Generator().manual_seed(seed)
    scores = (10 * torch.randn(count, generator=numbers)).round() / 10
    return scores, torch.randint(0, 4, (count,), generator=numbers)


def group(label: int, per: str) -> int:
    return {"all": 0, "class": label, "task": TASKS[label]}[per]


@pytest.mark.parametrize("per", get_args(Per))
@given(strategies.integers(1, 60), strategies.sampled_from([0.01, 0.05, 0.1, 0.25, 0.5]))
def test_p_values_and_thresholds_are_those_of_the_definition(per: Per, count: int, reject: float) -> None:
    calibration, of = draw(count, count)
    scores, predicted = draw(30, count + 1)
    found = Calibration.of(calibration, of, TASKS, per)
    p_values, thresholds = found.p_values(scores, predicted), found.thresholds(reject)
    for score, label, p in zip(scores.tolist(), predicted.tolist(), p_values.tolist(), strict=True):
        same = [
            s
            for s, o in zip(calibration.tolist(), of.tolist(), strict=True)
            if group(o, per) == group(label, per)
        ]
        expected = (1 + sum(other <= score for other in same)) / (len(same) + 1)
        assert p == pytest.approx(expected)
        assert (score < float(thresholds[label])) == (expected <= reject + 1e-9)


def test_at_most_the_share_is_rejected_on_average_and_the_spread_is_the_stated_one() -> None:
    """Over 2,000 calibrations of 80 uniform scores, whose rejected share is the threshold itself."""
    numbers = torch.Generator().manual_seed(0)
    shares = []
    for scores in torch.rand(2000, 80, generator=numbers):
        found = Calibration.of(scores, torch.zeros(80, dtype=torch.int64), [1], "all")
        shares.append(float(found.thresholds(0.05)[0]))
    error = float(torch.tensor(shares).std()) / len(shares) ** 0.5
    mean = sum(shares) / len(shares)
    assert 4 / 81 - 3 * error < mean < 0.05 + 3 * error
    low, high = torch.tensor(shares).quantile(torch.tensor([0.05, 0.95])).tolist()
    assert (low, high) == pytest.approx(spread(0.05, 80), abs=0.006)


def test_too_few_images_reject_nothing_and_are_named() -> None:
    scores, of = torch.arange(18.0), torch.zeros(18, dtype=torch.int64)
    found = Calibration.of(scores, of, [1], "all")
    assert found.thresholds(0.05).tolist() == [-torch.inf]
    assert not found.promise(0.05).holds
    assert "needs 19 held-out images, and there are 18" in found.promise(0.05).text
    more = Calibration.of(torch.arange(19.0), torch.zeros(19, dtype=torch.int64), [1], "all")
    assert more.thresholds(0.05).tolist() == [0.0]
    assert more.promise(0.05).holds
    several = Calibration.of(torch.arange(19.0), torch.zeros(19, dtype=torch.int64), TASKS, "class")
    assert "3 of 4 groups" in several.promise(0.05).text
