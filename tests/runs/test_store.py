"""What lies on disk: rows, damage, locks, changed configs."""

import json
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import opencil
from opencil import BadInput, OpenCILError, seals
from opencil.config import Config, dump_yaml, read_yaml
from opencil.evaluation.metric import shares
from opencil.locks import Lock
from opencil.runs import file_formats, provenance, runner, store
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.plan import plan
from opencil.runs.store import RunFolder
from opencil.study.rows import Table, noted, read_tables, write_rows
from tests import forks
from tests.siege.damage import unseal

Make = Callable[..., Config]
RunAll = Callable[[Config], list[Event]]
Contents = Callable[[Path], dict[str, bytes]]

RUN = Path("digits/k2/icarl/seed0")


def unfinish(runs: Path, *steps: int) -> Path:
    """Take the last steps away, so that the run has something to do; the run's folder."""
    for step in steps:
        shutil.rmtree(runs / RUN / f"step{step:02d}")
    return runs / RUN


def test_a_steps_note_in_another_steps_place_is_refused(tmp_path: Path) -> None:
    step = RunFolder(tmp_path).step(2)
    step.path.mkdir()
    seals.write_json(step.path / "step.json", {"step": 1, "steps": 4})
    with pytest.raises(OpenCILError, match=r"step02.step.json cannot be used \(it is of step 1\)"):
        step.info()


def test_a_steps_note_of_another_run_is_refused(tmp_path: Path) -> None:
    step, run = RunFolder(tmp_path).step(2), ("digits", 2, "icarl", 0)
    step.path.mkdir()
    for noted_run in ({}, {"run": "digits/k2/icarl/seed0"}):  # once it was not noted
        seals.write_json(step.path / "step.json", {"step": 2, "steps": 4, **noted_run})
        assert step.info(run)["steps"] == 4
    seals.write_json(step.path / "step.json", {"step": 2, "steps": 4, "run": "digits/k2/icarl/seed1"})
    assert step.info()["steps"] == 4
    with pytest.raises(OpenCILError, match=r"cannot be used \(it is of run digits/k2/icarl/seed1\)"):
        step.info(run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the loss is nan\nin stage 'train'\n", "the loss is nan"),  # foreseen: a sentence
        ("Traceback (most recent call last):\n  File x\nValueError: no\n", "ValueError: no"),
        ("Traceback (most recent call last):\n  File x\n", "an error"),  # cut off
    ],
)
def test_what_the_last_error_said(tmp_path: Path, text: str, said: str) -> None:
    folder = RunFolder(tmp_path)
    assert folder.failed() == ""
    folder.error.write_text(text, encoding="utf-8")
    assert folder.failed() == said


# --- rows ------------------------------------------------------------------------------------------


OOD = {"digits-held-out": "near", "photo-patches": "far", "noise": "far"}
ALWAYS = ["auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive", "auc_new", "fpr_new", "oscr"]
ALWAYS += ["accuracy_with_rejection", "ood_as_new", "auc_full", "fpr_full", "ap_full"]


def test_rows_are_the_documented_ones(finished: Path) -> None:
    rows = opencil.read_rows(finished)
    run = ["benchmark", "k", "cil", "seed"]
    place = ["step", "detector", "ood", "distance", "task", "metric"]
    assert list(rows.columns) == [*run, *place, "value"]
    assert rows[run].drop_duplicates().to_numpy().tolist() == [["digits", 2, "icarl", 0]]
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
            for ood, distance in OOD.items():
                metrics = ALWAYS if step == 1 else [*ALWAYS, "auc_old", "fpr_old"]
                expected |= {(step, detector, ood, distance, 0, metric) for metric in metrics}
    assert not rows.duplicated(subset=[*run, *place]).any()
    # An OOD set has a confidence for each task that any of its images is predicted into: at least one.
    of_ood = (rows["metric"] == "confidence") & (rows["ood"] != "")
    assert set(rows[~of_ood][place].itertuples(index=False, name=None)) == expected
    assert rows[of_ood].groupby(["step", "detector", "ood", "distance"]).ngroups == 4 * 3 * 3
    assert (rows[of_ood]["task"].between(1, rows[of_ood]["step"])).all()
    others = shares(rows[rows["metric"] != "confidence"])
    assert others["value"].between(0, 1).all()
    assert not rows["value"].isna().any()


