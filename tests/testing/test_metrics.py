"""The checks of the metrics' contract: ours pass them, and each check catches what it is for."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import opencil
from opencil.testing import METRIC_CHECKS, check_metric


@pytest.mark.parametrize("name", opencil.list_metrics())
def test_ours_keep_the_contract(name: str) -> None:
    check_metric(name)


def nothing(id_scores: Tensor) -> None:
    return None


def infinite(id_scores: Tensor) -> float:
    return float("inf")


def first_two(id_scores: Tensor) -> Tensor:
    return id_scores[0] - id_scores[1]


def first(ood_scores: Tensor) -> Tensor:
    return ood_scores[0]


def growing(id_logits: Tensor) -> Tensor:
    return id_logits.add_(1).mean()


@pytest.mark.parametrize(
    ("function", "check", "error", "sentence"),
    [
        (nothing, "value", AssertionError, "has no value on outputs that have all it reads"),
        (infinite, "value", opencil.BadInput, "gives inf: a finite number is needed"),
        (first_two, "few", IndexError, "out of bounds"),
        (first, "order", AssertionError, "another value when the same images come in another order"),
        (growing, "inputs_unchanged", AssertionError, "another value the second time"),
    ],
)
def test_a_check_catches_what_it_is_for(
    function: Callable[..., Any], check: str, error: type[Exception], sentence: str
) -> None:
    opencil.register_metric("wrong", label="Wrong", definition="wrong.")(function)
    with pytest.raises(error, match=sentence):
        METRIC_CHECKS[check]("wrong")
    with pytest.raises((AssertionError, IndexError)):
        check_metric("wrong")
