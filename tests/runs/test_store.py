"""The run store: layout, rows, changed configs, locks."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import opencil
from opencil import BadInput, OpenCILError
from opencil.config import Config
from opencil.engine.loop import Progress
from opencil.files import Damaged, write_json
from opencil.runs import launch, store
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.inventory import damages
from opencil.runs.spec import plan
from opencil.runs.store import LockedRun, RunFolder, StepFolder
from tests.stored import contents, edit_json

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
RUN = Path("digits/k4/icarl/seed0")
OOD = {"digits-held-out": "near", "photo-patches": "far", "noise": "far"}
ALWAYS = ["auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive", "auc_new", "fpr_new", "oscr"]
ALWAYS += ["accuracy_with_rejection", "ood_as_new", "auc_full", "fpr_full", "ap_full"]


# --- layout ----------------------------------------------------------------------------------------


def test_layout(done_once: Path) -> None:
    in_step = [
        "memory.safetensors",
        "model.parquet",
        "model.safetensors",
        "step.json",
        "heads/ber.safetensors",
    ]
    in_step += [f"detectors/{name}.parquet" for name in ("msp", "relation", "ber")]
    expected = {f"{RUN}/step{t:02d}/{name}" for t in (1, 2) for name in in_step}
    assert contents(done_once).keys() == expected | {f"{RUN}/config.yml", f"{RUN}/environment.json"}


def test_a_step_lists_the_checksums_of_its_files(done_once: Path) -> None:
    for step in RunFolder(done_once / RUN).trained():
        files = {path.relative_to(step.path).as_posix() for path in step.path.rglob("*") if path.is_file()}
        assert set(step.info()["files"]) == files - {"step.json"}
    assert damages(RunFolder(done_once / RUN)) == {}


def test_records_have_versions_and_no_absolute_paths(done_once: Path) -> None:
    environment = json.loads((done_once / RUN / "environment.json").read_text())
    assert (environment["opencil"], environment["torch"]) == (opencil.__version__, torch.__version__)
    assert {"source", "python", "device", "threads", "cpu", "command", "datasets"} <= set(environment)
    for name in ("environment.json", "config.yml", "step01/step.json"):
        text = (done_once / RUN / name).read_text()
        assert str(done_once) not in text
        assert not re.search(r"[\"' ]/\w", text), name


def test_tensors_and_rows_are_returned_as_stored(tmp_path: Path, done_once: Path) -> None:
    step, info = StepFolder(tmp_path / "step01"), {"files": {}}
    tensors = {"a": torch.arange(6).view(2, 3).T, "b": torch.tensor(2.5)}
    step.save_tensors("t.safetensors", tensors, info)
    found = step.tensors("t.safetensors", info)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors | found)
    rows = opencil.read_rows(done_once).query("detector == 'msp' and step == 1").reset_index(drop=True)
    step.save_rows("msp", rows, info)
    pd.testing.assert_frame_equal(step.rows("msp", info), rows)
    with pytest.raises(Damaged, match="does not list it"):
        step.rows("energy", info)


def test_without_writes_nothing_is_written(tmp_path: Path, short: Make) -> None:
    (spec,) = plan(short(tmp_path))
    folder, info = RunFolder(tmp_path / "run", writes=False), {"files": {}, "step": 1, "steps": 1}
    step = folder.step(1)
    with folder.opened(spec, {}):
        folder.announce(spec)
        step.save_tensors("model.safetensors", {"a": torch.ones(2)}, info)
        with Checkpoints(step, "", 0.0) as checkpoints:
            progress = Progress("train", 1, 9, 2, 2, 0.1, torch.zeros(()), torch.zeros(()), dict)
            checkpoints.note(torch.nn.Linear(1, 1), progress)
        step.save_info(info)
        step.remove_checkpoint()
    assert not any(tmp_path.iterdir())


def test_the_last_error_in_a_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.failure() == ""
    folder.error.write_text("ValueError: no\nTraceback (most recent call last):\n  File x\n")
    assert folder.failure() == "ValueError: no"


# --- rows ------------------------------------------------------------------------------------------


def test_rows_are_the_documented_rows(finished: Path) -> None:
    rows = opencil.read_rows(finished)
    place = ["step", "detector", "ood", "distance", "task", "metric"]
    assert list(rows.columns) == ["benchmark", "k", "cil", "seed", *place, "value"]
    assert rows["value"].dtype == np.float64
    expected = set()
    for step in (1, 2, 3, 4):
        tasks = range(1, step + 1)
        for metric in ("accuracy", "accuracy_nearest_mean"):
            expected |= {(step, "", "", "", task, metric) for task in (0, *tasks)}
        expected.add((step, "", "corrupted", "shifted", 0, "accuracy_shifted"))
        expected |= {(step, "", "", "", 0, metric) for metric in ("model_bytes", "memory_bytes")}
        for detector in ("energy", "msp", "relation"):
            expected |= {(step, detector, "", "", task, "confidence") for task in tasks}
            expected.add((step, detector, "corrupted", "shifted", 0, "fpr_shifted"))
            for ood, distance in (OOD | ({"future": "future"} if step < 4 else {})).items():
                metrics = ALWAYS if step == 1 else [*ALWAYS, "auc_old", "fpr_old"]
                expected |= {(step, detector, ood, distance, 0, metric) for metric in metrics}
                expected |= {(step, detector, ood, distance, task, "auc_task") for task in tasks}
    assert not rows.duplicated(subset=place).any()
    # A task without a predicted image of an OOD set has no confidence there.
    of_ood = (rows["metric"] == "confidence") & (rows["ood"] != "")
    assert set(rows[~of_ood][place].itertuples(index=False, name=None)) == expected
    assert rows[of_ood].groupby(["step", "detector", "ood", "distance"]).ngroups == (4 * 3 + 3) * 3
    assert not rows["value"].isna().any()


def test_a_first_step_whose_folder_is_gone_is_lost(done: Path) -> None:
    assert RunFolder(done / RUN).lost() == []
    shutil.rmtree(done / RUN / "step01")
    assert [step.number for step in RunFolder(done / RUN).lost()] == [1]


def test_rows_of_several_runs(done: Path, short: Make, run_all: RunAll) -> None:
    one = len(opencil.read_rows(str(done / RUN)))
    run_all(short(done, seed=1, detector=["msp"]))
    rows = opencil.read_rows(done)
    assert list(rows.index) == list(range(len(rows)))
    assert (len(rows) > one, set(rows["seed"])) == (True, {0, 1})
    (done / RUN / "step01/step.json").unlink()
    with pytest.raises(OpenCILError, match=r"seed0: step01/step\.json"):
        opencil.read_rows(done)


@pytest.mark.parametrize(
    ("seed", "by_task", "named"),
    [(0, True, r"step01/detectors/msp\.parquet"), (1, False, r"step01/step\.json")],
)
def test_rows_of_another_run_or_of_other_values_are_refused(
    done: Path, tmp_path: Path, short: Make, run_all: RunAll, seed: int, by_task: bool, named: str
) -> None:
    other = tmp_path / "other"
    run_all(short(other, f"detector.msp.by_task={str(by_task).lower()}", seed=seed, detector=["msp"]))
    shutil.rmtree(done / RUN / "step01")
    shutil.copytree(other / RUN.with_name(f"seed{seed}") / "step01", done / RUN / "step01")
    with pytest.raises(OpenCILError, match=named):
        opencil.read_rows(done)


def test_runs_are_found_once(tmp_path: Path, done_once: Path) -> None:
    with pytest.raises(BadInput, match="no runs"):
        opencil.read_rows(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        opencil.read_rows(tmp_path / "absent")
    (tmp_path / "link").symlink_to(done_once)
    (tmp_path / "again").symlink_to(done_once)
    assert len(store.find_runs(tmp_path)) == 1
    (tmp_path / "config.yml").touch()
    assert RunFolder(tmp_path) in store.find_runs(tmp_path)
    (tmp_path / "step03").touch()
    for name in ("step02", "step11", "step100", "steps"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.json").touch()
    assert [step.number for step in RunFolder(tmp_path).trained()] == [2, 11, 100]


# --- changed configs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        ("cil.icarl.later.lr=0.05", "cil.icarl.later.lr: 0.1 in the stored run, 0.05 now"),
        ("benchmark.memory=40", "benchmark.memory: 80 in the stored run, 40 now"),
        ("seed.class_order=1", "seed.class_order: 1993 in the stored run, 1 now"),
        ("detector.ber.alpha=2", "detector.ber.alpha"),
        ("benchmark.memory_per_class=5", "benchmark.memory_per_class: not set in the stored run, 5 now"),
    ],
)
def test_a_changed_config_is_refused_and_nothing_changes(
    setting: str, difference: str, done: Path, short: Make
) -> None:
    before = contents(done)
    with pytest.raises(BadInput) as raised:
        list(opencil.execute(short(done, setting)))
    first, line = str(raised.value).split("\n")
    assert str(done / RUN) in first
    assert difference in line
    assert contents(done) == before


def test_overwriting_makes_again_what_has_other_values_and_keeps_the_rest(done: Path, short: Make) -> None:
    """Of a detector with other values the rows, of a training the whole run."""
    folder = RunFolder(done / RUN)
    models = [path.stat().st_mtime_ns for path in folder.path.glob("step*/model.safetensors")]

    def again(*settings: str) -> list[str]:
        config = short(done, *settings)
        made = [str(spec) for spec in launch.overwrite(config, plan(config))]
        assert not [event for event in opencil.execute(config) if isinstance(event, Failed)]
        return made

    assert again() == []
    before, changed = opencil.read_rows(done), "detector.msp.by_task=true"
    assert again(changed) == [str(RUN)]
    assert [path.stat().st_mtime_ns for path in folder.path.glob("step*/model.safetensors")] == models
    after = opencil.read_rows(done)
    others = before["detector"] != "msp"
    assert after[others].equals(before[others])
    assert not after.equals(before)
    assert again() == [str(RUN)]
    assert opencil.read_rows(done).equals(before)
    assert again("cil.icarl.temperature=7") == [str(RUN)]
    assert folder.stored()["cil"]["icarl"]["temperature"] == 7
    assert again() == [str(RUN)]
    assert opencil.read_rows(done).equals(before)


def test_values_of_a_detector_without_rows_may_change(done: Path, short: Make) -> None:
    folder, (spec,) = RunFolder(done / RUN), plan(short(done, "detector.ber.alpha=2"))
    with pytest.raises(BadInput, match=r"detector\.ber\.alpha"):
        folder.check(spec)
    for table in folder.path.glob("step*/detectors/ber.parquet"):
        table.unlink()
    assert folder.check(spec) == folder.stored()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: (run / "config.yml").write_text("benchmark: ["),
        lambda run: (run / "config.yml").unlink(),
        lambda run: edit_json(run / "step01/step.json", lambda info: info.update(step=2)),
        lambda run: edit_json(
            run / "step01/step.json", lambda info: info.update(run="digits/k4/icarl/seed1")
        ),
        lambda run: edit_json(run / "step02/step.json", lambda info: info.update(previous="")),
        lambda run: edit_json(run / "step02/step.json", lambda info: info.update(training="")),
        lambda run: edit_json(run / "step02/step.json", lambda info: info.update(files=[])),
        lambda run: edit_json(run / "step02/step.json", lambda info: info.pop("steps")),
        lambda run: write_json(run / "step01/step.json", {}),
    ],
)
def test_records_that_do_not_fit_are_refused(
    change: Callable[[Path], Any], done: Path, short: Make, run_all: RunAll
) -> None:
    change(done / RUN)
    before = contents(done)
    try:
        event = run_all(short(done, detector="energy"))[-1]
        assert isinstance(event, Failed)
        error: OpenCILError = event.error
    except OpenCILError as raised:
        error = raised
    assert str(done / RUN) in str(error)
    assert "\n" not in str(error)
    after = contents(done)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert not [name for name in changed if "step02" in name and "energy" not in name]


def test_an_older_config_gets_its_detectors_again(done: Path, short: Make, run_all: RunAll) -> None:
    older = (done / RUN / "config.yml").read_bytes()
    run_all(short(done, detector="energy"))
    (done / RUN / "config.yml").write_bytes(older)
    run_all(short(done, detector="energy"))
    assert "energy" in RunFolder(done / RUN).stored()["detector"]
    assert opencil.read_study(done).problems == []


# --- locks -----------------------------------------------------------------------------------------


def test_a_run_has_one_writer(tmp_path: Path, short: Make, run_all: RunAll, monkeypatch: Any) -> None:
    monkeypatch.setattr(store, "_PATIENCE", 0.1)
    config = short(tmp_path, detector="msp")
    folder = RunFolder(tmp_path / RUN)
    events = opencil.execute(config)
    assert isinstance(next(events), Training)
    assert folder.locked
    (refused,) = run_all(config)
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, LockedRun)
    assert not folder.error.exists(), "the other process goes on"
    events.close()
    assert not folder.locked
    assert isinstance(run_all(config)[-1], Finished)


def test_a_killed_attempt_is_named_by_the_next(
    tmp_path: Path, short: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (spec,), folder = plan(short(tmp_path)), RunFolder(tmp_path / "run")
    with suppress(KeyboardInterrupt), folder.opened(spec, {}):
        left = contents(folder.path)
        raise KeyboardInterrupt
    with folder.opened(spec, {}):
        pass
    assert not caplog.records
    for name in left.keys() - contents(folder.path).keys():  # as a SIGKILL leaves them
        (folder.path / name).write_bytes(left[name])
    for _ in range(2):
        with folder.opened(spec, {}):
            pass
    (record,) = caplog.records
    assert str(spec) in record.getMessage()


def test_a_config_of_many_long_labels_is_read_again(tmp_path: Path, short: Make) -> None:
    detectors = {f"energy@{'x' * 200}{number}": {"temperature": 2.0} for number in range(300)}
    spec, folder = replace(plan(short(tmp_path))[0], detectors=detectors), RunFolder(tmp_path / "run")
    folder.announce(spec)
    assert folder.config.stat().st_size > 60_000
    assert folder.stored()["detector"] == detectors
