"""The checks of the metrics' contract: ours pass them, and each check finds metrics that break it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opencil
from opencil.testing import METRIC_CHECKS, check_metric


@pytest.mark.parametrize("name", opencil.list_metrics())
def test_ours_keep_the_contract(name: str) -> None:
    check_metric(name)


def look_at_first(ood_scores: Tensor) -> Tensor:
    return ood_scores[0]


def change_logits(id_logits: Tensor) -> Tensor:
    return id_logits.add_(1).mean()


WRONG: dict[str, tuple[str, Callable[..., Any], type[Exception]]] = {
    "no value": ("value", lambda id_scores: None, AssertionError),
    "inf": ("value", lambda id_scores: torch.inf, opencil.BadInput),
    "out of bounds": ("few", lambda id_scores: id_scores[0] - id_scores[1], IndexError),
    "order": ("order", look_at_first, AssertionError),
    "second time": ("inputs_unchanged", change_logits, AssertionError),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_check_finds_a_metric_that_breaks_it(key: str) -> None:
    check, function, error = WRONG[key]
    opencil.register_metric("wrong", label="Wrong", definition="wrong.")(function)
    with pytest.raises(error, match=key):
        METRIC_CHECKS[check]("wrong")
    with pytest.raises((AssertionError, IndexError)):
        check_metric("wrong")
