"""Folders of runs as a study: what is there, what is damaged or missing, and what is left out."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

import opencil
from opencil import BadInput, OpenCILError
from opencil.config import Config
from opencil.files import Damaged, checksum, read_json
from opencil.runs.events import Event, Failed, Finished
from opencil.runs.inventory import damages
from opencil.runs.provenance import source_digest
from opencil.runs.reading import read_study, study_so_far
from opencil.runs.store import RunFolder
from tests.stored import contents, edit_config, edit_json

Make = Callable[..., Config]
RUN = Path("digits/k4/icarl/seed0")
EVERY = {"msp": 2, "relation": 2, "ber": 2}


def junk(path: Path) -> None:
    path.write_bytes(b"junk")


def only(study: opencil.Study) -> Any:
    (run,) = study.runs
    return run


@pytest.fixture
def with_broken(done: Path) -> Path:
    """A folder of runs, one whole and one whose config is damaged."""
    broken = done / RUN.with_name("seed1")
    shutil.copytree(done / RUN, broken)
    junk(broken / "config.yml")
    return done


# --- what is there ---------------------------------------------------------------------------------


def test_a_finished_run(done_once: Path) -> None:
    study = read_study(done_once)
    pd.testing.assert_frame_equal(study.rows, opencil.read_rows(done_once))
    run = only(study)
    assert [run[key] for key in ("benchmark", "k", "cil", "seed")] == ["digits", 4, "icarl", 0]
    assert (run["trained"], run["steps"], run["detectors"]) == (2, 2, EVERY)
    assert [set(seconds) for seconds in run["seconds"]] == [{"training", "tuning", "evaluation"}] * 2
    assert run["environment"]["opencil"] == opencil.__version__
    assert not {"command", "run", "datasets"} & set(run["environment"]), "studies are published"
    assert {(d["name"], d["role"], d["split"]): d["images"] for d in run["data"]} == {
        ("digits", "ID", "train"): 965,
        ("digits", "ID", "test"): 478,
        ("noise", "far", "test"): 500,
    }
    assert study.finished
    assert study.problems == []


def test_bytes_are_those_of_models_and_exemplars(done_once: Path) -> None:
    run, rows = opencil.open_run(done_once / RUN), read_study(done_once).rows
    found = rows[rows["metric"].isin(["memory_bytes", "model_bytes"])].set_index(["metric", "step"])["value"]
    for step in (1, 2):
        tensors = run.model(step).state_dict().values()
        assert found["model_bytes", step] == sum(t.numel() * t.element_size() for t in tensors)
        assert found["memory_bytes", step] == 80 * 3 * 8 * 8


def test_the_makers_of_rows(done: Path) -> None:
    (made,) = only(read_study(done))["made"]
    every = {name: [1, 2] for name in ("", *EVERY)}
    assert made["steps"] == every
    assert (made["source"], made["device"], made["precision"]) == (source_digest(), "cpu", "fp32")
    times = ["2999-01-01T00:00:00+00:00", "1999-01-01T00:00:00+00:00"]  # step 1 was measured again
    for step, time in zip(("step01", "step02"), times, strict=True):
        edit_json(
            done / RUN / step / "step.json",
            lambda info, time=time: info["rows"]["msp"]["made"][0].update(time=time),
        )
    (made,) = only(read_study(done))["made"]
    assert [made["last"], made["first"]] == times
    edit_json(
        done / RUN / "step02/step.json", lambda info: info["rows"]["msp"]["made"][0].update(source="another")
    )
    found = {made["source"]: made["steps"] for made in only(read_study(done))["made"]}
    assert found == {source_digest(): every | {"msp": [1]}, "another": {"msp": [2]}}


def test_an_unfinished_run(done: Path) -> None:
    shutil.rmtree(done / RUN / "step02")
    edit_json(done / RUN / "step01/step.json", lambda info: info["rows"].pop("msp"))
    study = read_study(done)
    run = only(study)
    assert (run["trained"], run["steps"], run["detectors"]) == (1, 2, {"msp": 0, "relation": 1, "ber": 1})
    assert not study.finished


def test_a_run_that_has_only_begun(done: Path) -> None:
    for step in (done / RUN).glob("step*"):
        shutil.rmtree(step)
    study = read_study(done)
    run = only(study)
    assert (run["trained"], run["steps"], run["detectors"]) == (0, 2, dict.fromkeys(EVERY, 0))
    assert study.rows.empty
    edit_config(done / RUN / "config.yml", "id: digits\n", "id: mine\n")
    assert only(read_study(done))["steps"] is None, "the dataset is not known here"


def test_a_run_that_failed(done: Path) -> None:
    text = "RuntimeError: out of \x1b[31mluck\nTraceback (most recent call last):\n  File x\n"
    (done / RUN / "error.txt").write_text(text, encoding="utf-8")
    study = read_study(done)
    assert only(study)["failed"] == r"RuntimeError: out of \x1b[31mluck"
    assert study.problems == []


def test_several_folders(done: Path, tmp_path: Path, short: Make) -> None:
    opencil.run(short(tmp_path / "other", seed=5, detector="msp"))
    study = read_study(done, tmp_path / "other")
    assert [run["seed"] for run in study.runs] == [0, 5]
    assert len(study.rows) == len(read_study(done).rows) + len(read_study(tmp_path / "other").rows)
    shutil.copytree(done / RUN, done / "copy")
    with pytest.raises(BadInput, match="2 times"):
        read_study(done)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runs below"):
        read_study(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        read_study(tmp_path / "absent")


def test_a_study_so_far_has_the_chosen_detectors(done: Path, tmp_path: Path) -> None:
    study = study_so_far([done / RUN, tmp_path / "to come"], ["msp"])
    assert set(study.rows["detector"]) == {"", "msp"}
    assert only(study)["detectors"] == {"msp": 2}
    assert study.finished


# --- what is damaged or missing --------------------------------------------------------------------


@pytest.mark.parametrize("damage", [junk, Path.unlink])
@pytest.mark.parametrize(
    ("file", "trained", "detectors", "rows"),
    [
        ("step01/step.json", 1, dict.fromkeys(EVERY, 1), "step != 1"),
        ("step02/step.json", 1, dict.fromkeys(EVERY, 1), "step != 2"),
        ("step02/model.parquet", 2, {}, "step != 2 or detector != ''"),
        ("step01/detectors/msp.parquet", 2, {"msp": 1}, "step != 1 or detector != 'msp'"),
        ("environment.json", 2, {}, "step > 0"),
    ],
)
def test_a_damaged_or_missing_file_is_left_out_and_named(
    done: Path,
    damage: Callable[[Path], object],
    file: str,
    trained: int,
    detectors: dict[str, int],
    rows: str,
) -> None:
    before = read_study(done).rows
    damage(done / RUN / file)
    study = read_study(done)
    run = only(study)
    assert (run["trained"], run["detectors"]) == (trained, EVERY | detectors)
    pd.testing.assert_frame_equal(study.rows, before.query(rows).reset_index(drop=True))
    assert list(run["left_out"]) == [file]
    (sentence,) = study.problems
    assert sentence.startswith(f"{RUN}: {file} ")
    assert str(done) not in sentence, "studies are published without paths"


def test_values_that_cannot_be_shown_leave_a_run_out(done: Path) -> None:
    edit_json(done / RUN / "environment.json", lambda content: content.update(torch="\x1b[2J"))
    with pytest.raises(OpenCILError, match="control characters") as raised:
        read_study(done)
    assert str(raised.value).isprintable()


def test_runs_that_cannot_be_read_leave_the_others(
    with_broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, scan, link = (
        with_broken / RUN.with_name("seed1"),
        os.scandir,
        with_broken / RUN.with_name("seed2"),
    )
    link.symlink_to(with_broken / "unmounted")
    (loop := with_broken / "loop").symlink_to(loop)
    assert str(loop) in read_study(with_broken).left_out
    loop.unlink()
    study = read_study(with_broken)
    assert [run["seed"] for run in study.runs] == [0]
    assert set(study.left_out) == {"digits/k4/icarl/seed1", str(link)}
    assert study_so_far([with_broken / RUN, closed], ["msp"]).problems

    def scandir(path: Any = ".") -> Any:
        if Path(os.fspath(path)) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "Permission denied" in read_study(with_broken).left_out["digits/k4/icarl/seed1"]


def test_where_nothing_is_left_it_is_an_error(with_broken: Path) -> None:
    shutil.rmtree(with_broken / RUN)
    with pytest.raises(OpenCILError, match=r"^digits/k4/icarl/seed1: .*config\.yml"):
        read_study(with_broken)


@pytest.mark.parametrize("number", [1, 2])
def test_a_step_of_another_training_is_noticed(
    done: Path, short: Make, run_all: Callable[[Config], list[Event]], number: int
) -> None:
    """A step folder from a run under the same config, whose training had other bits."""
    step = done / RUN / f"step{number:02d}"
    if number == 1:
        weights = step / "model.safetensors"
        save_file({name: tensor * 1.5 for name, tensor in load_file(weights).items()}, weights)
        edit_json(
            step / "step.json",
            lambda info: info["files"].update({weights.name: checksum(weights.read_bytes())}),
        )
    else:
        edit_json(step / "step.json", lambda info: info.update(previous="another"))
    assert any("step02/step.json" in problem for problem in opencil.read_study(done).problems)
    assert done / RUN / "step02/step.json" in damages(RunFolder(done / RUN))
    with pytest.raises(Damaged, match=r"step02.step\.json"):
        opencil.open_run(done / RUN)
    *_, last = run_all(short(done))
    assert isinstance(last, Failed)
    assert "step02" in str(last.error)


def copy_rows(source: Path, target: Path, record: bool) -> Path:
    """Copy rows of msp, made under other values; with ``record``, with all that step.json says of them."""
    name = "detectors/msp.parquet"
    shutil.copy(source / name, target / name)
    if record:
        shutil.copy(source / "step.json", target / "step.json")
    return target / name


def copy_head(source: Path, target: Path, record: bool) -> Path:
    """Copy a head that was tuned with other values; with ``record``, with its checksum and digest."""
    name = "heads/ber.safetensors"
    shutil.copy(source / name, target / name)
    if record:
        other = read_json(source / "step.json")

        def change(info: dict[str, Any]) -> None:
            info["files"][name], info["heads"]["ber"] = other["files"][name], other["heads"]["ber"]

        edit_json(target / "step.json", change)
    return target / "detectors/ber.parquet"


def copy_note(source: Path, target: Path, record: bool) -> Path:
    """Let the record say that the rows were made on another model."""
    edit_json(target / "step.json", lambda info: info["rows"]["msp"].update(model="another"))
    return target / "detectors/msp.parquet"


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("copy", [copy_rows, copy_head, copy_note])
def test_rows_and_heads_of_other_values_are_noticed_and_made_again(
    done: Path,
    tmp_path: Path,
    short: Make,
    run_all: Callable[[Config], list[Event]],
    copy: Callable[[Path, Path, bool], Path],
    record: bool,
) -> None:
    values = ["detector.msp.by_task=true", "detector.ber.schedule.lr=0.1"]
    run_all(short(tmp_path / "other", *values))
    before = contents(done / RUN / "step02")
    path = copy(tmp_path / "other" / RUN / "step02", done / RUN / "step02", record)
    study = opencil.read_study(done)
    if copy is not copy_head or record:  # rows are right beside a damaged head
        assert any(path.name in problem for problem in study.problems)
        assert len(study.rows.query(f"detector == '{path.stem}' and step == 2")) == 0
    assert damages(RunFolder(done / RUN))
    with pytest.raises(Damaged):
        opencil.open_run(done / RUN)
    assert isinstance(run_all(short(done))[-1], Finished)
    after = contents(done / RUN / "step02")
    assert before.keys() == after.keys()
    assert all(before[name] == after[name] for name in before if name != "step.json")
    opencil.open_run(done / RUN)