def test_rows_of_one_run_and_of_several(finished: Path) -> None:
    one = len(opencil.read_rows(str(finished / RUN)))
    shutil.copytree(finished / RUN, finished / "digits/k2/icarl/seed1")
    assert len(opencil.read_rows(str(finished / RUN))) == one
    both = opencil.read_rows(finished)
    assert list(both.index) == list(range(2 * one))


def test_rows_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no finished steps"):
        opencil.read_rows(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        opencil.read_rows(tmp_path / "absent")


def test_a_run_is_where_its_config_and_environment_are(tmp_path: Path) -> None:
    for name in ("environment.json", "config.yml"):
        assert store.find_runs(tmp_path) == []
        (tmp_path / name).touch()
    assert store.find_runs(tmp_path) == [RunFolder(tmp_path)]
    (tmp_path / "step03").touch()
    assert RunFolder(tmp_path).steps() == [], "a file is no step"


def test_steps_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("step02", "step11", "step100", "steps"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.json").touch()
    assert [step.number for step in RunFolder(tmp_path).trained()] == [2, 11, 100]


def test_a_step_without_its_mark_gives_no_rows(finished: Path) -> None:
    (finished / RUN / "step04" / "step.json").unlink()
    assert set(opencil.read_rows(finished)["step"]) == {1, 2, 3}


# --- what is stored --------------------------------------------------------------------------------


def test_layout(finished: Path, contents: Contents) -> None:
    step = ["accuracy.parquet", "memory.safetensors", "model.safetensors", "step.json"]
    detectors = [f"detectors/{name}.parquet" for name in ("energy", "msp", "relation")]
    found = contents(finished)
    outputs = {name for name in found if name.startswith(".outputs/")}
    assert len(outputs) == 4 * (2 + 3 + 1), (
        "of each step: test images, shifted ones, three OOD sets, the set-up"
    )
    assert found.keys() - outputs == {
        f"{RUN}/{name}"
        for name in [
            "config.yml",
            "data.json",
            "environment.json",
            *(f"step{t:02d}/{n}" for t in (1, 2, 3, 4) for n in step + detectors),
        ]
    }


def test_environment_tells_versions_and_no_paths(finished: Path) -> None:
    text = (finished / RUN / "environment.json").read_text()
    environment = json.loads(text)
    assert environment["opencil"] == opencil.__version__
    assert environment["torch"] == torch.__version__
    assert environment["numpy"] == np.__version__
    assert environment["source"] == provenance.source_digest()
    assert {"python", "system", "machine", "device", "threads", "cpu", "pyarrow"} <= set(environment)
    assert environment["safetensors"]
    assert environment["only_deterministic"] is False
    assert environment["command"] == provenance.command()
    for name in ("environment.json", "config.yml", "step01/step.json"):
        text = (finished / RUN / name).read_text()
        assert str(finished) not in text
        assert not re.search(r"[\"' ]/\w", text), f"{name} holds an absolute path"


def test_the_most_memory_of_any_process_stays_on_record(tmp_path: Path) -> None:
    folder, record = RunFolder(tmp_path), tmp_path / "environment.json"
    folder.note({"device": "a"})
    assert folder.record("environment.json") == {"device": "a"}
    folder.note({"device": "a"}, 3643)
    folder.note({"device": "a", "torch": "3"})
    folder.note({"device": "a", "torch": "3"}, 871)  # detectors that were added need less than training did
    assert folder.record("environment.json") == {"device": "a", "torch": "3", "peak_memory_mib": 3643}
    folder.note({"device": "b"}, 871)
    assert folder.record("environment.json") == {"device": "b", "peak_memory_mib": 871}, "not a's memory"
    for spoilt in ("half a fi", '{"device": "b", "peak_memory_mib": "much"}'):
        record.write_text(spoilt)
        folder.note({"device": "b"}, 500)
        assert json.loads(record.read_text())["peak_memory_mib"] == 500


def test_the_memory_is_indices_that_fit_the_quota(finished: Path) -> None:
    stream = opencil.benchmark("digits").stream(2)
    for step in stream:
        memory = RunFolder(finished / RUN).step(step.number).memory(80)
        assert len(memory.per_class) == step.seen
        for label, indices in enumerate(memory.per_class):
            assert len(indices) == len(set(indices.tolist())) == 80 // step.seen
            assert set(stream.train.labels[indices].tolist()) == {label}


def test_the_stored_config_is_the_whole_config(finished: Path, tiny: Make) -> None:
    (spec,) = plan(tiny(finished))
    folder = RunFolder(finished / RUN)
    assert folder.differences(spec) == {}
    assert folder.finished(spec)


def test_a_config_from_before_schedules_named_their_optimiser_is_the_same(
    finished: Path, tiny: Make, run_all: RunAll
) -> None:
    """What a schedule says now and did not say then is what it was."""
    path = finished / RUN / "config.yml"
    record = read_yaml(path)
    then = ("epochs", "lr", "decay", "milestones", "factor", "momentum", "weight_decay")
    values = record["cil"]["icarl"]
    for name in ("first", "later"):
        values[name] = {key: values[name][key] for key in then}
    path.write_text(dump_yaml(record), encoding="utf-8")
    (event,) = run_all(tiny(finished))
    assert isinstance(event, Finished)
    assert event.already
    setting = "cil.icarl.later.optimiser=adam"
    with pytest.raises(BadInput, match=r"later\.optimiser: 'sgd' in the stored run, 'adam' now"):
        run_all(tiny(finished, setting))


# --- changed configs -------------------------------------------------------------------------------


def test_values_of_a_detector_may_change_until_it_has_scored_something(finished: Path, tiny: Make) -> None:
    folder, (spec,) = RunFolder(finished / RUN), plan(tiny(finished, "detector.energy.temperature=2"))
    assert folder.differences(spec) == {"detector.energy.temperature": (1.0, 2.0)}
    for table in folder.path.glob("step*/detectors/energy.parquet"):
        table.unlink()
    assert folder.differences(spec) == {}


@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        ("cil.icarl.later.lr=0.05", "cil.icarl.later.lr: 0.1 in the stored run, 0.05 now"),
        ("benchmark.memory=40", "benchmark.memory: 80 in the stored run, 40 now"),
        (
            "benchmark.far=[noise]",
            "benchmark.far: ['photo-patches', 'noise'] in the stored run, ['noise'] now",
        ),
        ("seed.class_order=1", "seed.class_order: 1993 in the stored run, 1 now"),
        ("detector.energy.temperature=2", "detector.energy.temperature: 1.0 in the stored run, 2.0 now"),
    ],
)
@pytest.mark.parametrize("complete", [True, False], ids=["finished", "half"])
def test_a_changed_config_is_refused_and_nothing_changes(
    setting: str, difference: str, complete: bool, finished: Path, tiny: Make, contents: Contents
) -> None:
    if not complete:
        unfinish(finished, 3, 4)
    before = contents(finished)
    with pytest.raises(BadInput) as raised:
        list(opencil.execute(tiny(finished, setting)))
    first, *differences = str(raised.value).split("\n")
    assert [line.strip() for line in differences] == [difference]
    assert str(RUN) in first
    assert str(finished / RUN) in first, "where to look"
    assert ("go on with it as it is" in first) == setting.startswith(("cil", "detector"))
    assert contents(finished) == before


