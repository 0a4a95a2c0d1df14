"""One run on two ranks: the rows of one process, rank 0 alone writes, and a lost rank costs little."""

import copy
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import opencil
from opencil.cil.learner import Learner, Setting, Task
from opencil.cli import app
from opencil.config import Config
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.engine import loop
from opencil.engine.forward import Pass
from opencil.engine.ranks import Ranks, among, several
from opencil.errors import BadInput, OpenCILError
from opencil.nets.model import Model
from opencil.runs import following, runner
from opencil.runs.events import Event, Failed, Training
from opencil.runs.following import Loading
from opencil.runs.outlook import outlook
from opencil.runs.runner import execute

OnRanks = Callable[..., list[Any]]
Tiny = Callable[..., Config]
# What a run imports late is imported before processes are forked.
pytestmark = pytest.mark.usefixtures("_finished_once")

#: Two steps; one epoch of everything, in few and uneven batches.
SHORT = [
    "benchmark.shifted={}",
    "benchmark.far=[noise]",
    "benchmark.classes_per_step=5",
    "benchmark.batch_size=361",
    "cil.*.epochs=1",
    "detector.*.schedule.epochs=1",
    "detector.*.batch_size=361",
]


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings compute in float64: what differs then is no rounding, which a few iterations make large."""
    begin, augmented = Learner.begin, loop.augmented

    def begun(self: Learner, setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
        task = begin(self, setting, step, memory, previous and copy.deepcopy(previous).double())
        task.model.double()
        return task

    def wide(loss: Callable[..., Tensor], *more: Any) -> Callable[..., Tensor]:
        return augmented(lambda images, labels, **given: loss(images.double(), labels, **given), *more)

    monkeypatch.setattr(Learner, "begin", begun)
    monkeypatch.setattr(loop, "augmented", wide)


def losses(config: Config, stop: Callable[[Event], None] = lambda event: None) -> list[float | str]:
    """Do what a config asks for: the losses of its iterations, and what its runs end with."""
    found: list[float | str] = []
    for event in execute(config):
        assert several() is None  # whoever looks at events computes alone
        stop(event)
        if isinstance(event, Training):
            found.append(float(event.progress.loss))
        elif isinstance(event, Failed):
            found.append(str(event.error))
    assert several() is None
    return found


def rows(runs: Path) -> pd.DataFrame:
    """All rows of the runs below a folder, in one order."""
    key = ["cil", "step", "detector", "ood", "task", "metric"]
    return opencil.read_rows(runs).sort_values(key).reset_index(drop=True)


def same(found: pd.DataFrame, expected: pd.DataFrame) -> bool:
    """Whether rows are the same, but for the last digits of what was computed from float32."""
    close = found["value"].to_numpy() == pytest.approx(expected["value"].to_numpy(), rel=1e-4)
    return bool(close) and found.drop(columns="value").equals(expected.drop(columns="value"))


@pytest.mark.usefixtures("in_float64")
def test_two_ranks_give_the_rows_of_one(tmp_path: Path, tiny: Tiny, on_ranks: OnRanks) -> None:
    def config(name: str) -> Config:
        detectors = ["msp", "relation", "ber", "logitnorm"]
        return tiny(tmp_path / name, *SHORT, cil="icarl,bic,foster", detector=detectors)

    (two, nothing), one = on_ranks(lambda: losses(config("two"))), losses(config("one"))
    assert nothing == []  # only rank 0 tells
    assert two == pytest.approx(one, rel=1e-6)
    for method in ("icarl", "bic", "foster"):
        stored = [opencil.open_run(tmp_path / name / f"digits/k5/{method}/seed0") for name in ("one", "two")]
        for number in (1, 2):
            memories = [run.memory(number) for run in stored]
            assert memories[0].indices.tolist() == memories[1].indices.tolist()
            assert len(memories[1].indices) <= memories[1].size == config("").benchmark.memory
            assert stored[1].info(number)["computed_with"]["ranks"] == 2
    expected, found = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert same(found, expected)


@pytest.mark.usefixtures("in_float64")
def test_a_lost_rank_ends_the_command_and_the_next_goes_on(
    tmp_path: Path, tiny: Tiny, on_ranks: OnRanks
) -> None:
    def config(name: str) -> Config:
        settings = ["cil.icarl.epochs=2", "place.checkpoint_seconds=0"]
        return tiny(tmp_path / name, *SHORT, *settings, detector=["msp"])

    follower = tmp_path / "follower"

    def kill(event: Event) -> None:
        if isinstance(event, Training) and (event.step, event.progress.epoch) == (2, 2):
            os.kill(int(follower.read_text()), signal.SIGKILL)

    def call() -> str:
        if os.environ["RANK"] == "1":
            follower.write_text(str(os.getpid()))
        with pytest.raises(OpenCILError) as caught:
            losses(config("two"), kill)
        return str(caught.value)

    told, dead = on_ranks(call)
    assert dead is None
    assert "a rank of 2 is lost" in told
    assert told.endswith("what was finished is stored, and the same command goes on from there")
    assert (tmp_path / "two/digits/k5/icarl/seed0/step02/checkpoint.safetensors").exists()
    (rest, _), one = on_ranks(lambda: losses(config("two"))), losses(config("one"))
    assert 0 < len(rest) < len(one) / 3  # the last epoch of step 2
    assert rest == pytest.approx(one[-len(rest) :], rel=1e-6)
    assert same(rows(tmp_path / "two"), rows(tmp_path / "one"))


def test_a_rank_that_has_failed_ends_its_process(tmp_path: Path) -> None:
    """As Python ends one, which frees what it has: the meeting that nobody comes to is not waited for."""
    plugin = tmp_path / "fails.py"
    plugin.write_text(
        """
