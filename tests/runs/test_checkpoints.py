"""A step that is killed in its middle goes on from its last checkpoint, and ends as if it had not been."""

import errno
import json
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import opencil
from opencil.cil.learner import Learner, Task
from opencil.config import Config
from opencil.engine.loop import Stage
from opencil.engine.schedule import Schedule
from opencil.runs import checkpoints
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.file_formats import metadata, write_tensors
from tests import forks
from tests.siege.damage import flip

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Results = Callable[[Path], dict[str, object]]

RUN = "digits/k4/foster/seed0"
SETTINGS = ["benchmark.classes_per_step=4", "cil.foster.epochs=3"]
#: In epoch 2 of the second of step 2's stages.
KILLED_IN_COMPRESSION = """
for event in opencil.execute(config):
    if isinstance(event, Training) and event.step == 2:
        if (event.progress.stage, event.progress.epoch, event.progress.iteration) == ("compress", 2, 2):
            die()
"""
KILLED_BEFORE_THE_CHECKPOINT_IS_DELETED = """
unlink = Path.unlink
def unlink_but(path, missing_ok=False):
    if path.name == "checkpoint.safetensors" and (path.parent / "step.json").exists():
        die()
    unlink(path, missing_ok)
Path.unlink = unlink_but
for event in opencil.execute(config):
    pass
"""