@pytest.mark.parametrize(
    "settings",
    [
        ["training.precision=tf32", "training.compile=true"],
        ["cil.icarl.later.lr=0.05", "cil.icarl.later.milestones=[]"],
        ["detector.energy.temperature=2"],
        ["detector.energy.temperature=2", "benchmark.shifted=[]"],
    ],
)
def test_a_run_under_another_config_can_be_gone_on_with(
    settings: list[str], finished: Path, tiny: Make, run_all: RunAll
) -> None:
    with pytest.raises(BadInput) as raised:
        list(opencil.execute(tiny(finished, *settings)))
    advice = str(raised.value).split("go on with it as it is by ")[1].split(", use another")[0]
    words = shlex.split(advice)
    assert words[::2] == ["--set"] * len(settings)
    (event,) = run_all(tiny(finished, *settings, *words[1::2]))
    assert event == Finished(event.run, already=True)


@pytest.mark.parametrize(
    ("flag", "settings"),
    [
        ("cil", ["cil.icarl.later.lr=0.05"]),
        ("detector", ["detector.energy.temperature=2"]),
    ],
)
def test_a_method_under_other_values_can_be_kept_beside_itself(
    flag: str, settings: list[str], finished: Path, tiny: Make
) -> None:
    asked = tiny(finished, *settings)
    with pytest.raises(BadInput) as raised:
        list(opencil.execute(asked))
    advice = str(raised.value).split("keep both by a label, ")[1].split(", go on with it")[0]
    option, name, *words = shlex.split(advice)
    assert option == f"--{flag}"
    assert all(setting.startswith(f"{flag}.{name}.") for setting in words[1::2]), "the other's stay"
    labelled = tiny(finished, *words[1::2], **{flag: name})
    list(opencil.execute(labelled))
    assert getattr(labelled, flag)[name] == getattr(asked, flag)[name.removesuffix("@mine")]


