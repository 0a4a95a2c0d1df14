"""Learning rates over epochs."""

import math
from typing import Any

import pytest

from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.validation import build


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Schedule(epochs=6, lr=0.1, milestones=(2, 5)), [0.1, 0.1, 0.01, 0.01, 0.01, 0.001]),
        (Schedule(epochs=4, lr=8.0, milestones=(1, 2), factor=0.5), [8.0, 4.0, 2.0, 2.0]),
        (
            Schedule(epochs=4, lr=0.2, decay="cosine"),
            [0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1, 0.1 * (1 - math.sqrt(0.5))],
        ),
        (Schedule(epochs=5, lr=8.0, decay="every", every=2, factor=0.5), [8.0, 8.0, 4.0, 4.0, 2.0]),
        (Schedule(epochs=3, lr=0.3, decay="constant", milestones=(1,)), [0.3] * 3),
    ],
)
def test_learning_rates(schedule: Schedule, rates: list[float]) -> None:
    assert [schedule.lr_at(epoch) for epoch in range(schedule.epochs)] == pytest.approx(rates)


def test_warm_up_scales_the_rate_of_any_decay() -> None:
    schedule = Schedule(epochs=6, lr=0.4, milestones=(2, 5), factor=0.5, warmup=3)
    assert [schedule.lr_at(e) for e in range(6)] == pytest.approx([0.1, 0.2, 0.15, 0.2, 0.2, 0.1])
    cosine = Schedule(epochs=4, lr=0.4, decay="cosine", warmup=1)
    assert cosine.lr_at(0) == 0.2
    assert [cosine.lr_at(e) for e in (1, 2, 3)] == [
        Schedule(epochs=4, lr=0.4, decay="cosine").lr_at(e) for e in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("epochs", "milestones", "every", "warmup"),
    [
        (200, (60, 170), 45, 10),
        (400, (120, 340), 90, 20),
        (20, (6, 17), 4, 1),
        (2, (1,), 1, 0),
        (1, (), 1, 0),
    ],
)
def test_with_epochs_scales_the_whole_schedule(
    epochs: int, milestones: tuple[int, ...], every: int, warmup: int
) -> None:
    values: dict[str, Any] = {"lr": 0.3, "decay": "every", "optimiser": "adam", "values": {"eps": 1e-3}}
    schedule = Schedule(epochs=200, milestones=(60, 170), every=45, warmup=10, **values)
    expected = Schedule(epochs=epochs, milestones=milestones, every=every, warmup=warmup, **values)
    assert schedule.with_epochs(epochs) == expected


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"milestones": [5, 10]}, r"milestones = \[5, 10\]"),
        ({"milestones": [5, 3]}, r"milestones = \[5, 3\]"),
        ({"milestones": [3, 3]}, r"milestones = \[3, 3\]"),
        ({"epochs": 0}, "epochs = 0"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"decay": "linear"}, 'decay = "linear"'),
        ({"warmup": 10}, "warmup = 10"),
        ({"decay": "every"}, "every = None"),
        ({"every": 3}, "every = 3"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(BadInput, match=f"^cil.icarl.first.{key}"):
        build(Schedule, {"epochs": 10} | values, where="cil.icarl.first")


def test_a_warm_up_stays_shorter_than_fewer_epochs() -> None:
    assert Schedule(epochs=10, warmup=9).with_epochs(1).warmup == 0
