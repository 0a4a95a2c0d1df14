"""When a training is checkpointed, and checkpoints that cannot be used."""

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import opencil
from opencil.config import Config
from opencil.engine.loop import Progress
from opencil.evaluation.protocol import Measurement
from opencil.runs import checkpoints
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.loading import load
from opencil.runs.spec import plan
from opencil.runs.state import Run
from opencil.runs.store import RunFolder, StepFolder
from tests.stored import flip, results

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
ONE_STEP = ["benchmark.classes_per_step=8", "cil.*.epochs=3"]


def progress(epoch: int, iteration: int = 2) -> Progress:
    nothing = torch.zeros(())
    return Progress("train", epoch, 9, iteration, 2, 0.1, nothing, nothing, dict)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def step(tmp_path: Path) -> StepFolder:
    return StepFolder(tmp_path / "step01")


def test_a_checkpoint_is_stored_when_its_time_has_come(clock: list[float], step: StepFolder) -> None:
    module = torch.nn.Linear(1, 1)
    found: list[Any] = []
    with Checkpoints(step, "this", 60.0) as times:
        for now, epoch in ((130.0, 1), (161.0, 2), (200.0, 3), (222.0, 4)):
            clock[0] = now
            times.measured.append(Measurement("", "online", epoch))
            times.note(module, progress(epoch, iteration=1))
            times.note(module, progress(epoch))
            resumed = Checkpoints(step, "this", 60.0)
            found.append(resumed.resume and (resumed.resume.epoch, len(resumed.measured)))
    assert found == [None, (2, 2), (2, 2), (4, 4)]
    assert times.seconds == 122.0
    with Checkpoints(step, "this", 60.0) as resumed:
        clock[0] += 10
    assert resumed.seconds == 132.0


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ValueError])
def test_an_interruption_stores_the_copy_of_the_latest_epoch(
    clock: list[float], step: StepFolder, error: type[BaseException]
) -> None:
    module = torch.nn.Linear(1, 1)
    with pytest.raises(error), Checkpoints(step, "this", 60.0) as times:  # noqa: PT012
        clock[0] += 1.0
        times.note(module, progress(1))
        weight = module.weight.detach().clone()
        module.weight.data.add_(1.0)
        times.measured.append(Measurement("", "after", 1.0))
        clock[0] += 0.5  # too soon for another copy
        times.note(module, progress(2))
        raise error
    resumed = Checkpoints(step, "this", 60.0)
    if error is ValueError:
        assert resumed.resume is None
    else:
        assert resumed.resume is not None
        assert resumed.resume.epoch == 1
        assert torch.equal(resumed.resume.weights["weight"], weight)
        assert resumed.measured == []


def test_an_interruption_of_weights_that_are_not_finite_keeps_the_checkpoint(
    clock: list[float], step: StepFolder
) -> None:
    module = torch.nn.Linear(1, 1)
    with pytest.raises(KeyboardInterrupt), Checkpoints(step, "this", 60.0) as times:  # noqa: PT012
        clock[0] += 60.0
        times.note(module, progress(1))
        module.weight.data.fill_(torch.nan)
        clock[0] += 1.0
        times.note(module, progress(2))
        raise KeyboardInterrupt
    kept = Checkpoints(step, "this", 60.0).resume
    assert kept is not None
    assert kept.epoch == 1


def interrupt(config: Config, epoch: int) -> None:
    """Close a run in an epoch of its only step."""
    with closing(opencil.execute(config)) as events:
        for event in events:
            if isinstance(event, Training) and event.progress.epoch == epoch:
                break


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, short: Make, run_all: RunAll) -> dict[str, object]:
    runs = tmp_path_factory.mktemp("whole")
    run_all(short(runs, *ONE_STEP, detector="msp"))
    return results(runs)


def junk(path: Path, config: Config) -> None:
    path.write_bytes(b"junk")


def store_checkpoint(path: Path, made_of: str) -> None:
    with Checkpoints(RunFolder(path.parents[1]).step(1), made_of, 0.0) as checkpoints:
        checkpoints.note(torch.nn.Linear(1, 1), progress(1))


def other_training(path: Path, config: Config) -> None:
    store_checkpoint(path, "another training")


def other_tensors(path: Path, config: Config) -> None:
    """Of the same training, as no version of the method writes them."""
    (spec,) = plan(config)
    run = Run(spec, RunFolder(path.parents[1]), load(config))
    store_checkpoint(path, run.describe_training(run.stream[0]))


@pytest.mark.parametrize("damage", [junk, lambda path, _: flip(path), other_training, other_tensors])
def test_a_checkpoint_that_cannot_be_used_is_left_out(
    tmp_path: Path,
    short: Make,
    run_all: RunAll,
    whole: dict[str, object],
    damage: Callable[[Path, Config], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = short(tmp_path, *ONE_STEP, "place.checkpoint_seconds=0", detector="msp")
    interrupt(config, 2)
    (path,) = tmp_path.rglob("checkpoint")
    damage(path, config)
    if damage is other_tensors:
        refused = run_all(config)[-1]
        assert isinstance(refused, Failed)
        assert str(path) in str(refused.error)
    first, *_, last = run_all(config)
    assert isinstance(first, Training)
    assert (first.progress.epoch, first.progress.iteration) == (1, 1)
    assert (str(path) in caplog.text) == (damage not in (other_training, other_tensors))
    assert isinstance(last, Finished)
    assert results(tmp_path) == whole
    assert not path.exists()


def test_an_interruption_on_a_full_disk_is_an_interruption(
    tmp_path: Path, short: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "COPY_EVERY", 0.0)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    config = short(tmp_path, *ONE_STEP, detector="msp")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_checked", full)
        interrupt(config, 3)
    assert not list(tmp_path.rglob("checkpoint"))
    assert isinstance(run_all(config)[-1], Finished)