def test_what_is_no_way_is_not_advised(finished: Path, tiny: Make) -> None:
    """A label is of one method; a value that was left out then cannot be said again."""
    folder, label, as_it_is = RunFolder(finished / RUN), "keep both by a label", "go on with it as it is"
    for settings, ways in (
        (["cil.icarl.temperature=3", "detector.energy.temperature=2"], [as_it_is]),
        (["detector.energy.by_task=true"], [label]),
        (["detector.energy.by_task=true", "detector.energy.temperature=2"], [label]),
    ):
        (spec,) = plan(tiny(finished, *settings))
        with pytest.raises(BadInput) as raised:
            folder.check(spec)
        assert [way for way in (label, as_it_is) if way in str(raised.value)] == ways


def test_a_value_that_is_gone_is_no_part_of_what_is_kept_by_a_label(tmp_path: Path) -> None:
    ways = list(RunFolder(tmp_path)._ways({"cil.icarl.old": (1, "absent"), "cil.icarl.lr": (0.1, 0.2)}))
    assert ways[0] == "keep both by a label, --cil icarl@mine --set cil.icarl@mine.lr=0.2"


def test_values_are_advised_as_they_are_typed() -> None:
    values = {"cil.mine.rule": "linear", "cil.mine.sizes": [1, 2], "cil.mine.on": True}
    typed = "--set cil.mine.rule=linear --set 'cil.mine.sizes=[1, 2]' --set cil.mine.on=true"
    assert store._settings(values) == typed


def test_a_config_says_which_run_it_is_of(tmp_path: Path) -> None:
    folder, benchmark = RunFolder(tmp_path), {"name": "digits", "classes_per_step": [2]}
    config: dict[str, Any] = {"benchmark": benchmark, "cil": {"icarl": {}}, "seed": {"run": 0}}
    assert folder.identity(config) == ("digits", 2, "icarl", 0)
    unusable = [{"benchmark": benchmark | {"classes_per_step": steps}} for steps in ([], [0])]
    for less in (*({section: {}} for section in config), *unusable, {"seed": {"run": "none"}}):
        with pytest.raises(OpenCILError, match="it does not say which run it is of"):
            folder.identity(config | less)