@pytest.fixture(scope="module")
def uninterrupted(tiny: Make, run_all: RunAll, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a checkpoint."""
    runs = tmp_path_factory.mktemp("uninterrupted")
    config = tiny(runs, *SETTINGS, "place.checkpoint_seconds=1000000", cil="foster", detector="msp")
    assert isinstance(run_all(config)[-1], Finished)
    return runs


def with_checkpoints(tiny: Make, runs: Path) -> Config:
    """The same with a checkpoint after every epoch."""
    return tiny(runs, *SETTINGS, "place.checkpoint_seconds=0", cil="foster", detector="msp")


@pytest.fixture
def config(tiny: Make, tmp_path: Path) -> Config:
    return with_checkpoints(tiny, tmp_path / "runs")


@pytest.fixture(scope="module")
def _killed_once(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("killed") / "runs"
    with forks.code(with_checkpoints(tiny, runs), KILLED_IN_COMPRESSION) as process:
        _, errors = process.communicate()
    assert process.returncode == -9, errors
    return runs


@pytest.fixture
def killed(_killed_once: Path, config: Config) -> Path:
    """The folder of ``config``'s run, which was killed in the middle of step 2."""
    return Path(shutil.copytree(_killed_once, config.place.runs)) / RUN


def test_a_killed_step_goes_on_from_its_checkpoint(
    config: Config, killed: Path, uninterrupted: Path, run_all: RunAll, results: Results
) -> None:
    assert not list(killed.rglob("step01/checkpoint*")), "a stored step needs none"
    assert load_file(killed / "step02" / "checkpoint.safetensors")["position"].tolist() == [1, 1]
    events = run_all(config)
    first = events[0]
    assert isinstance(first, Training)
    assert (first.step, first.progress.stage) == (2, "compress")
    assert (first.progress.epoch, first.progress.iteration) == (2, 1)
    assert isinstance(events[-1], Finished)
    assert list(killed.rglob("checkpoint*")) == []
    assert results(killed.parents[3]) == results(uninterrupted)


@pytest.mark.parametrize(
    ("said", "counted"), [("5000.5", True), ("x", False), ("nan", False), ("-5000", False)]
)
def test_what_the_checkpoint_took_is_counted(
    config: Config, killed: Path, run_all: RunAll, said: str, counted: bool
) -> None:
    path = killed / "step02" / "checkpoint.safetensors"
    written = metadata(path)
    assert written
    assert float(written["seconds"]) > 0
    write_tensors(path, load_file(path), written | {"seconds": said})
    run_all(config)
    took = json.loads((killed / "step02" / "step.json").read_text())["seconds"]["training"]
    assert 0 < took - 5000.5 * counted < 1000


def test_checkpoints_change_nothing_and_are_gone_at_the_end(
    config: Config, uninterrupted: Path, results: Results
) -> None:
    runs, present = Path(config.place.runs), set()
    for event in opencil.execute(config):
        if isinstance(event, Training):
            present |= {path.parent.name for path in runs.rglob("checkpoint.safetensors")}
    assert present == {"step01", "step02"}
    assert results(runs) == results(uninterrupted)


@pytest.mark.parametrize("leave", [Generator.close, lambda events: events.throw(KeyboardInterrupt)])
def test_whoever_leaves_in_the_middle_loses_less_than_an_epoch(
    leave: Callable[[Generator[Event]], object],
    uninterrupted: Path,
    tiny: Make,
    tmp_path: Path,
    results: Results,
    run_all: RunAll,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last epoch's end is stored, though the time for a checkpoint has not come."""
    monkeypatch.setattr(checkpoints, "KEPT_EVERY", 0.0)
    config = tiny(tmp_path, *SETTINGS, "place.checkpoint_seconds=1000000", cil="foster", detector="msp")
    middle, place = opencil.execute(config), ("compress", 2, 2)
    for event in middle:
        if isinstance(event, Training) and event.step == 2:
            p = event.progress
            if (p.stage, p.epoch, p.iteration) == place:
                break
    with suppress(KeyboardInterrupt):
        leave(middle)
    path = tmp_path / RUN / "step02" / "checkpoint.safetensors"
    assert load_file(path)["position"].tolist() == [1, 1]
    first = (events := run_all(config))[0]
    assert isinstance(first, Training)
    assert (first.step, first.progress.stage, first.progress.epoch) == (2, "compress", 2)
    assert isinstance(events[-1], Finished)
    assert results(tmp_path) == results(uninterrupted)


def test_whoever_leaves_a_full_disk_leaves_it(
    tiny: Make, tmp_path: Path, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "KEPT_EVERY", 0.0)
    config = tiny(tmp_path, "benchmark.classes_per_step=8", detector="msp")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    events = opencil.execute(config)
    while not next(events).progress.epoch_ends:  # type: ignore[attr-defined]
        pass
    with monkeypatch.context() as patched:
        patched.setattr("opencil.runs.store.write_weights", full)
        events.close()
    assert isinstance(run_all(config)[-1], Finished)


def test_none_is_taken_before_its_time(tiny: Make, tmp_path: Path) -> None:
    settings = ["benchmark.classes_per_step=8", "cil.icarl.epochs=1"]
    for _ in opencil.execute(tiny(tmp_path, *settings, detector="msp")):  # 60 seconds apart
        assert list(tmp_path.rglob("checkpoint.safetensors")) == []


def test_killed_between_storing_a_step_and_deleting_its_checkpoint(
    config: Config,
    uninterrupted: Path,
    run_all: RunAll,
    results: Results,
) -> None:
    with forks.code(config, KILLED_BEFORE_THE_CHECKPOINT_IS_DELETED) as process:
        _, errors = process.communicate()
    assert process.returncode == -9, errors
    assert isinstance(run_all(config)[-1], Finished)
    assert results(Path(config.place.runs)) == results(uninterrupted)


@pytest.mark.parametrize("damage", ["junk", "a bit", "other tensors", "other weights", "another training's"])
def test_a_damaged_checkpoint_is_named_and_the_step_begins_anew(
    config: Config,
    killed: Path,
    uninterrupted: Path,
    run_all: RunAll,
    results: Results,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = killed / "step02" / "checkpoint.safetensors"
    tensors = load_file(path)
    if damage == "junk":
        path.write_bytes(b"junk")
    elif damage == "a bit":
        flip(path, 8 * path.stat().st_size - 1)
    elif damage == "other tensors":
        save_file({"other": tensors["position"]}, path)
    elif damage == "other weights":
        save_file({name: t for name, t in tensors.items() if not name.startswith("model.student")}, path)
    else:
        write_tensors(path, tensors, (metadata(path) or {}) | {"made_of": "what it was"})
    broken = path.read_bytes()
    events = run_all(config)
    assert isinstance(events[0], Training)
    assert (events[0].step, events[0].progress.stage_number, events[0].progress.epoch) == (2, 0, 1)
    assert str(path) in caplog.text
    kept = path.with_name("checkpoint.safetensors.damaged")
    assert kept.read_bytes() == broken
    kept.unlink()
    assert results(killed.parents[3]) == results(uninterrupted)


def test_weights_that_are_not_finite_never_replace_a_good_checkpoint(
    tiny: Make, run_all: RunAll, results: Results, tmp_path: Path
) -> None:
    """The last update of epoch 2 spoils them while the loss is still a number, so nothing has failed yet."""
    spoilt: list[bool] = []

    @opencil.register_learner("spoilt")
    @dataclass(frozen=True)
    class Spoilt(Learner):
        """Cross-entropy, and where asked for a 0 whose gradient is not finite."""

        schedule: Schedule = Schedule(epochs=3, lr=0.01)

        def stages(self, task: Task) -> Iterator[Stage]:
            def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
                nothing = 0 * task.model.head.weight.sum()
                return F.cross_entropy(task.model(images), labels) + (nothing.sqrt() if spoilt else nothing)

            yield Stage("train", task.model, loss, self.schedule, task.train_plus)

    def config(name: str) -> Config:
        settings = ["benchmark.classes_per_step=8", "benchmark.batch_size=10000", "cil.spoilt.epochs=3"]
        return tiny(tmp_path / name, *settings, "place.checkpoint_seconds=0", cil="spoilt", detector="msp")

    epochs = []
    for event in opencil.execute(config("spoilt")):
        if isinstance(event, Training):
            epochs.append(event.progress.epoch)
            spoilt.append(True)
    assert isinstance(event, Failed)
    assert epochs == [1, 2], "the loss shows it in epoch 3"
    stored = load_file(tmp_path / "spoilt/digits/k8/spoilt/seed0/step01/checkpoint.safetensors")
    assert stored["position"].tolist() == [0, 1]
    assert all(torch.isfinite(tensor).all() for tensor in stored.values())
    spoilt.clear()
    again = run_all(config("spoilt"))
    assert isinstance(again[0], Training)
    assert again[0].progress.epoch == 2
    assert isinstance(run_all(config("whole"))[-1], Finished)
    assert results(tmp_path / "spoilt") == results(tmp_path / "whole")
