"""Test the values of tuners that the generated table of ``docs/detectors.md`` leaves out."""

import pytest

from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.schedule import Schedule
from opencil.registry import DETECTORS

TUNERS = [name for name in DETECTORS.names() if isinstance(DETECTORS.create(name), Tuner)]


@pytest.mark.parametrize("name", TUNERS)
def test_values_of_a_tuner(name: str) -> None:
    tuner, stated = DETECTORS.create(name), DETECTORS.create(f"{name}@stated")
    assert isinstance(tuner, Tuner)
    assert isinstance(stated, Tuner)
    assert tuner.schedule == Schedule(epochs=10, lr=0.001, decay="cosine", weight_decay=5e-4)
    assert (tuner.batch_size, tuner.init, tuner.temperature) == (128, "copy", 1.0)
    assert stated.schedule.lr == 0.1


def test_the_papers_detectors_are_registered() -> None:
    assert len(DETECTORS.paper) == 16
    assert set(DETECTORS.names()) >= DETECTORS.paper
