"""Workers in processes of this machine; tests/siege/workers.py has them do the runs of one process."""

import io
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import opencil
from opencil.config import Config, PlaceConfig
from opencil.engine.loop import Progress
from opencil.errors import BadInput
from opencil.runs import loading, runner, worker_process
from opencil.runs.crew import Assignment, Ended, Inbox, Message, Refuses
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.failures import failed, portable, traceback_of_own_code
from opencil.runs.inventory import entry
from opencil.runs.loading import usable_places
from opencil.runs.local_workers import ProcessWorker
from opencil.runs.outlook import outlook
from opencil.runs.plan import plan
from opencil.runs.store import RunFolder, find_runs
from tests import forks

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Results = Callable[[Path], dict[str, object]]
SHORT = ["benchmark.classes_per_step=8", "cil.*.epochs=2"]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal sends it to all of a group; more epochs than can be done, so that all are under way."""
    words = ["run", "--benchmark", "digits", "--cil", "icarl", "--seed", "0,1,2", "--detector", "msp"]
    words += ["--runs", "r", "--device", "cpu", "--jobs", "2", "--set", "benchmark.classes_per_step=8"]
    words += ["--set", "cil.icarl.epochs=1000000", "--set", "place.checkpoint_seconds=0"]
    monkeypatch.chdir(tmp_path)
    with forks.forked(_as_leader, tuple(words)) as started:
        while len(list(tmp_path.rglob("checkpoint.safetensors"))) < 2 and started.returncode is None:
            time.sleep(0.05)
        assert started.process.pid is not None
        os.killpg(started.process.pid, signal.SIGINT)
        out, err = started.communicate()
    assert started.returncode == 130, err
    said = [line for line in err.splitlines() if "% of all runs" not in line]
    assert said[0].startswith("3 runs: icarl on digits (k = 8; seeds 0, 1, 2); msp; on cpu, 2 runs at a time")
    assert said[1:] == ["interrupted: what was finished is stored, and the same command goes on from there"]
    assert out == ""
    assert not list(tmp_path.rglob("*.part"))
    folders = [run.folder for run in map(entry, find_runs(tmp_path / "r")) if run.state == "unfinished"]
    assert len(folders) == 2, "they have left their runs, and the third has not begun"


def _as_leader(words: tuple[str, ...]) -> None:
    os.setsid()
    forks.run_command(words)


# --- where runs go ---------------------------------------------------------------------------------


def places(monkeypatch: pytest.MonkeyPatch, **values: Any) -> list[PlaceConfig]:
    """With four processors, and as many GPUs as are named."""
    monkeypatch.setattr(loading, "resolve_device", torch.device)
    monkeypatch.setattr(loading, "workers_here", lambda: 4)
    return usable_places(PlaceConfig(**values))


def test_jobs_on_a_cpu_are_processes_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = places(monkeypatch, device="cpu")
    assert (one.threads, one.workers) == (None, None)
    two = places(monkeypatch, device="cpu", jobs=2)
    assert [(p.device, p.threads, p.workers, p.jobs) for p in two] == [("cpu", 1, 2, 1)] * 2
    assert [p.threads for p in places(monkeypatch, device="cpu", jobs=2, threads=3)] == [3, 3]
    assert len(places(monkeypatch, device="cpu", jobs="auto")) == 4


def test_jobs_on_a_gpu_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = places(monkeypatch, device="cuda", jobs=3)
    assert (one.device, one.pack, one.threads) == ("cuda", 3, None)
    assert [p.pack for p in places(monkeypatch, device="cuda", jobs="auto", pack=4)] == [4]
    both = places(monkeypatch, device="cuda:0,cuda:1", pack=4)
    assert [(p.device, p.pack, p.jobs) for p in both] == [("cuda:0", 4, 1), ("cuda:1", 4, 1)]


@pytest.mark.parametrize("device", ["cuda:0,cuda:0", "cpu,cuda:0", "cpu,cpu", "cuda:0,", "cuda:0,auto"])
def test_devices_that_cannot_share_runs(device: str) -> None:
    with pytest.raises(BadInput, match=r"device = .* is not allowed: several GPUs are named each once"):
        opencil.resolve({"benchmark": "digits", "place": {"device": device}})


def test_one_run_needs_no_other_process(tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "spread", lambda *_: pytest.fail("there is one run"))
    config = tiny(tmp_path, *SHORT, "place.jobs=4", detector="msp")
    assert isinstance(list(opencil.execute(config))[-1], Finished)
    more = tiny(tmp_path, *SHORT, "place.jobs=4", detector="msp", seed=[0, 1])
    events = list(opencil.execute(more))
    assert (events[0], type(events[-1])) == (Finished(events[0].run, already=True), Finished)


@pytest.mark.parametrize(
    ("jobs", "seeds", "expected"), [(4, [0], 1), (4, [0, 1], 2), (2, [0, 1, 2], 2), (1, [0, 1], 1)]
)
def test_no_more_runs_are_said_to_go_at_once_than_there_are(
    tmp_path: Path, tiny: Make, jobs: int, seeds: list[int], expected: int
) -> None:
    assert outlook(tiny(tmp_path, f"place.jobs={jobs}", seed=seeds)).at_once == expected


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_that_may_not_be_written_to_is_told(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    def hire(*_: object) -> Any:
        return lambda *_: pytest.fail("a worker would say that its machine does not see the folder")

    config = tiny(tmp_path, f"place.jobs={jobs}", seed=[0, 1])
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(runner, "hire", hire)
    events = list(opencil.execute(config))
    assert [str(event.error) for event in events if isinstance(event, Failed)] == [
        f"{tmp_path / spec.folder} cannot be written: Permission denied" for spec in plan(config)
    ]
    assert len(events) == 2


def test_what_is_registered_in_this_process_alone_is_refused(tmp_path: Path, tiny: Make) -> None:
    @opencil.register_detector("homemade")
    class Homemade(type(opencil.create_detector("msp"))):  # type: ignore[misc]
        """A detector that no file has."""

    config = tiny(tmp_path, "place.jobs=2", seed=[0, 1], detector="homemade")
    with pytest.raises(BadInput, match="detector 'homemade' is registered in this process alone"):
        list(opencil.execute(config))
    assert not any(tmp_path.iterdir())


def test_what_a_lost_worker_still_holds_is_waited_for(tmp_path: Path, tiny: Make, finished: Path) -> None:
    config = tiny(tmp_path)
    (spec,) = plan(config)
    folder = RunFolder(tmp_path / spec.folder)

    def next_event(patience: float) -> Event | None:
        asked = Assignment(spec, patience=patience)
        cpu = torch.device("cpu")
        events = runner._advance(asked, folder, config.place, cpu, no_data, None, False, None)  # type: ignore[arg-type]
        told = next(events)
        if told is None:
            shutil.rmtree(folder.path)
            shutil.copytree(finished / spec.folder, folder.path)  # the other has done the rest of it
            told = next(event for event in events if event is not None)
        return told

    def no_data() -> Any:
        raise BadInput("another holds it, and no data are needed")

    with folder.opened(spec), pytest.raises(BadInput, match="another holds it"):
        next_event(patience=0.0)
    with folder.opened(spec):
        assert next_event(patience=60.0) == Finished(spec, already=True)


class Babbling:
    """A process that says what nobody understands, and goes on."""

    name, machine, closed = "cpu", "", False

    def write(self, data: bytes) -> None:
        pass

    def read(self, most: int) -> bytes:
        return b"" if self.closed else b"hello"

    def close(self) -> None:
        self.closed = True

    def ended(self) -> str:
        return "was stopped" if self.closed else ""


def test_a_worker_that_is_not_understood_is_to_leave(tiny: Make) -> None:
    inbox: Inbox = SimpleQueue()
    ProcessWorker(tiny(Path("r")), [], inbox, Babbling())  # type: ignore[arg-type]
    assert inbox.get(timeout=30)[1] == Ended("the worker on cpu was stopped")


def test_a_worker_that_refuses_is_not_disturbed_in_saying_so(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom it works for lets all workers go as soon as it hears of it: before the last bytes are flushed."""
    said, codes = list[Message](), list[int]()

    class Channel:
        def send(self, message: Message) -> None:
            worker_process._Leaving()()
            said.append(message)

    def refuse(*_: object) -> None:
        raise BadInput("there are no data")

    order = io.BytesIO(pickle.dumps(worker_process.Order(tiny(Path("r")), [], [])))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=order))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(worker_process, "_Channel", Channel)
    monkeypatch.setattr(worker_process, "_replies", lambda: None)
    monkeypatch.setattr(worker_process, "_work", refuse)
    monkeypatch.setattr(worker_process._Leaving, "seen", False)
    worker_process.serve()
    (refusal,) = said
    assert isinstance(refusal, Refuses)
    assert (str(refusal.error), codes) == ("there are no data", [0])


