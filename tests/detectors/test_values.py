"""What the paper's detectors are by default: results under a bare name are of these values."""

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
}


@pytest.mark.parametrize("name", VALUES)
def test_values_by_default(name: str) -> None:
    assert plain(DETECTORS.create(name)) == VALUES[name]


def test_none_of_the_papers_is_left_out() -> None:
    assert DETECTORS.paper <= set(VALUES)
