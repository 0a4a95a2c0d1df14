"""Runs in several processes: the same rows as in one, lost workers, refusals, places."""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import opencil
from opencil.config import Config, PlaceConfig
from opencil.detectors.posthoc.msp import MSP
from opencil.engine.loop import Progress
from opencil.errors import BadInput
from opencil.files import damaged
from opencil.runs import launch
from opencil.runs.events import Event, Failed, Finished, Lost, Training
from opencil.runs.launch import execute
from opencil.runs.launchers import local
from opencil.runs.launchers.local import shared_gpu
from opencil.runs.spec import RunSpec, plan
from tests.stored import results

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
PLUGIN = """
import opencil
from opencil.detectors.posthoc.msp import MSP

opencil.register_detector("mine")(type("Mine", (MSP,), {"__doc__": "MSP from a file."}))
"""


def ended(pid: int) -> bool:
    """Return whether a child has ended, and collect it."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the process ids of workers as they start."""
    started: list[int] = []

    class Noted(local.Worker):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            started.append(self.process.pid)

    monkeypatch.setattr(local, "Worker", Noted)
    return started


# --- real processes --------------------------------------------------------------------------------


def test_two_processes_leave_the_files_of_one_though_a_worker_is_killed(
    tmp_path: Path, short: Make, run_all: RunAll, workers: list[int]
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    opencil.load_plugin(tmp_path / "mine.py")
    grid = {"seed": [0, 1], "detector": ["mine"]}
    found = []
    for event in execute(short(tmp_path / "two", "place.jobs=2", **grid)):
        if isinstance(event, Training) and len(workers) == 2:
            with suppress(ProcessLookupError):  # killed by the event before, and not yet replaced
                os.kill(workers[0], signal.SIGKILL)
        found.append(event)
    lost = [event for event in found if isinstance(event, Lost)]
    assert len(lost) == len(workers) - 2
    assert all("SIGKILL" in event.reason for event in lost)
    assert sum(isinstance(event, Finished) for event in found) == 2
    assert all(ended(pid) for pid in workers)
    run_all(short(tmp_path / "one", **grid))
    assert results(tmp_path / "two") == results(tmp_path / "one")


def test_closing_stops_workers_with_checkpoints(tmp_path: Path, short: Make, workers: list[int]) -> None:
    endless = ["place.jobs=2", "place.checkpoint_seconds=0", "cil.*.epochs=100000"]
    with closing(execute(short(tmp_path, *endless, detector="msp", seed=[0, 1]))) as events:
        for _ in events:
            if len(list(tmp_path.rglob("step01/checkpoint"))) == 2:
                break
    assert len(workers) == 2
    assert all(ended(pid) for pid in workers)
    assert not list(tmp_path.rglob("*.part"))
    assert len(list(tmp_path.rglob("step01/checkpoint"))) == 2


# --- workers that are lost, in a fake ---------------------------------------------------------------


class FakeWorker:
    """A worker that answers each run at once, as ``answers`` says; an answer may be an error."""

    answers: ClassVar[Callable[[RunSpec], Any]]
    log: ClassVar[list[str]]

    def __init__(self, config: Config, plugins: list[str], variables: Any) -> None:
        self.process = SimpleNamespace(terminate=lambda: self.log.append("stop"))
        self.log.append("start")

    def do(self, spec: RunSpec) -> Iterator[Event]:
        answer = FakeWorker.answers(spec)
        if isinstance(answer, Exception):
            raise answer
        yield answer

    def send(self, message: None) -> None:
        pass

    def wait(self) -> str:
        self.log.append("wait")
        return "ended"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(local, "Worker", FakeWorker)
    FakeWorker.log = []
    return FakeWorker


def test_a_run_that_ends_its_workers_is_given_up(tmp_path: Path, short: Make, fake: type[FakeWorker]) -> None:
    fake.answers = lambda spec: EOFError() if spec.seeds.run == 1 else Finished(spec, already=False)
    events = list(execute(short(tmp_path, "place.jobs=2", seed=[0, 1, 2])))
    assert [type(event) for event in events if event.run.seeds.run == 1] == [Lost, Failed]
    assert {e.run.seeds.run for e in events if isinstance(e, Finished)} == {0, 2}
    assert 2 <= fake.log.count("start") == fake.log.count("wait")


@pytest.mark.parametrize("error", [BadInput("no such dataset"), OSError("no more processes")])
def test_an_error_of_all_runs_ends_all(
    tmp_path: Path, short: Make, fake: type[FakeWorker], error: Exception
) -> None:
    fake.answers = lambda spec: error
    with pytest.raises(type(error), match="no "):
        list(execute(short(tmp_path, "place.jobs=2", seed=[0, 1, 2])))
    assert 1 <= fake.log.count("start") == fake.log.count("stop")


def test_runs_that_are_to_come_are_announced(tmp_path: Path, short: Make, fake: type[FakeWorker]) -> None:
    fake.answers = lambda spec: Finished(spec, already=False)
    with closing(execute(short(tmp_path, "place.jobs=2", seed=[0, 1, 2]))) as events:
        next(events)
        assert len(list(tmp_path.rglob("config.yml"))) == 3


def test_longer_runs_begin_first(tmp_path: Path, short: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def launch(config: Config, specs: list[RunSpec], *_: object) -> Iterator[Event]:
        begun.extend(spec.cil for spec in specs)
        yield from ()

    monkeypatch.setattr(local, "launch", launch)
    list(execute(short(tmp_path, "place.jobs=2", "cil.wa.epochs=2", cil="icarl,wa")))
    assert begun == ["wa", "icarl"]


def test_names_of_this_process_alone_are_refused(tmp_path: Path, short: Make) -> None:
    @opencil.register_detector("mine")
    class Mine(MSP):
        """A detector that no file registers."""

    config = short(tmp_path, detector=["mine"])
    for settings in ({"jobs": 2}, {"pack": 2}):
        with pytest.raises(BadInput, match="'mine' is registered in this process alone"):
            list(execute(replace(config, place=replace(config.place, **settings))))
    assert not any(tmp_path.iterdir())


def test_foreign_models_stay_in_one_process(tmp_path: Path, short: Make) -> None:
    config = short(tmp_path, "place.jobs=2")
    specs = [replace(spec, foreign=spec.learner()) for spec in plan(config)]
    with pytest.raises(BadInput, match="jobs = 1"):
        list(execute(config, lambda _: specs))


def test_an_error_ends_its_run_alone(tmp_path: Path, short: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(spec: RunSpec, *_: Any, **__: Any) -> Iterator[Event]:
        if spec.seeds.run == 0:
            raise ZeroDivisionError("a bug")
        yield from ()

    monkeypatch.setattr(launch, "run", fail)
    first, second = execute(short(tmp_path, seed=[0, 1]))
    assert isinstance(first, Failed)
    assert isinstance(first.error.__cause__, ZeroDivisionError)
    assert "ZeroDivisionError: a bug" in (tmp_path / "digits/k4/icarl/seed0/error.txt").read_text()
    assert second == Finished(second.run, already=False)


# --- places ----------------------------------------------------------------------------------------


def places(monkeypatch: pytest.MonkeyPatch, **values: Any) -> list[PlaceConfig]:
    """Return the places of a machine with four processors, and as many GPUs as are named."""
    monkeypatch.setattr(local, "resolve_device", torch.device)
    monkeypatch.setattr(local, "count_workers", lambda: 4)
    return local.find_places(PlaceConfig(**values))


def test_a_place_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(**values: Any) -> list[tuple[Any, ...]]:
        return [(p.device, p.threads, p.jobs, p.pack) for p in places(monkeypatch, **values)]

    assert of(device="cpu") == [("cpu", None, 1, 1)]
    assert of(device="cpu", jobs=2) == [("cpu", 1, 1, 1)] * 2
    assert of(device="cpu", jobs="auto") == [("cpu", 1, 1, 1)] * 4
    assert of(device="cpu", jobs=2, threads=3) == [("cpu", 3, 1, 1)] * 2
    assert of(device="cuda:0", pack=2) == [("cuda:0", None, 1, 1)] * 2
    assert of(device="cuda:0", jobs="auto") == [("cuda:0", None, 1, 1)]
    both = [("cuda:0", None, 1, 1), ("cuda:1", None, 1, 1)]
    assert of(device="cuda:0,cuda:1") == both
    assert of(device="cuda:0,cuda:1", pack=2) == [both[0], both[0], both[1], both[1]]


def test_gpus_are_shared_by_the_service_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" ] || cat >> {log}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    gpu = PlaceConfig(device="cuda:0")
    with shared_gpu([gpu]) as variables:
        assert variables == {}
    with shared_gpu([gpu, gpu]) as variables:
        assert Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    assert log.read_text().split() == ["-d", "quit"]
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/there/already")
    with shared_gpu([gpu, gpu]) as variables:
        assert variables == {}


# --- messages --------------------------------------------------------------------------------------


def test_events_for_other_processes(short: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = plan(short(tmp_path))
    loss = torch.tensor(2.0)

    def training(iteration: int) -> Training:
        state: Any = lambda: pytest.fail("the optimiser's state is not sent")  # noqa: E731
        return Training(spec, 1, 2, Progress("train", 1, 2, iteration, 3, 0.1, loss, loss, state))

    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    damage = damaged(tmp_path, "no")
    events = [training(1), training(2), training(3), Failed(spec, damage, "own")]
    monkeypatch.setattr(launch, "work", lambda *_: (event for event in events))
    for curves, iterations in ((None, [1]), ("curves", [1, 3])):
        config, found = short(tmp_path), list[Any]()
        config = replace(config, place=replace(config.place, tensorboard=curves))
        launch.do_runs(config, [], [], found.append)
        sent = [event.progress for event in found if isinstance(event, Training)]
        assert [progress.iteration for progress in sent] == iterations
        assert [float(progress.loss) for progress in sent] == [0.0, 2.0][: len(sent)]
        assert all(progress.state() == {} for progress in sent)
        last = pickle.loads(pickle.dumps(found[-1]))
        assert (str(last.error), last.own_code) == (str(damage), "own")
