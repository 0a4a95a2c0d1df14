"""Stored runs as files: their states, what is wrong with them, and what can be deleted."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opencil
from opencil.config import Config
from opencil.files import DiskError, write_checked
from opencil.runs.events import Event, Finished
from opencil.runs.inventory import check_files, damages, entry, leftovers, measure_size, remove
from opencil.runs.spec import plan
from opencil.runs.store import RunFolder, find_runs
from tests.stored import edit_config, edit_json, flip, results

Make = Callable[..., Config]
RUN = "digits/k4/icarl/seed0"


@pytest.fixture
def run(done: Path) -> RunFolder:
    return RunFolder(done / RUN)


def state(folder: RunFolder) -> tuple[str, str]:
    return entry(folder).state, entry(folder).detail


def problems(folder: RunFolder, bad: bool = True) -> set[str]:
    """Return the paths in a run at the start of the sentences on damage, or of other remarks."""
    paths = [Path(sentence.split()[0]) for sentence in check_files(folder)[0 if bad else 1]]
    return {path.relative_to(folder.path).as_posix() for path in paths}


def going(folder: RunFolder) -> set[str]:
    return {path.relative_to(folder.path).as_posix() for path in leftovers(folder)}


# --- states ----------------------------------------------------------------------------------------


def test_a_finished_run(run: RunFolder) -> None:
    found = entry(run)
    assert (found.state, found.detail) == ("finished", "2 of 2 steps")
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert found.size == sum(path.stat().st_size for path in files)
    assert found.written == max(path.stat().st_mtime for path in files)
    assert check_files(run) == ([], [])
    assert leftovers(run) == {}


def test_states(run: RunFolder) -> None:
    edit_json(run.step(2).record, lambda info: info["rows"].pop("msp"))
    assert state(run) == ("unfinished", "2 of 2 steps, rows missing of msp")
    run.step(2).record.unlink()
    assert state(run) == ("unfinished", "1 of 2 steps, at step 2")
    run.error.write_text("ICaRL, step 3: the loss is nan\n")
    assert state(run) == ("failed", "1 of 2 steps: ICaRL, step 3: the loss is nan")
    with run.lock():
        assert state(run)[0] == "running"
    flip(run.step(1).record, 30)
    assert state(run)[0] == "damaged"
    run.config.unlink()
    assert state(run)[0] == "damaged"


def test_a_run_that_was_only_announced_waits(short: Make, tmp_path: Path) -> None:
    (spec,) = plan(short(tmp_path))
    folder = RunFolder(tmp_path / spec.folder)
    folder.announce(spec)
    assert state(folder)[0] == "waiting"
    assert find_runs(tmp_path) == [folder]


# --- what is wrong ---------------------------------------------------------------------------------


def test_damage_is_bad_and_leftovers_are_not(run: RunFolder) -> None:
    flip(run.step(2).path / "detectors/msp.parquet")
    (run.step(1).path / "a.part").write_text("half")
    write_checked(run.step(1).checkpoint(), b"")
    assert problems(run) == {"step02/detectors/msp.parquet"}
    assert problems(run, bad=False) == {"step01/a.part", "step01/checkpoint"}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda run: run.step(1).record.unlink(), {"step01/step.json"}),
        (lambda run: run.step(2).record.unlink(), {"step02/step.json"}),
        (lambda run: shutil.copy(run.step(1).record, run.step(2).record), {"step02/step.json"}),
        (lambda run: edit_json(run.step(2).record, lambda i: i.update(previous="0")), {"step02/step.json"}),
        (lambda run: edit_json(run.step(1).record, lambda i: i.update(training="0")), {"step01/step.json"}),
        (
            lambda run: edit_json(run.environment, lambda i: i.update(run="a/k2/b/seed0")),
            {"environment.json"},
        ),
        (lambda run: run.config.unlink(), {"config.yml"}),
        (lambda run: flip(run.config), {"config.yml"}),
        (
            lambda run: edit_config(run.config, "memory: 80", "memory: 40"),
            {"step01/step.json", "step02/step.json"},
        ),
        (
            lambda run: edit_config(run.config, "power: 1.0", "power: 2.0"),
            {"step01/detectors/relation.parquet", "step02/detectors/relation.parquet"},
        ),
    ],
)
def test_files_that_do_not_fit_together_are_bad(
    run: RunFolder, change: Callable[[RunFolder], Any], wrong: set[str]
) -> None:
    change(run)
    assert problems(run) == wrong


def test_a_run_in_the_place_of_another_is_bad(run: RunFolder) -> None:
    other = RunFolder(run.path.with_name("seed7"))
    shutil.copytree(run.path, other.path)
    assert problems(other) == {"."}
    elsewhere = RunFolder(run.path.parents[3] / "mine")
    shutil.copytree(run.path, elsewhere.path)
    assert problems(elsewhere) == set(), "a folder of any name may hold a run"


# --- what can go -----------------------------------------------------------------------------------


def test_what_goes_is_computed_again(
    run: RunFolder, done: Path, short: Make, run_all: Callable[[Config], list[Event]]
) -> None:
    whole = results(run.path / "step02")
    flip(run.step(1).path / "detectors/msp.parquet")
    flip(run.step(2).path / "memory.safetensors")
    (run.step(1).path / "a.part").write_text("half")
    write_checked(run.step(1).checkpoint(), b"")
    write_checked(run.step(1).checkpoint("ber"), b"")
    kept = {"step01/checkpoint", "step01/heads/ber.checkpoint", "step01/a.part"}
    assert going(run) == {"step01/detectors/msp.parquet", "step02", *kept}
    for path in leftovers(run):
        assert measure_size(path) > 0
        remove(path)
    assert isinstance(run_all(short(done))[-1], Finished)
    assert check_files(run) == ([], [])
    assert results(run.path / "step02") == whole


def test_files_that_cannot_be_computed_again_stay(run: RunFolder, done: Path) -> None:
    flip(run.step(2).path / "memory.safetensors")
    edit_config(run.config, "detector:", "foreign: true\ndetector:")
    assert damages(run)
    assert "step02" not in going(run)
    run.config.unlink()
    assert going(run) == set()


@pytest.mark.parametrize("file", [True, False])
def test_a_step_folder_that_cannot_be_read(done: Path, monkeypatch: pytest.MonkeyPatch, file: bool) -> None:
    """A file in its place, or a folder of mode 000."""
    step, exists = done / RUN / "step02", Path.exists
    shutil.rmtree(step)
    if file:
        step.write_text("")
        assert entry(RunFolder(done / RUN)).state == "unfinished"
        return

    def refuse(path: Path) -> bool:
        if path.parent == step:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return exists(path)

    step.mkdir()
    monkeypatch.setattr(Path, "exists", refuse)
    assert entry(RunFolder(done / RUN)).state == "damaged"
    assert damages(RunFolder(done / RUN))
    with pytest.raises(DiskError, match=r"step.json cannot be read"):
        opencil.open_run(done / RUN)
