"""Train a stored step again: the same bits, or the differences; the run stays unchanged."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from opencil.errors import BadInput
from opencil.runs import again
from opencil.runs.again import plan_trial
from opencil.runs.events import Training
from opencil.runs.state import open_run
from tests.stored import contents, edit_json, replace_model

RUN = "digits/k4/icarl/seed0"


@pytest.mark.parametrize("number", [1, 2])
def test_a_step_has_the_same_bits_again(done: Path, number: int) -> None:
    if number == 1:
        shutil.rmtree(done / RUN / "step02")
    before = contents(done)
    trial = plan_trial(done / RUN)
    assert trial.doubts == []
    assert {event.step for event in trial.carry_out() if isinstance(event, Training)} == {number}
    assert trial.differences == []
    assert contents(done) == before


def test_differences_are_named(done: Path) -> None:
    run = open_run(done / RUN)
    step, info, model = run.folder.step(2), run.info(2), run.model(2).state_dict()
    model["head.weight"].view(-1)[0] += 0.5
    replace_model(step, model, info)
    trial = plan_trial(done / RUN)
    assert list(trial.carry_out())
    (difference,) = trial.differences
    assert difference.startswith("model.safetensors: 1 of ")
    assert "head.weight" in difference


def test_doubts_are_named(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: Any) -> dict[str, Any]:
        return {"threads": 8, "cpu": "NEON", "only_deterministic": False, "ranks": 1}

    monkeypatch.setattr(again, "describe_arithmetic", elsewhere)
    monkeypatch.setattr("torch.__version__", "9.9")
    doubts = [doubt.partition(" (")[0] for doubt in plan_trial(done / RUN).doubts]
    assert doubts == ["another cpu", "another threads", "another torch"]


def test_a_step_is_trained_as_deterministically_as_before(done: Path) -> None:
    edit_json(
        done / RUN / "step02/step.json",
        lambda info: info["computed_with"].update(only_deterministic=True, threads=1),
    )
    trial = plan_trial(done / RUN)
    assert {torch.are_deterministic_algorithms_enabled() for _ in trial.carry_out()} == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_steps_that_cannot_be_trained_again_are_refused(done: Path) -> None:
    path = done / RUN
    (path / "step01/step.json").unlink()
    with pytest.raises(BadInput, match="a step before it is missing"):
        plan_trial(path)
    (path / "step02/step.json").unlink()
    with pytest.raises(BadInput, match="no stored step"):
        plan_trial(path)
