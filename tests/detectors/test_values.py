"""What detectors are by default and under their labels: results under a name are of these values."""

from typing import Any

import pytest

from opencil.engine.schedule import Schedule
from opencil.registry import DETECTORS
from opencil.validation import plain

TUNED = {"schedule": plain(Schedule(epochs=10, lr=0.001, decay="cosine", weight_decay=5e-4))} | {
    "batch_size": 128,
    "init": "copy",
    "temperature": 1.0,
}
ENERGIES = TUNED | {"alpha": 0.1, "margins": "fixed", "margin_in": -27.0, "margin_out": -5.0}
VALUES: dict[str, dict[str, Any]] = {
    "augmix": TUNED
    | {"weight": 12.0, "severity": 1.0, "width": 3, "depth": 0, "concentration": 1.0, "rule": "torchvision"},
    "ber": ENERGIES | {"nter": True, "oter": True, "concentration": 1.0, "share": 0.002},
    "energy": {"temperature": 1.0},
    "gen": {"gamma": 0.1, "largest": 100},
    "klm": {"setup": "memory"},
    "logitnorm": TUNED | {"tau": 0.04},
    "maxlogit": {},
    "msp": {},
    "nnguide": {"setup": "memory", "neighbours": 100, "share": 0.01, "smallest_bank": 128, "seed": 0},
    "npos": ENERGIES
    | {"queue": 1000, "outliers_by": "head", "neighbours": 400, "boundary": 200, "chosen": 2}
    | {"perturbations": 1000, "kept": 300, "sigma": 0.1, "distances": "directions"},
    "odin": {"temperature": 1000.0, "epsilon": 0.0014, "batch_size": 256},
    "react": {"setup": "memory", "percentile": 90.0},
    "regmix": TUNED | {"share": 0.5, "concentration": 10.0},
    "relation": {"setup": "memory", "power": 1.0, "threshold": 0.03},
    "t2fnorm": TUNED | {"tau": 0.1, "scored": "raw"},
    "vos": ENERGIES | {"queue": 1000, "outliers_by": "head", "samples": 10_000, "ridge": 1e-4},
    # Not the paper's.
    "ash": {"variant": "s", "percentile": 65.0},
    "dice": {"setup": "memory", "percentile": 90.0},
    "entropy": {},
    "fdbd": {"setup": "memory", "divided_by": "distance"},
    "gradnorm": {"temperature": 1.0},
    "gram": {"setup": "memory", "powers": 5, "held_out": 0.1, "seed": 0},
    "knn": {"setup": "memory", "neighbours": 10},
    "logitgap": {"share": 0.2, "most": 88},
    "lts": {"share": 0.05},
    "more": TUNED | {"scored": "task"},
    "nci": {"setup": "memory", "alpha": 0.0001},
    "neco": {"setup": "memory", "variance": 0.9, "max_logit": False},
    "oe": TUNED | {"weight": 0.5, "concentration": 1.0},
    "openmax": {"setup": "memory", "tail": 20, "alpha": 3},
    "rankfeat": {"temperature": 1.0, "maps": "both"},
    "residual": {"setup": "memory", "dimensions": 0},
    "scale": {"percentile": 85.0},
    "tpl": {"setup": "memory", "neighbours": 5},
    "vim": {"setup": "memory", "dimensions": 0},
    "vra": {"setup": "memory", "low": 60.0, "high": 95.0, "below": "zero", "thresholds": "each"},
}
#: What a label changes; ``stated`` of a detector that is set up is the paper's own set, of a tuner its rate.
LABELS: dict[str, dict[str, Any]] = {
    "ash@authors": {"variant": "s", "percentile": 95.0},
    "ash@openood": {"variant": "b", "percentile": 90.0},
    "dice@imagenet": {"percentile": 70.0},
    "dice@stated": {"setup": "train+"},
    "knn@stated": {"setup": "train+", "neighbours": 200},
    "knn@openood": {"setup": "train+", "neighbours": 50},
    "nci@pytorch-ood": {"alpha": 0.0},
    "openmax@original": {"alpha": 10},
    "scale@pytorch-ood": {"percentile": 65.0},
    "vra@openood": {"low": 10.0, "high": 90.0, "below": "low", "thresholds": "all"},
}


@pytest.mark.parametrize("name", VALUES)
def test_values_by_default(name: str) -> None:
    assert plain(DETECTORS.create(name)) == VALUES[name]


@pytest.mark.parametrize("name", LABELS)
def test_values_under_a_label(name: str) -> None:
    assert plain(DETECTORS.create(name)) == VALUES[name.partition("@")[0]] | LABELS[name]


def test_the_papers_rate_is_a_label_of_every_tuner() -> None:
    rates = {name: plain(DETECTORS.create(f"{name}@stated")) for name in VALUES if "schedule" in VALUES[name]}
    assert {name: values["schedule"]["lr"] for name, values in rates.items()} == dict.fromkeys(rates, 0.1)


def test_none_of_the_papers_is_left_out() -> None:
    assert DETECTORS.paper <= set(VALUES)