def test_a_run_that_is_only_announced_has_no_rows(tmp_path: Path, tiny: Make) -> None:
    (spec,) = plan(tiny(tmp_path))
    RunFolder(tmp_path / spec.folder).announce(spec, {"device": "cpu"})
    with pytest.raises(BadInput, match="there are no finished steps below"):
        opencil.read_rows(tmp_path)


def test_an_announced_run_names_its_plugins(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for notes in ({}, {"mine.py": {"sha256": "0" * 64, "registers": ["detector mine"]}}):
        monkeypatch.setattr("opencil.runs.plan.notes_of", lambda names, notes=notes: notes)
        (spec,) = plan(tiny(tmp_path, seed=len(notes)))
        folder = RunFolder(tmp_path / spec.folder)
        folder.announce(spec, {"device": "cpu"})
        assert folder.stored() == spec.record() | ({"plugins": notes} if notes else {})


def test_a_step_that_was_evaluated_or_followed_by_another_is_lost_without_its_notes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number, name in ((1, "memory.safetensors"), (2, "step.json"), (3, "detectors/msp.parquet")):
        path = folder.step(number).path / name
        path.parent.mkdir(parents=True)
        path.touch()
    folder.step(4).path.mkdir()  # in training
    assert [step.number for step in folder.lost()] == [1, 3]


def test_rows_are_of_a_run_where_that_is_known(tmp_path: Path) -> None:
    step = RunFolder(tmp_path).step(2)
    tables = [step.model_rows, step.detector_rows("msp")]
    place = [{"step": 2, "detector": ""}, {"step": 2, "detector": "msp"}]
    assert [table.of for table in step.placed(tables, None, {})] == place
    run = {"benchmark": "digits", "k": 2, "cil": "icarl", "seed": 0}
    found = step.placed(tables, ("digits", 2, "icarl", 0), {"weights_sha256": "a"})
    assert [table.of for table in found] == [run | one for one in place]
    assert {table.model for table in found} == {"a"}


def test_place_is_no_part_of_the_config(finished: Path, tiny: Make, tmp_path: Path, run_all: RunAll) -> None:
    moved = finished.rename(tmp_path / "elsewhere")
    (event,) = run_all(tiny(moved, f"place.data_root={json.dumps(str(tmp_path))}"))
    assert event == Finished(event.run, already=True)


def test_another_seed_and_k_are_other_runs(
    finished: Path, tiny: Make, contents: Contents, run_all: RunAll
) -> None:
    before = contents(finished)
    events = run_all(tiny(finished, "benchmark.classes_per_step=8", seed=[0, 1], detector="msp"))
    assert [str(e.run) for e in events if isinstance(e, Finished)] == [
        "digits/k8/icarl/seed0",
        "digits/k8/icarl/seed1",
    ]
    after = contents(finished)
    assert before.items() <= after.items()


# --- finished runs, more detectors -----------------------------------------------------------------


def test_a_finished_run_answers_at_once(
    finished: Path, tiny: Make, contents: Contents, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(config: Config) -> None:
        raise AssertionError("data were loaded")

    monkeypatch.setattr(runner, "load", load)
    before = contents(finished)
    (event,) = run_all(tiny(finished))
    assert isinstance(event, Finished)
    assert event.already
    assert contents(finished) == before
    assert run_all(tiny(finished, detector="msp")) == [
        Finished(plan(tiny(finished, detector="msp"))[0], True)
    ]


def test_a_finished_run_is_held_only_to_delete_what_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Path] = []
    acquire = Lock.acquire
    monkeypatch.setattr(Lock, "acquire", lambda lock: (held.append(lock.path), acquire(lock)))
    folder, left = RunFolder(tmp_path), tmp_path / "step01" / "model.safetensors.1a2b.part"
    left.parent.mkdir()
    folder.tidy()
    assert not held, "who only looks disturbs nobody who writes"
    left.write_bytes(b"half")
    folder.tidy()
    assert held == [tmp_path / ".held"]
    assert not left.exists()


def test_a_new_detector_trains_nothing_and_changes_nothing(
    finished: Path, tiny: Make, contents: Contents, run_all: RunAll, tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(finished, fewer)
    for path in fewer.rglob("detectors/*.parquet"):
        if path.stem != "msp":
            path.unlink()
    config = fewer / RUN / "config.yml"
    unseal(config)
    text = config.read_text()
    config.write_text(text[: text.index("detector:")] + "detector:\n  msp: {}\n")
    before = contents(fewer)
    assert isinstance(run_all(tiny(fewer, detector="msp"))[0], Finished)

    events = run_all(tiny(fewer, detector="energy"))
    assert not any(isinstance(event, Training) for event in events)
    assert isinstance(events[-1], Finished)
    assert not events[-1].already
    after, whole = contents(fewer), contents(finished)
    added = {f"{RUN}/step{t:02d}/detectors/energy.parquet" for t in (1, 2, 3, 4)}
    assert set(after) - set(before) == added
    touched = {f"{RUN}/step{t:02d}/step.json" for t in (1, 2, 3, 4)}  # the seconds that it took
    assert {name for name in before if before[name] != after[name]} == {f"{RUN}/config.yml", *touched}
    assert all(after[name] == whole[name] for name in added), "as if it had been asked for from the start"
    # Both are remembered: the one that was there first cannot come back with other values.
    run_all(tiny(fewer))
    now = contents(fewer)
    assert now == whole | {name: now[name] for name in (f"{RUN}/config.yml", *touched)}


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "memory.safetensors", "step.json"])
@pytest.mark.parametrize("damage", ["junk", "cut", "empty"])
def test_a_damaged_file_is_named(
    name: str, damage: str, finished: Path, tiny: Make, contents: Contents, run_all: RunAll
) -> None:
    folder = unfinish(finished, 3, 4)
    path = folder / "step02" / name
    whole = path.read_bytes()
    path.write_bytes({"junk": b"junk", "cut": whole[: len(whole) // 2], "empty": b""}[damage])
    before = contents(finished)
    events = run_all(tiny(finished))
    assert isinstance(events[-1], Failed)
    assert not any(isinstance(event, Finished) for event in events)
    assert str(path) in str(events[-1].error)
    assert "\n" not in str(events[-1].error)
    assert contents(finished) == before


def test_weights_that_were_changed_are_noticed(finished: Path, tiny: Make, run_all: RunAll) -> None:
    path = unfinish(finished, 3, 4) / "step02" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # still a valid file, of one bit another number
    path.write_bytes(bytes(content))
    (event,) = run_all(tiny(finished))
    assert isinstance(event, Failed)
    assert str(path) in str(event.error)
    assert "checksum" in str(event.error)


def test_weights_of_another_network_are_noticed(finished: Path, tiny: Make, run_all: RunAll) -> None:
    folder = unfinish(finished, 3, 4)
    step = folder / "step02"
    shutil.copy(folder / "step01" / "model.safetensors", step / "model.safetensors")  # 2 classes, not 4
    content = json.loads((folder / "step01" / "step.json").read_text()) | {"step": 2}
    (step / "step.json").write_text(json.dumps(content))
    unseal(step / "step.json")
    (event,) = run_all(tiny(finished))
    assert isinstance(event, Failed)
    assert str(step / "model.safetensors") in str(event.error)


def test_deleting_the_damaged_step_computes_it_again(
    finished: Path, tiny: Make, run_all: RunAll, results: Callable[[Path], dict[str, object]]
) -> None:
    before = results(finished)
    unfinish(finished, 2)
    assert isinstance(run_all(tiny(finished))[-1], Finished)
    assert results(finished) == before


@pytest.mark.parametrize("content", [b"", b"junk", b"PAR1junkPAR1"])
@pytest.mark.parametrize("name", ["accuracy.parquet", "detectors/msp.parquet"])
def test_damaged_rows_are_named(name: str, content: bytes, finished: Path) -> None:
    path = finished / RUN / "step02" / name
    path.write_bytes(content)
    with pytest.raises(OpenCILError, match="cannot be used") as raised:
        opencil.read_rows(finished)
    assert str(path) in str(raised.value)


def test_rows_with_other_columns_and_missing_rows_are_named(finished: Path) -> None:
    path = finished / RUN / "step02" / "accuracy.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(OpenCILError, match="columns are a"):
        opencil.read_rows(finished)
    path.unlink()
    with pytest.raises(OpenCILError, match=re.escape(str(path))):
        opencil.read_rows(finished)


def test_a_stored_config_that_cannot_be_read_is_named(finished: Path, tiny: Make, run_all: RunAll) -> None:
    path = finished / RUN / "config.yml"
    path.write_text("benchmark: [")
    with pytest.raises(OpenCILError, match=re.escape(str(path))):
        run_all(tiny(finished))


@pytest.mark.parametrize("text", ["benchmark: {}", "detector: 3"])
def test_a_stored_config_that_is_none_is_named(
    text: str, finished: Path, tiny: Make, run_all: RunAll
) -> None:
    path = finished / RUN / "config.yml"
    path.write_text(text)
    with pytest.raises(OpenCILError, match="config"):
        run_all(tiny(finished))


def test_a_step_mark_without_its_values_is_named(finished: Path, tiny: Make, run_all: RunAll) -> None:
    path = finished / RUN / "step01" / "step.json"
    path.write_text("{}")
    (event,) = run_all(tiny(finished))
    assert isinstance(event, Failed)
    assert str(path) in str(event.error)


@pytest.mark.parametrize(
    "tensors",
    [{"other": torch.zeros(3)}, {"indices": torch.arange(3), "counts": torch.tensor([1, 1])}],
    ids=["keys", "counts"],
)
def test_a_memory_of_other_tensors_is_named(
    tensors: dict[str, torch.Tensor], finished: Path, tiny: Make, run_all: RunAll
) -> None:
    path = unfinish(finished, 3, 4) / "step02" / "memory.safetensors"
    save_file(tensors, path)
    event = run_all(tiny(finished))[-1]
    assert isinstance(event, Failed)
    assert str(path) in str(event.error)


def test_damaged_notes_of_a_run_are_set_aside(finished: Path, tiny: Make) -> None:
    folder, (spec,) = RunFolder(finished / RUN), plan(tiny(finished))
    names = ["environment.json", "data.json"]
    for name in names:
        (folder.path / name).write_text("junk")
    with folder.opened(spec):
        pass
    for name in names:
        assert not (folder.path / name).exists()
        assert (folder.path / f"{name}.damaged").read_text() == "junk"


def test_a_damaged_run_does_not_stop_the_others(finished: Path, tiny: Make, run_all: RunAll) -> None:
    (finished / RUN / "step01" / "step.json").write_text("junk")
    events = run_all(tiny(finished, "benchmark.classes_per_step=[2, 8]", detector="msp"))
    assert [str(e.run) for e in events if isinstance(e, Failed)] == [RUN.as_posix()]
    assert [str(e.run) for e in events if isinstance(e, Finished)] == ["digits/k8/icarl/seed0"]


def test_rows_of_a_model_that_is_gone_are_not_taken_for_those_of_the_next(
    finished: Path, tiny: Make, run_all: RunAll, results: Callable[[Path], dict[str, object]]
) -> None:
    """The step lost its mark and is trained anew; rows that stayed were measured on another model."""
    run = unfinish(finished, 3, 4)
    expected = results(run)
    table = run / "step02" / "detectors" / "msp.parquet"
    rows = read_tables([Table(table)], file_formats.damaged)
    write_rows(table, noted(rows.assign(value=0.5), rows["metric"].unique(), "0" * 64))
    (run / "step02" / "step.json").unlink()
    for event in opencil.execute(tiny(finished)):
        if isinstance(event, Training) and event.step == 3:
            break
    made = {name: content for name, content in results(run).items() if not name.startswith("step03")}
    assert made.pop("step02/detectors/msp.parquet.damaged")
    assert made == expected


def test_a_run_whose_error_cannot_be_noted_fails_alone(finished: Path, tiny: Make, run_all: RunAll) -> None:
    (finished / RUN / "step01" / "step.json").write_text("junk")
    (finished / RUN / "error.txt").mkdir()
    events = run_all(tiny(finished, "benchmark.classes_per_step=[2, 8]", detector="msp"))
    assert [str(e.run) for e in events if isinstance(e, Failed)] == [RUN.as_posix()]
    assert [str(e.run) for e in events if isinstance(e, Finished)] == ["digits/k8/icarl/seed0"]


# --- two processes ---------------------------------------------------------------------------------


def test_a_second_process_is_refused_until_the_first_is_gone(
    finished: Path,
    tiny: Make,
    contents: Contents,
    run_all: RunAll,
) -> None:
    unfinish(finished, 4)
    config = tiny(finished, detector="msp")
    holds = """
        (spec,) = plan(config)
        with RunFolder(Path(config.place.runs) / spec.folder).opened(spec):
            print("held", flush=True)
            signal.pause()
    """
    with forks.code(config, holds) as process:
        assert process.stdout.readline() == "held\n"
        before = contents(finished)
        (event,) = run_all(config)
        assert isinstance(event, Failed)
        assert "digits/k2/icarl/seed0 is being written by another process" in str(event.error)
        assert contents(finished) == before
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert isinstance(run_all(config)[-1], Finished)


def test_a_run_that_another_process_holds_is_not_announced(
    tmp_path: Path, tiny: Make, contents: Contents
) -> None:
    """Two that write one file at once would write into each other's half of it."""
    (spec,) = plan(tiny(tmp_path, detector="msp"))
    folder, environment = RunFolder(tmp_path / spec.folder), provenance.environment(torch.device("cpu"))
    folder.path.mkdir(parents=True)
    with Lock(folder.path / ".held"):
        folder.announce(spec, environment)
        assert contents(folder.path) == {}
    folder.announce(spec, environment)
    assert list(contents(folder.path)) == ["config.yml", "environment.json"]


def test_leaving_a_run_in_the_middle_frees_it(tmp_path: Path, tiny: Make, run_all: RunAll) -> None:
    config = tiny(tmp_path, "benchmark.classes_per_step=8", detector="msp")
    events = opencil.execute(config)
    assert isinstance(next(events), Training)
    (refused,) = run_all(config)
    assert isinstance(refused, Failed)
    events.close()
    assert isinstance(run_all(config)[-1], Finished)


def test_leaving_a_pack_in_the_middle_frees_every_run_at_once(
    tmp_path: Path, tiny: Make, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when something else, a compiler's cache say, still holds on to the runs' generators."""
    held = []

    def holding(*given: Any) -> Any:
        held.append(advance(*given))
        return held[-1]

    advance = runner._advance
    monkeypatch.setattr(runner, "_advance", holding)
    config = tiny(tmp_path, "benchmark.classes_per_step=8", "place.pack=2", seed=[0, 1], detector="msp")
    events = opencil.execute(config)
    assert {next(events).run.seeds.run for _ in range(2)} == {0, 1}
    events.close()
    assert len(held) == 2
    again = [event for event in run_all(config) if isinstance(event, (Failed, Finished))]
    assert [type(event) for event in again] == [Finished, Finished]


def test_a_command_is_recorded_as_a_shell_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("/some/where/bin/opencil", "/some/where/opencil/__main__.py"):
        monkeypatch.setattr("sys.argv", [program, "run", "--set", "cil.icarl.epochs=5", "--runs", "my runs"])
        assert provenance.command() == "opencil run --set cil.icarl.epochs=5 --runs 'my runs'"
    monkeypatch.setattr("sys.argv", ["/some/where/my.py", "a\nb"])
    assert provenance.command() == "my.py 'a b'", "records have no control characters"
    monkeypatch.setattr("sys.argv", [])
    assert provenance.command() == "''"