from opencil.engine import ranks
ranks._GRACE = 0.5
def sum_(self, tensor, usual=ranks.Ranks.sum_):
    if self.rank == 1:
        raise RuntimeError("a bug of one rank")
    return usual(self, tensor)
ranks.Ranks.sum_ = sum_
"""
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    asked = ["run", "--plugin", plugin, "--benchmark", "digits", "--cil", "icarl", "--detector", "msp"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "opencil", *asked, "--device", "cpu", "--runs", tmp_path / "runs"],
            env={**os.environ, **told, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        lead, failed = (process.communicate(timeout=60)[1] for process in processes)
    finally:
        for process in processes:
            process.kill()
    assert "rank 1 has failed, and cannot go on: RuntimeError: a bug of one rank" in failed
    assert "(rank 1: RuntimeError: a bug of one rank)" in lead
    assert [process.wait() for process in processes] == [1, 1]


def test_the_command_shows_one_run_and_goes_on_after_one_that_fails(
    tmp_path: Path, on_ranks: OnRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["--benchmark", "digits", "--cil", "bic,icarl", "--detector", "msp", "--device", "cpu"]
    settings = [flag for setting in [*SHORT[:5], "cil.bic.train.lr=1e30"] for flag in ("--set", setting)]

    def call() -> tuple[int, str]:
        result = CliRunner().invoke(app, ["run", *asked, *settings])
        return result.exit_code, result.output

    (code, shown), (code_of_follower, shown_by_follower) = on_ranks(call)
    assert (code, code_of_follower, shown_by_follower) == (1, 0, "")
    assert "on cpu, on 2 ranks together" in shown
    assert "run digits/k5/bic/seed0 stopped: BiC, step 1: the loss is" in shown
    assert "icarl msp" in shown
    assert "1 of 2 runs failed" in shown


def test_ranks_of_a_share_without_runs_wait_for_nobody(
    tmp_path: Path, on_ranks: OnRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def call() -> tuple[int, str]:
        asked = ["--benchmark", "digits", "--cil", "icarl", "--detector", "msp", "--only", "2/2"]
        result = CliRunner().invoke(app, ["run", *asked])
        return result.exit_code, result.output

    lead, follower = on_ranks(call)
    assert follower == (0, "")
    assert lead[0] == 0
    assert "there is nothing to run: the shares are more than the runs" in lead[1]


@pytest.mark.parametrize("asked", ["pack=2", "jobs=2", "launcher=ray", "device=cuda:0,cuda:1"])
def test_what_one_process_alone_does_is_refused(
    tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """By every rank for itself, before it waits for the others, and before a Ray cluster is looked for."""
    config = tiny(tmp_path, f"place.{asked}")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    problem = f"place.{asked.replace('=', ' = ')} is not allowed on several ranks, .* without torchrun"
    for refused in (execute, outlook):
        with pytest.raises(BadInput, match=problem):
            list(refused(config))  # type: ignore[arg-type, operator]


def test_a_follower_has_data_and_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rank 0 does: on a GPU's default stream no iteration can be captured."""
    handed, happened = [Loading(), Pass(b"", "", None, torch.arange(1), 1), None], list[str]()

    @contextmanager
    def own_stream(device: torch.device) -> Iterator[None]:
        happened.append(f"a stream of {device}")
        yield
        happened.append("left")

    ranks = Ranks.__new__(Ranks)
    ranks.device = torch.device("cpu")
    monkeypatch.setattr(ranks, "next_work", lambda: handed.pop(0))
    monkeypatch.setattr(ranks, "together", nullcontext)
    monkeypatch.setattr(following, "own_stream", own_stream)
    monkeypatch.setattr(following, "load", lambda _: happened.append("data") or "data")
    monkeypatch.setattr(following, "_images", lambda *_: None)
    monkeypatch.setattr(Pass, "follow", lambda *_: happened.append("work"))
    following._follow(Config, ranks)  # type: ignore[arg-type]
    assert happened == ["a stream of cpu", "data", "work", "left"]


def test_all_ranks_load_their_data_at_the_same_time(
    tmp_path: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, those that come second would have the first wait for longer than it does."""
    handed: list[object] = []
    ranks = Ranks.__new__(Ranks)
    monkeypatch.setattr(ranks, "hand_out", handed.append)

    def load(_: Config) -> None:
        handed.append("rank 0 loads")
        raise BadInput("there are no data")

    monkeypatch.setattr(runner, "load", load)
    with among(ranks), pytest.raises(BadInput, match="there are no data"):
        list(execute.__wrapped__(tiny(tmp_path)))  # type: ignore[attr-defined]
    assert handed == [Loading(), "rank 0 loads"]
