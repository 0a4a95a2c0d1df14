"""Scores of logits alone against references that go sample by sample, in float64."""

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opencil.registry import DETECTORS

Row = list[float]


def naive_msp(z: Row) -> float:
    exponentials = [math.exp(v - max(z)) for v in z]
    return max(e / math.fsum(exponentials) for e in exponentials)


def naive_maxlogit(z: Row) -> float:
    return max(z)


def naive_energy(z: Row, temperature: float = 1.0) -> float:
    top = max(z)
    return top + temperature * math.log(math.fsum(math.exp((v - top) / temperature) for v in z))


def naive_entropy(z: Row) -> float:
    total = naive_energy(z)
    return math.fsum(math.exp(v - total) * (v - total) for v in z)


def naive_logitgap(z: Row) -> float:
    largest, *others = sorted(z, reverse=True)
    count = min(math.ceil(len(z) / 5), 88, len(others))
    return largest - math.fsum(others[:count]) / count if count else 0.0


REFERENCES = {
    "msp": naive_msp,
    "maxlogit": naive_maxlogit,
    "energy": naive_energy,
    "entropy": naive_entropy,
    "logitgap": naive_logitgap,
}


def scored(name: str, rows: list[Row], **values: Any) -> list[float]:
    return DETECTORS.create(name, **values).score(logits=torch.tensor(rows, dtype=torch.float32)).tolist()


def matrices(limit: float) -> st.SearchStrategy[list[Row]]:
    value = st.floats(-limit, limit, width=32)
    return st.integers(1, 13).flatmap(
        lambda classes: st.lists(st.lists(value, min_size=classes, max_size=classes), min_size=1, max_size=5)
    )


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=60)
@example(rows=[[0.0, 0.0, 0.0, 4441.0, 4489.0, 4488.40478515625]])
@given(rows=matrices(50) | matrices(1e4))
def test_scores_equal_the_naive_reference(name: str, rows: list[Row]) -> None:
    expected = [REFERENCES[name](row) for row in rows]
    assert scored(name, rows) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@settings(max_examples=60)
@given(rows=matrices(50), temperature=st.floats(0.1, 1000))
def test_energy_has_a_temperature(rows: list[Row], temperature: float) -> None:
    expected = [naive_energy(row, temperature) for row in rows]
    assert scored("energy", rows, temperature=temperature) == pytest.approx(expected, rel=1e-5, abs=1e-3)
