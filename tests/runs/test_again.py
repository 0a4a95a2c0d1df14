"""A stored step trained again: the same bits, or what differs; nothing of the run changes."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from opencil.config import Config, PlaceConfig
from opencil.errors import BadInput
from opencil.runs import again as module
from opencil.runs.again import Again, place_for, trial
from opencil.runs.events import Event, Training
from opencil.runs.store import RunFolder
from tests.stored import without_bytes

RUN = "digits/k2/icarl/seed0"
CPU = PlaceConfig(device="cpu")


def carried_out(training: Generator[Event, None, Again]) -> tuple[list[Event], Again]:
    events = []
    while True:
        try:
            events.append(next(training))
        except StopIteration as end:
            return events, end.value


@pytest.mark.parametrize("number", [1, None])
def test_a_step_comes_out_with_the_same_bits(
    finished: Path, number: int | None, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    before = contents(finished)
    one = trial(finished / RUN, CPU, number)
    assert one.doubts == []
    events, again = carried_out(one.carry_out())
    assert again == Again(one.run.spec, number or 4, [])
    assert all(isinstance(event, Training) and event.step == again.step for event in events)
    assert contents(finished) == before


def test_a_step_of_before_bytes_were_rows_comes_out_with_the_same_bits(finished: Path) -> None:
    without_bytes(finished / RUN)
    _, again = carried_out(trial(finished / RUN, CPU, 2).carry_out())
    assert again.differences == []


def test_what_differs_is_told(finished: Path) -> None:
    one = trial(finished / RUN, CPU, 2)
    stored = one.run.trained(2).model.state_dict()
    name = next(name for name in stored if name.endswith("weight"))
    stored[name].view(-1)[0] += 0.5
    one.run.remember(one.run.stream[1], one.run.memory(1))
    _, again = carried_out(one.carry_out())
    model, *memory = again.differences
    assert model.startswith("model: 1 of ")
    assert model.endswith(f"numbers of {name} differ, by up to 0.5")
    assert memory
    assert all(difference.startswith("memory: ") for difference in memory)


def test_bits_that_cannot_be_expected_are_said_why(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: Any) -> dict[str, Any]:
        return {"threads": 8, "cpu": "NEON", "only_deterministic": False}

    monkeypatch.setattr(module, "decides_bits", elsewhere)
    monkeypatch.setattr("torch.__version__", "9.9")
    doubts = trial(finished / RUN, CPU).doubts
    assert [doubt.partition(" (")[0] for doubt in doubts] == [
        "another torch",
        "other instructions of the CPU",
        "another number of threads",
    ]
    assert doubts[0].endswith("then, 9.9 here)")


def test_a_step_is_trained_as_deterministically_as_it_was(finished: Path) -> None:
    info = trial(finished / RUN, CPU).run.info(1)
    info["computed_with"]["only_deterministic"] = True
    RunFolder(finished / RUN).step(1).save_info(info)
    one = trial(finished / RUN, CPU, 1)
    assert one.doubts == []
    assert {torch.are_deterministic_algorithms_enabled() for _ in one.carry_out()} == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_cannot_be_trained_again_is_refused(
    finished: Path, tmp_path: Path, tiny: Callable[..., Config]
) -> None:
    path = finished / RUN
    with pytest.raises(BadInput, match=r"has no step 7: stored are 1, 2, 3, 4"):
        trial(path, CPU, 7)
    (RunFolder(path).step(3).path / "step.json").unlink()
    with pytest.raises(BadInput, match="step 4 cannot be trained again: the step before it is missing"):
        trial(path, CPU)
    for step in (1, 2, 4):
        (RunFolder(path).step(step).path / "step.json").unlink()
    with pytest.raises(BadInput, match="has no stored step yet"):
        trial(path, CPU)


def test_the_place_is_that_of_the_run(finished: Path) -> None:
    assert place_for(finished / RUN, None, None).device == "cpu"
    with pytest.raises(BadInput, match="device 'cpuu' cannot be used"):
        place_for(finished / RUN, "cpuu", None)
