"""What a folder of runs holds: states, what is wrong, and what can go, never of a run that is written."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opencil.atomic_files import write_text
from opencil.config import Config
from opencil.disk import DiskError
from opencil.locks import Lock
from opencil.runs import file_formats, inventory
from opencil.runs.events import Event, Failed, Finished
from opencil.runs.inventory import age, entry, held, is_held, leftovers, remarks, runs_below, useless_outputs
from opencil.runs.reading import read_study
from opencil.runs.store import RunFolder, read_rows
from opencil.seals import read_json, write_json

Make = Callable[..., Config]
RUN = "digits/k2/icarl/seed0"


@pytest.fixture
def run(finished: Path) -> RunFolder:
    return RunFolder(finished / RUN)


def flip(path: Path, at: int = -20) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def bad(folder: RunFolder) -> list[str]:
    return [remark.problem for remark in remarks(folder) if remark.bad]


def going(folder: RunFolder) -> dict[str, str]:
    return {one.path.relative_to(folder.path).as_posix(): one.why for one in leftovers(folder)}


# --- states ----------------------------------------------------------------------------------------


def test_a_finished_run_has_its_size_and_age(run: RunFolder) -> None:
    found = entry(run)
    assert (found.state, found.detail, found.foreign) == ("finished", "4 of 4 steps", False)
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert found.size == sum(path.stat().st_size for path in files)
    assert found.written == max(path.stat().st_mtime for path in files)


def test_states_say_how_far_a_run_is(run: RunFolder) -> None:
    run.step(3).detector_rows("msp").unlink()
    assert (entry(run).state, entry(run).detail) == ("unfinished", "4 of 4 steps, rows missing of msp")
    shutil.rmtree(run.step(4).path)
    (run.step(3).path / "step.json").unlink()
    assert (entry(run).state, entry(run).detail) == ("unfinished", "2 of 4 steps, at step 3")
    errors = {
        "Traceback (most recent call last):\n  File a\nValueError: no\n": "ValueError: no",
        "ICaRL, step 3: the loss is nan\n": "ICaRL, step 3: the loss is nan",
    }
    for text, why in errors.items():
        run.error.write_text(text)
        assert (entry(run).state, entry(run).detail) == ("failed", f"2 of 4 steps: {why}")
    lock = Lock(run.path / ".held")
    with lock:
        assert entry(run).state == "running"
    flip(run.step(1).path / "step.json", 30)
    found = entry(run)
    assert found.state == "damaged"
    assert found.detail.startswith(f"step01{os.sep}step.json cannot be used (")
    assert found.detail.endswith(")")


def test_a_run_that_was_only_announced_waits(tiny: Make, tmp_path: Path) -> None:
    from opencil.runs.plan import plan

    (spec,) = plan(tiny(tmp_path))
    folder = RunFolder(tmp_path / spec.folder)
    folder.announce(spec, {"device": "cpu"})
    assert (entry(folder).state, entry(folder).detail) == ("waiting", "nothing is done yet")
    assert runs_below(tmp_path, tmp_path / "digits") == [folder]
    assert not (folder.path / ".held").exists(), "looking leaves nothing behind"


def test_a_run_is_held_by_whoever_writes_it(run: RunFolder) -> None:
    assert not is_held(run)
    with held(run) as free:
        assert free
        assert is_held(run)
        with held(run) as second:
            assert not second
    assert not is_held(run)


def test_ages_are_told_in_words() -> None:
    now = time.time()
    told = {5: "just now", 65: "1 minute ago", 7300: "2 hours ago", 90_000: "1 day ago", -50: "just now"}
    assert {seconds: age(now - seconds) for seconds in told} == told


# --- what is wrong ---------------------------------------------------------------------------------


def test_a_whole_run_has_nothing_wrong_and_nothing_to_go(run: RunFolder) -> None:
    assert remarks(run) == []
    assert leftovers(run) == []


def test_damage_is_wrong_and_leftovers_are_only_noted(run: RunFolder) -> None:
    flip(run.step(2).detector_rows("energy"), 100)
    (run.step(1).path / "a.part").write_text("half")
    shutil.copy(run.step(1).model, run.step(1).checkpoint)
    found = remarks(run)
    assert [remark.path.name for remark in found if remark.bad] == ["energy.parquet"]
    assert {remark.path.name for remark in found if not remark.bad} == {"a.part", "checkpoint.safetensors"}


def test_missing_and_misplaced_steps_are_wrong(run: RunFolder) -> None:
    shutil.rmtree(run.step(2).path)
    (wrong,) = bad(run)
    assert wrong.startswith(f"{run.step(2).path / 'step.json'} is missing, though rows or later steps")
    shutil.copytree(run.step(1).path, run.step(2).path)
    (wrong,) = bad(run)
    assert wrong.startswith(f"{run.step(2).path / 'step.json'} cannot be used")
    shutil.rmtree(run.step(2).path)
    info = read_json(run.step(4).path / "step.json", file_formats.damaged)
    write_json(run.step(4).path / "step.json", info | {"steps": 3})
    told = bad(run)
    assert f"{run.step(4).path} is of no use: there are 3 steps" in told
    assert f"the steps in {run.path} differ in how many there are" in told


def test_a_step_of_the_same_run_under_other_values_is_wrong(
    run: RunFolder, tmp_path: Path, tiny: Make, run_all: Callable[[Config], list[Event]]
) -> None:
    other, gentle = tmp_path / "other", "cil.icarl.first.lr=0.01"
    assert isinstance(run_all(tiny(other, gentle, detector="msp"))[-1], Finished)
    reason = "step.json cannot be used (it was trained with cil.icarl.first.lr = 0.01, not 0.1)"

    def reported() -> list[str]:
        return [name for name, why in read_study(run.path).runs[0]["left_out"].items() if "lr = " in why]

    for number, told in {1: [2], 2: [2, 3], 4: [4]}.items():
        own, kept = run.step(number).path, tmp_path / "kept"
        own.rename(kept)
        shutil.copytree(RunFolder(other / RUN).step(number).path, own)
        wrong = [text for text in bad(run) if "was trained after another model" in text]
        assert [text.split(" was ")[0] for text in wrong] == [str(run.step(n).path) for n in told]
        assert [text for text in bad(run) if reason in text]
        assert reported() == [f"step{number:02}/step.json"]
        failed = run_all(tiny(run.path.parents[3], detector="msp"))[-1]
        assert isinstance(failed, Failed)
        assert reason in str(failed.error)
        shutil.rmtree(own)
        kept.rename(own)
    assert bad(run) == []
    shutil.copy(other / RUN / "config.yml", run.config)
    assert reported() == [f"step{number:02}/step.json" for number in (1, 2, 3, 4)]
    failed = run_all(tiny(run.path.parents[3], gentle, detector="msp"))[-1]
    assert isinstance(failed, Failed)
    assert "it was trained with cil.icarl.first.lr = 0.1, not 0.01" in str(failed.error)


def test_a_last_step_that_lost_its_notes_is_wrong(run: RunFolder) -> None:
    (run.step(4).path / "step.json").unlink()
    (wrong,) = bad(run)
    assert wrong.startswith(f"{run.step(4).path / 'step.json'} is missing, though rows")


def test_a_run_in_the_place_of_another_is_wrong(run: RunFolder) -> None:
    other = RunFolder(run.path.with_name("seed7"))
    shutil.copytree(run.path, other.path)
    assert bad(other) == [f"{other.path} is run {RUN}, in the place of digits/k2/icarl/seed7"]
    elsewhere = RunFolder(run.path.parents[3] / "mine")
    shutil.copytree(run.path, elsewhere.path)
    assert bad(elsewhere) == [], "a folder of any name may hold a run"


def test_what_is_not_there_is_noted(run: RunFolder) -> None:
    run.step(3).detector_rows("msp").unlink()
    (run.path / "environment.json").unlink()
    assert [(remark.problem, remark.bad) for remark in remarks(run)] == [
        (f"{run.path} is unfinished: 4 of 4 steps, rows missing of msp", False),
        (f"{run.path / 'environment.json'} is missing: what it noted of the run is not known", False),
    ]


def test_a_run_that_was_moved_and_linked_to_is_found_once(
    run: RunFolder, finished: Path, tmp_path: Path
) -> None:
    size, moved = entry(run).size, tmp_path / "other disk"
    (run.path.parent / "latest").symlink_to(run.path)
    (run.path / "loop").symlink_to(finished)
    assert runs_below(finished) == [run], "by its own name"
    (run.path.parent / "latest").unlink()
    (run.path / "loop").unlink()
    run.path.rename(moved)
    run.path.symlink_to(moved)
    assert runs_below(finished) == [run]
    assert entry(run).size == size
    assert len(read_rows(finished))


def test_newer_versions_and_missing_plugins_are_noted(run: RunFolder) -> None:
    path = run.path / "environment.json"
    write_json(path, read_json(path, file_formats.damaged) | {"opencil": "99.1"})
    (remark,) = remarks(run)
    assert "was last written by opencil 99.1, which is newer" in remark.problem
    assert not remark.bad


def test_files_from_before_checksums_are_counted(run: RunFolder) -> None:
    path = run.path / "data.json"
    content = {k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k != "seal"}
    path.write_text(json.dumps(content), encoding="utf-8")
    (remark,) = remarks(run)
    assert remark.problem.startswith("a file is from before files had checksums")
    assert not remark.bad


# --- what can go -----------------------------------------------------------------------------------


def test_what_goes_is_computed_again(
    run: RunFolder,
    finished: Path,
    tiny: Make,
    run_all: Callable[[Config], list[Event]],
    results: Callable[[Path], dict[str, object]],
) -> None:
    whole = results(run.path)
    flip(run.step(2).detector_rows("energy"), 100)
    flip(run.step(4).memory_file)
    (run.step(3).path / "a.part").write_text("half")
    shutil.copy(run.step(1).model, run.step(1).checkpoint)
    write_text(run.step(3).path / f"x.parquet{file_formats.SET_ASIDE}", "damaged once")
    assert going(run) == {
        "step01/checkpoint.safetensors": "is a checkpoint of a training that is done",
        "step02/detectors/energy.parquet": "is damaged: it is computed again",
        "step03/a.part": "is half-written: its writer was stopped",
        "step03/x.parquet.damaged": "was damaged, and what it was for has been computed again",
        "step04": "goes with memory.safetensors, which is damaged: it is computed again",
    }
    for one in leftovers(run):
        assert one.size > 0
        one.remove()
    assert leftovers(run) == []
    assert isinstance(run_all(tiny(finished))[-1], Finished)
    assert bad(run) == []
    assert results(run.path) == whole


def test_a_step_stays_whose_model_refers_to_a_damaged_one(run: RunFolder) -> None:
    for number in (1, 2, 3, 4):
        if "step01" in str(file_formats.metadata(run.step(number).model)):
            break
    flip(run.step(1).model)
    assert set(going(run)) == {"step01"}


def test_a_head_that_is_gone_is_wrong_and_its_rows_go(run: RunFolder) -> None:
    for number in (1, 2):  # energy has none: any tensors do
        head = run.step(number).head("energy")
        head.parent.mkdir()
        shutil.copy(run.step(number).memory_file, head)
    run.step(3).detector_rows("energy").unlink()  # without rows nothing says that there was a head
    run.step(4).detector_rows("energy").unlink()
    assert bad(run) == []
    run.step(2).head("energy").unlink()
    (wrong,) = bad(run)
    assert wrong.startswith(f"{run.step(2).head('energy')} cannot be used (it is missing): delete it and ")
    assert going(run)["step02/detectors/energy.parquet"].startswith(
        "goes with energy.safetensors, which is m"
    )


def test_a_head_goes_with_its_rows(run: RunFolder) -> None:
    head = run.step(1).head("energy")  # energy has none: any tensors do
    head.parent.mkdir()
    shutil.copy(run.step(1).memory_file, head)
    for number in (2, 3, 4):
        run.step(number).detector_rows("energy").unlink()  # of which it would have to have a head too
    checkpoint = run.step(1).head_checkpoint("energy")
    shutil.copy(run.step(1).memory_file, checkpoint)
    assert going(run) == {
        "step01/heads/energy.checkpoint.safetensors": "is a checkpoint of a tuning that is done"
    }
    flip(head)
    assert "step01/heads/energy.safetensors" in going(run)
    assert going(run)["step01/detectors/energy.parquet"].startswith("goes with energy.safetensors")


def test_nothing_damaged_goes_of_a_run_whose_config_is(run: RunFolder) -> None:
    flip(run.step(4).memory_file)
    flip(run.config, 200)
    (run.path / "a.part").write_text("half")
    assert set(going(run)) == {"a.part"}


def test_what_a_disk_does_not_give_stays(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == run.step(2).memory_file:
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    assert any("the disk fails" in problem for problem in bad(run))
    assert leftovers(run) == []
    with pytest.raises(DiskError):
        file_formats.read_tensors(run.step(2).memory_file)


def test_useless_outputs_go(finished: Path) -> None:
    folder = finished / ".outputs"
    entries = sorted(folder.glob("*.safetensors"))
    assert entries
    flip(entries[0])
    (folder / "a.part").write_text("half")
    with useless_outputs(folder) as found:
        assert {one.path.name for one in found} == {entries[0].name, "a.part"}
    with useless_outputs(finished / "nowhere") as found:
        assert found == []
    assert inventory.runs_below(finished) == [RunFolder(finished / RUN)]


def test_outputs_that_somebody_holds_are_left_alone(finished: Path) -> None:
    folder = finished / ".outputs"
    flip(next(folder.glob("*.safetensors")))
    with Lock(folder / ".held"), useless_outputs(folder) as going:
        assert going == []
    with useless_outputs(folder) as going:
        assert len(going) == 1


def test_a_copy_of_a_step_is_no_step(run: RunFolder, finished: Path) -> None:
    """Somebody keeps one beside the run: it is nobody's matter."""
    before = read_rows(finished)
    shutil.copytree(run.step(1).path, run.path / "step01.bak")
    shutil.copytree(run.step(1).path, run.path / "step1")
    assert bad(run) == []
    assert going(run) == {}
    assert entry(run).detail == "4 of 4 steps"
    assert read_rows(finished).equals(before)


def test_a_run_that_has_lost_its_config_is_wrong(run: RunFolder) -> None:
    run.config.unlink()
    assert [problem for problem in bad(run) if "config.yml is missing" in problem]
    assert (entry(run).state, entry(run).detail) == ("damaged", "config.yml is missing")
    assert going(run) == {}


def test_a_model_from_elsewhere_stays(run: RunFolder) -> None:
    """Nobody here could train it again; its rows are measured again."""
    flip(run.step(2).memory_file)
    flip(run.step(2).detector_rows("msp"), 100)
    run._write_config(run.stored() | {"foreign": True})
    assert list(going(run)) == ["step02/detectors/msp.parquet"]


def test_files_may_go_while_a_run_is_looked_at(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    part = run.path / "step.json.part"
    part.touch()
    is_file = Path.is_file

    def vanishing(path: Path) -> bool:
        found = is_file(path)
        if path == part:
            part.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "is_file", vanishing)
    assert entry(run).state == "finished"


def test_a_step_that_cannot_be_looked_into_is_wrong_and_stays(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only told: root may look into everything."""
    closed, access = run.step(2).path, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    assert bad(run) == [f"{closed} cannot be looked into: its permissions do not allow it"]
    assert going(run) == {}
