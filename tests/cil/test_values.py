"""What CIL methods are by default and under their labels: results under a name are of these values."""

from typing import Any

import pytest

from opencil.engine.schedule import Schedule
from opencil.registry import LEARNERS
from opencil.validation import plain

COSINE = Schedule(epochs=200, lr=0.1, decay="cosine", weight_decay=5e-4)
FIRST = Schedule(
    epochs=200,
    lr=0.1,
    decay="steps",
    milestones=(60, 120, 170),
    factor=0.1,
    momentum=0.9,
    weight_decay=5e-4,
)


def later(*milestones: int, epochs: int = 170) -> Schedule:
    return Schedule(epochs=epochs, lr=0.1, milestones=milestones, weight_decay=2e-4)


REPLAYED = {"first": FIRST, "later": later(80, 120)}
GROWN = {"first": FIRST, "later": later(80, 120, 150)}
ALIGNED = {"first": FIRST, "later": later(60, 100, 140), "temperature": 2.0}
VALUES: dict[str, dict[str, Any]] = {
    "acil": {"first": Schedule(epochs=160, lr=0.1, milestones=(120, 140), weight_decay=5e-4)}
    | {"width": 2000, "drawn": "uniform", "ridge": 0.1},
    "bic": {
        "train": later(60, 100, 140),
        "correct": Schedule(epochs=170, lr=0.1, milestones=(60, 100, 140), weight_decay=0.0),
        "held_out": 0.1,
        "temperature": 2.0,
    },
    "der": GROWN,
    "er-ace": REPLAYED,
    "ewc": {"first": FIRST, "later": later(70, 120, 150, epochs=180), "weight": 1000.0, "most": 1e-4},
    "fecam": {"first": COSINE, "power": 0.5, "shrink_diagonal": 1.0, "shrink_rest": 1.0},
    "fetril": {"first": COSINE, "later": Schedule(epochs=50, lr=0.05, decay="cosine", weight_decay=5e-4)},
    "finetune": REPLAYED,
    "foster": {
        "first": COSINE,
        "boost": Schedule(epochs=170, lr=0.1, decay="cosine", weight_decay=5e-4),
        "compress": Schedule(epochs=130, lr=0.1, decay="cosine", weight_decay=0.0),
        "boost_beta": 0.96,
        "compress_beta": 0.97,
        "temperature": 2.0,
        "evaluate": "boosted",
    },
    "icarl": REPLAYED | {"temperature": 2.0},
    "joint": {"first": FIRST, "later": FIRST},
    "lucir": {
        "train": Schedule(epochs=160, lr=0.1, milestones=(80, 120), weight_decay=5e-4),
        "balance": Schedule(epochs=20, lr=0.01, milestones=(10,), weight_decay=5e-4),
    }
    | {"tunes": "head", "proxies": 1, "retain": 5.0, "ranking": 1.0, "margin": 0.5, "nearest": 2},
    "lwf": {
        "first": Schedule(epochs=200, lr=0.1, milestones=(60, 120, 160), weight_decay=5e-4),
        "later": later(60, 120, 180, 220, epochs=250),
        "temperature": 2.0,
        "weight": 3.0,
    },
    "memo": GROWN,
    "podnet": {
        "train": Schedule(epochs=160, lr=0.1, decay="cosine", weight_decay=5e-4),
        "balance": Schedule(epochs=20, lr=0.05, decay="constant", weight_decay=5e-4),
    }
    | {"tunes": "head", "proxies": 10, "flat": 1.0, "spatial": 3.0},
    "ranpac": {"first": COSINE, "width": 2000, "drawn": "normal", "ridge": None},
    "replay": REPLAYED,
    "simplecil": {"first": Schedule(epochs=200, lr=0.01, decay="cosine", weight_decay=5e-4)},
    "ss-il": ALIGNED | {"memory_share": 0.2},
    "wa": ALIGNED,
}
#: What a label changes.
LABELS: dict[str, dict[str, Any]] = {
    "acil@published": {"width": 8192},
    "podnet@pycil": {
        "spatial": 5.0,
        "tunes": "all",
        "balance": Schedule(epochs=20, lr=0.005, decay="cosine", weight_decay=5e-4),
    },
    "ranpac@published": {
        "first": Schedule(epochs=20, lr=0.01, decay="cosine", weight_decay=5e-4),
        "width": 10_000,
    },
}


def written(values: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) if isinstance(value, Schedule) else value for key, value in values.items()}


@pytest.mark.parametrize("name", LEARNERS.names())
def test_values_by_default(name: str) -> None:
    assert plain(LEARNERS.create(name)) == written(VALUES[name])


@pytest.mark.parametrize("name", LABELS)
def test_values_under_a_label(name: str) -> None:
    assert plain(LEARNERS.create(name)) == written(VALUES[name.partition("@")[0]] | LABELS[name])


def test_which_methods_keep_exemplars_see_old_images_and_have_linear_heads() -> None:
    """What a run keeps, what a step is set up on, and which detectors it goes with follow from it."""
    made = {name: LEARNERS.create(name) for name in LEARNERS.names()}
    once = {"acil", "fecam", "fetril", "ranpac", "simplecil"}
    assert {name for name, one in made.items() if not one.remembers} == {
        *once,
        "ewc",
        "finetune",
        "joint",
        "lwf",
    }
    assert {name for name, one in made.items() if not one.revisits} == {*once, "ewc", "finetune", "lwf"}
    assert {name for name, one in made.items() if not one.linear} == {*once, "lucir", "podnet"} - {"fetril"}
