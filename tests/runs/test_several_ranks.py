"""One run on two ranks: the rows of one process, and a lost rank costs little."""

import copy
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import Tensor

import opencil
from opencil.cil.learner import Learner, Setting, Task
from opencil.config import Config
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.engine import loop, ranks
from opencil.errors import BadInput, OpenCILError
from opencil.nets.model import Model
from opencil.runs.events import Event, Failed, Training
from opencil.runs.launch import execute

OnRanks = Callable[..., list[Any]]
#: Two steps; one epoch of everything, in few and uneven batches.
SETTINGS = [
    "benchmark.shifted={}",
    "benchmark.far=[noise]",
    "benchmark.classes_per_step=5",
    "benchmark.batch_size=361",
    "cil.*.epochs=1",
]
TUNING = ["detector.*.schedule.epochs=1", "detector.*.batch_size=361"]


def resolve(runs: Path, *settings: str, cil: str = "icarl", detector: str = "msp") -> Config:
    config = opencil.resolve({"cil": cil, "detector": detector}, settings=[*SETTINGS, *settings])
    return replace(config, place=replace(config.place, runs=str(runs), device="cpu", threads=1))


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings compute in float64: differences are no rounding, which a few iterations make large."""
    begin = Learner.begin
    augmented = loop.augmented_loss

    def begin_wide(
        self: Learner, setting: Setting, step: Step, memory: Memory, previous: Model | None
    ) -> Task:
        task = begin(self, setting, step, memory, previous and copy.deepcopy(previous).double())
        task.model.double()
        return task

    def augmented_wide(loss: Callable[..., Tensor], *more: Any) -> Callable[..., Tensor]:
        return augmented(lambda images, labels, **given: loss(images.double(), labels, **given), *more)

    monkeypatch.setattr(Learner, "begin", begin_wide)
    monkeypatch.setattr(loop, "augmented_loss", augmented_wide)


def losses(config: Config, on_event: Callable[[Event], None] = lambda event: None) -> list[float | str]:
    """Do what a config asks for; return the losses of its iterations, and the errors of failed runs."""
    found: list[float | str] = []
    for event in execute(config):
        assert ranks.current() is None  # code between events computes alone
        on_event(event)
        if isinstance(event, Training):
            found.append(float(event.progress.loss))
        elif isinstance(event, Failed):
            found.append(str(event.error))
    return found


def rows(runs: Path) -> pd.DataFrame:
    key = ["cil", "step", "detector", "ood", "task", "metric"]
    return opencil.read_rows(runs).sort_values(key).reset_index(drop=True)


def assert_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    assert one.drop(columns="value").equals(other.drop(columns="value"))
    assert one["value"].to_numpy() == pytest.approx(other["value"].to_numpy(), rel=1e-4)


@pytest.mark.usefixtures("in_float64")
def test_two_ranks_give_the_rows_of_one(tmp_path: Path, on_ranks: OnRanks) -> None:
    def config(name: str) -> Config:
        detectors = "msp,relation,ber,logitnorm"
        return resolve(tmp_path / name, *TUNING, cil="icarl,bic,foster", detector=detectors)

    one = losses(config("one"))
    two, other = on_ranks(lambda: losses(config("two")))
    assert two == other == pytest.approx(one, rel=1e-6)
    for method in ("icarl", "bic", "foster"):
        stored = [opencil.open_run(tmp_path / name / f"digits/k5/{method}/seed0") for name in ("one", "two")]
        for number in (1, 2):
            memories = [run.memory(number).indices.tolist() for run in stored]
            assert memories[0] == memories[1]
            assert stored[1].info(number)["computed_with"]["ranks"] == 2
    assert_same(rows(tmp_path / "one"), rows(tmp_path / "two"))


@pytest.mark.usefixtures("in_float64")
def test_a_lost_rank_ends_the_command_and_the_next_resumes(tmp_path: Path, on_ranks: OnRanks) -> None:
    def config(name: str) -> Config:
        return resolve(tmp_path / name, "cil.icarl.epochs=2", "place.checkpoint_seconds=0")

    other = tmp_path / "other rank"

    def kill(event: Event) -> None:
        place = (event.step, event.progress.epoch) if isinstance(event, Training) else None
        if place == (2, 2) and os.environ["RANK"] == "0":
            os.kill(int(other.read_text()), signal.SIGKILL)

    def call() -> str:
        if os.environ["RANK"] == "1":
            other.write_text(str(os.getpid()))
        with pytest.raises(OpenCILError) as caught:
            losses(config("two"), kill)
        return str(caught.value)

    one = losses(config("one"))
    error, dead = on_ranks(call)
    assert isinstance(error, str)
    assert dead is None
    assert (tmp_path / "two/digits/k5/icarl/seed0/step02/checkpoint").exists()
    rest, _ = on_ranks(lambda: losses(config("two")))
    assert 0 < len(rest) < len(one) / 3  # the last epoch of step 2
    assert rest == pytest.approx(one[-len(rest) :], rel=1e-6)
    assert_same(rows(tmp_path / "two"), rows(tmp_path / "one"))


def test_several_runs_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(BadInput, match=r"place\.jobs"):
        list(execute(resolve(tmp_path, "place.jobs=2")))