# --- what is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every_epoch", "told"),
    [
        (False, [(1, 1), (1, 4), (3, 1), (3, 4), (4, 2), (4, 4)]),
        (True, [(1, 1), (1, 4), (2, 4), (3, 4), (4, 2), (4, 4), (5, 4)]),
    ],
)
def test_events_are_few_and_fit_for_another_process(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, every_epoch: bool, told: list[tuple[int, int]]
) -> None:
    """One in half a second, and one end of an epoch in half a second; or all ends of epochs.

    Iterations, four an epoch, take 0.11 s each, those of the fourth epoch 0.37.
    """
    (spec,) = plan(tiny(Path("r")))
    telling, kept, now = worker_process._Telling(every_epoch), [], 100.0
    monkeypatch.setattr(worker_process.time, "monotonic", lambda: now)
    for count in range(20):
        epoch, iteration = 1 + count // 4, 1 + count % 4
        now += 0.37 if epoch == 4 else 0.11
        value = torch.tensor(float(count))
        progress = Progress("train", epoch, 5, iteration, 4, 0.1, value, value, lambda: {})
        if (event := telling(Training(spec, 1, 4, progress))) is not None:
            kept.append(pickle.loads(pickle.dumps(event)))
    where = [(event.progress.epoch, event.progress.iteration) for event in kept]
    assert where == told
    losses = {event.progress.epoch: float(event.progress.loss) for event in kept if event.progress.epoch_ends}
    assert losses == {epoch: 4 * epoch - 1 for epoch in losses}
    assert kept[-1].run == spec


def test_an_error_of_ones_own_code_is_shown_from_there(tmp_path: Path, tiny: Make) -> None:
    (spec,) = plan(tiny(tmp_path))
    try:
        exec(compile("1 / 0", "mine.py", "exec"), {"__name__": "mine"})
    except ZeroDivisionError as error:
        event = failed(spec, RunFolder(tmp_path / spec.folder), error)
    shown = traceback_of_own_code(event.error)
    there = pickle.loads(pickle.dumps(portable(event.error)))
    assert "mine.py" in shown
    assert traceback_of_own_code(there) == shown
    assert str(there) == str(event.error)
    refused = pickle.loads(pickle.dumps(portable(BadInput("no"))))
    assert (type(refused), str(refused), traceback_of_own_code(refused)) == (BadInput, "no", "")
