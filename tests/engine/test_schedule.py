"""Learning rates over epochs."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.validation import build


def test_steps_divide_at_the_milestones() -> None:
    schedule = Schedule(epochs=6, lr=0.1, milestones=(2, 5))
    assert [schedule.lr_at(e) for e in range(6)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.001])
    assert Schedule(epochs=3, lr=0.5).lr_at(2) == 0.5
    assert Schedule(epochs=4, lr=8.0, milestones=(1, 2), factor=0.5).lr_at(3) == 2.0


def test_cosine_falls_towards_0() -> None:
    schedule = Schedule(epochs=4, lr=0.2, decay="cosine")
    half = math.sqrt(0.5)
    expected = [0.2, 0.1 * (1 + half), 0.1, 0.1 * (1 - half)]
    assert [schedule.lr_at(e) for e in range(4)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("epochs", "milestones"),
    [(200, (60, 120, 170)), (100, (30, 60, 85)), (20, (6, 12, 17)), (2, (1,)), (1, ())],
)
def test_lasting_moves_the_milestones_along(epochs: int, milestones: tuple[int, ...]) -> None:
    schedule = Schedule(epochs=200, lr=0.3, milestones=(60, 120, 170), momentum=0.8, weight_decay=1e-3)
    assert schedule.lasting(epochs) == Schedule(
        epochs=epochs, lr=0.3, milestones=milestones, momentum=0.8, weight_decay=1e-3
    )


def test_every_multiplies_again_and_again() -> None:
    schedule = Schedule(epochs=7, lr=8.0, decay="every", every=3, factor=0.5)
    assert [schedule.lr_at(e) for e in range(7)] == [8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 2.0]


def test_constant_stays() -> None:
    schedule = Schedule(epochs=3, lr=0.3, decay="constant", milestones=(1,))
    assert [schedule.lr_at(e) for e in range(3)] == [0.3] * 3


def test_warm_up_scales_the_rate_of_any_decay() -> None:
    schedule = Schedule(epochs=6, lr=0.4, milestones=(2, 5), factor=0.5, warmup=3)
    assert [schedule.lr_at(e) for e in range(6)] == pytest.approx([0.1, 0.2, 0.15, 0.2, 0.2, 0.1])
    cosine = Schedule(epochs=4, lr=0.4, decay="cosine", warmup=1)
    assert cosine.lr_at(0) == 0.2
    assert [cosine.lr_at(e) for e in (1, 2, 3)] == [
        Schedule(epochs=4, lr=0.4, decay="cosine").lr_at(e) for e in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("epochs", "every", "warmup"), [(200, 45, 10), (400, 90, 20), (20, 4, 1), (2, 1, 0), (1, 1, 0)]
)
def test_lasting_scales_every_and_the_warm_up(epochs: int, every: int, warmup: int) -> None:
    schedule = Schedule(epochs=200, decay="every", every=45, warmup=10, optimiser="adam")
    expected = Schedule(epochs=epochs, decay="every", every=every, warmup=warmup, optimiser="adam")
    assert schedule.lasting(epochs) == expected


def test_a_warm_up_to_the_last_epoch_is_shortened_with_it() -> None:
    assert Schedule(epochs=10, warmup=9).lasting(1) == Schedule(epochs=1)


@settings(max_examples=60)
@given(
    milestones=st.sets(st.integers(1, 199), max_size=5),
    epochs=st.integers(1, 500),
)
def test_lasting_is_always_an_allowed_schedule(milestones: set[int], epochs: int) -> None:
    moved = Schedule(epochs=200, milestones=tuple(sorted(milestones))).lasting(epochs)
    assert moved.epochs == epochs
    assert len(moved.milestones) <= len(milestones)
    assert all(any(abs(m - old * epochs / 200) <= 0.5 for old in milestones) for m in moved.milestones)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epochs": 10, "milestones": [5, 10]}, r"milestones = \[5, 10\] .* below epochs = 10"),
        ({"epochs": 10, "milestones": [5, 3]}, r"milestones = \[5, 3\] .* should increase"),
        ({"epochs": 10, "milestones": [3, 3]}, r"milestones = \[3, 3\] .* should increase"),
        ({"epochs": 0}, "epochs = 0 is not allowed"),
        ({"epochs": 10, "lr": 0.0}, "lr = 0.0 is not allowed"),
        ({"epochs": 10, "momentum": 1.5}, "momentum = 1.5 is not allowed"),
        ({"epochs": 10, "decay": "linear"}, "decay = \"linear\" is not allowed: .*'steps', 'cosine'"),
        ({"epochs": 10, "optimiser": "sdg"}, "optimiser = \"sdg\" is not allowed: .*'adam' or 'adamw'"),
        ({"epochs": 10, "warmup": 10}, "warmup = 10 is not allowed: it should be below epochs = 10"),
        ({"epochs": 10, "decay": "every"}, "every = None is not allowed with decay = 'every'"),
        ({"epochs": 10, "every": 3}, "every = 3 is not allowed with decay = 'steps'"),
        (
            {"epochs": 10, "optimiser": "adam", "momentum": 0.5},
            r"momentum = 0.5 is not allowed with optimiser = 'adam', which does not read it \(sgd would\)",
        ),
        (
            {"epochs": 10, "betas": [0.5, 0.9]},
            r"betas = \(0.5, 0.9\) is not allowed with optimiser = 'sgd', .*\(adam and adamw would\): "
            r"leave it at \(0.9, 0.999\)",
        ),
        ({"epochs": 10, "optimiser": "adamw", "betas": [0.5, 1.0]}, r"betas\[1\] = 1.0 is not allowed"),
        ({"epochs": 10, "nesterov": True, "momentum": 0.0}, "nesterov = True is not allowed"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=f"^cil.icarl.first.{sentence}"):
        build(Schedule, values, where="cil.icarl.first")


def test_impossible_milestones_are_refused_in_python_too() -> None:
    with pytest.raises(ValueError, match="should lie below epochs = 5"):
        Schedule(epochs=5, milestones=(5,))
