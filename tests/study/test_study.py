"""Studies: the same from a folder of runs and as published; unfinished runs, copies, damage."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import opencil
from opencil import BadInput, OpenCILError
from opencil.config import Config
from opencil.evaluation.metric import shares
from opencil.report.tables import tables
from opencil.runs.provenance import source_digest
from opencil.runs.reading import read_study
from opencil.study.rows import write_rows
from opencil.study.study import Study, write_study
from tests.siege.damage import unseal
from tests.stored import without_bytes

RUN = Path("digits/k2/icarl/seed0")


def only(study: Study) -> Any:
    (run,) = study.runs
    return run


@pytest.fixture
def published(finished: Path, tmp_path: Path) -> Path:
    write_study(read_study(finished), tmp_path / "published")
    return tmp_path / "published"


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    unseal(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# --- reading ---------------------------------------------------------------------------------------


def read_model(run: Path, step: int) -> int:
    """Bytes of a step's model, tensor by tensor."""
    found = opencil.open_run(run).model(step)
    return sum(len(t.contiguous().numpy().tobytes()) for t in found.state_dict().values())


def kept(rows: pd.DataFrame, metric: str) -> list[float]:
    """What the rows of a model itself say that it keeps, step by step."""
    of_model = (rows["detector"] == "") & (rows["ood"] == "") & (rows["distance"] == "") & (rows["task"] == 0)
    return rows[of_model & (rows["metric"] == metric)].sort_values("step")["value"].tolist()


def test_a_run_that_did_not_note_bytes_has_none(finished: Path) -> None:
    without_bytes(finished / RUN)
    study = read_study(finished)
    pd.testing.assert_frame_equal(study.rows, shares(study.rows))
    accuracy = tables("summary", study)[0]
    assert not any("MB" in column.name for column in accuracy.columns)


def test_a_finished_run(finished: Path) -> None:
    study = read_study(finished)
    pd.testing.assert_frame_equal(study.rows, opencil.read_rows(finished))
    run = only(study)
    assert [run[key] for key in ("benchmark", "k", "cil", "seed")] == ["digits", 2, "icarl", 0]
    assert (run["trained"], run["steps"]) == (4, 4)
    stored = [json.loads((finished / RUN / f"step0{t}/step.json").read_text()) for t in (1, 2, 3, 4)]
    assert run["seconds"] == [info["seconds"] for info in stored]
    assert not any("bytes" in info for info in stored)
    # The memory holds 80 // seen images of each class, of 3 × 8 × 8 bytes; the head grows by two rows a step.
    assert kept(study.rows, "memory_bytes") == [80 // seen * seen * 192 for seen in (2, 4, 6, 8)]
    weights = [read_model(finished / RUN, t) for t in (1, 2, 3, 4)]
    assert kept(study.rows, "model_bytes") == weights
    assert len(set(weights)) == 4
    assert run["detectors"] == {"energy": 4, "msp": 4, "relation": 4}
    assert run["config"]["cil"].keys() == {"icarl"}
    assert run["environment"]["opencil"] == opencil.__version__
    assert study.finished


def test_the_data_that_a_run_read(finished: Path) -> None:
    found = {(d["name"], d["role"], d["split"]): d["images"] for d in only(read_study(finished))["data"]}
    assert found == {
        ("digits", "ID", "train"): 965,
        ("digits", "ID", "test"): 478,
        ("digits-held-out", "near", "test"): 354,
        ("photo-patches", "far", "test"): 520,
        ("noise", "far", "test"): 500,
        ("corrupted", "shifted", "test"): 478,
    }


def test_what_made_which_rows(finished: Path) -> None:
    """A run may be made in several calls: each step's rows say by which source, where and when."""
    (made,) = only(read_study(finished))["made"]
    every = {name: [1, 2, 3, 4] for name in ("", "energy", "msp", "relation")}
    assert made["steps"] == every
    assert (made["source"], made["device"], made["precision"]) == (source_digest(), "cpu", "fp32")
    assert made["first"] <= made["last"]
    assert datetime.fromisoformat(made["last"]).tzinfo is not None
    path = next(finished.rglob("step02/step.json"))
    changed(path, lambda info: info["made"]["msp"].update(source="another"))
    other = only(read_study(finished))["made"]
    assert [(one["source"], one["steps"]) for one in other] == [
        (source_digest(), every | {"msp": [1, 3, 4]}),
        ("another", {"msp": [2]}),
    ]
    next(finished.rglob("step02/detectors/msp.parquet")).unlink()
    assert len(only(read_study(finished))["made"]) == 1, "of rows that are there"


def test_what_added_metrics_does_not_pass_for_what_made_the_rows(
    finished: Path, tiny: Callable[..., Config], plugin: Callable[[str], ModuleType]
) -> None:
    plugin("aurc")
    for path in finished.rglob("step.json"):
        unseal(path)
        path.write_text(path.read_text().replace(source_digest(), "former"))
    list(opencil.execute(replace(tiny(finished), metric=("aurc",))))
    former, now = only(read_study(finished))["made"]
    every = {name: [1, 2, 3, 4] for name in ("energy", "msp", "relation")}
    assert (former["source"], former["steps"]) == ("former", {"": [1, 2, 3, 4], **every})
    assert (now["source"], now["steps"]) == (source_digest(), every)
    next(finished.rglob("step02/detectors/msp.parquet")).unlink()
    list(opencil.execute(tiny(finished)))
    former, now = only(read_study(finished))["made"]
    assert former["steps"]["msp"] == [1, 3, 4], "of rows that are gone nothing is said"
    assert now["steps"]["msp"] == [1, 2, 3, 4]


def test_an_unfinished_run_has_what_it_has(finished: Path) -> None:
    shutil.rmtree(finished / RUN / "step04")
    (finished / RUN / "step03/detectors/msp.parquet").unlink()
    study = read_study(finished)
    run = only(study)
    assert (run["trained"], run["steps"], len(run["seconds"])) == (3, 4, 3)
    assert run["detectors"] == {"energy": 3, "msp": 2, "relation": 3}
    assert set(study.rows["step"]) == {1, 2, 3}
    assert not study.finished


def test_a_run_that_has_only_begun(finished: Path) -> None:
    for step in (finished / RUN).glob("step*"):
        shutil.rmtree(step)
    study = read_study(finished)
    run = only(study)
    assert [run[key] for key in ("benchmark", "k", "cil", "seed")] == ["digits", 2, "icarl", 0]
    assert (run["trained"], run["steps"]) == (0, 4), "8 classes, 2 a step"
    assert run["detectors"] == {"energy": 0, "msp": 0, "relation": 0}
    assert study.rows.empty
    assert list(study.rows.columns) == list(opencil.study.rows.COLUMNS)


def test_steps_to_come_of_a_dataset_that_is_not_known_here(finished: Path) -> None:
    for step in (finished / RUN).glob("step*"):
        shutil.rmtree(step)
    path = finished / RUN / "config.yml"
    unseal(path)
    path.write_text(path.read_text().replace("id: digits\n", "id: mine\n"))
    assert only(read_study(finished))["steps"] is None


def test_a_run_of_before_data_was_noted(finished: Path) -> None:
    (finished / RUN / "data.json").unlink()
    assert only(read_study(finished))["data"] == []


def test_several_folders(finished: Path, tmp_path: Path, tiny: Callable[..., Config]) -> None:
    other = tmp_path / "other"
    list(opencil.execute(tiny(other, "cil.*.epochs=1", seed=5, detector="msp")))
    together = read_study(finished, other)
    assert [run["seed"] for run in together.runs] == [0, 5]
    assert len(together.rows) == len(read_study(finished).rows) + len(read_study(other).rows)


def test_one_run_in_two_places_is_refused(finished: Path, published: Path) -> None:
    with pytest.raises(BadInput, match="run digits/k2/icarl/seed0 is there 2 times"):
        read_study(finished, published)
    shutil.copytree(finished / RUN, finished / "copy")
    with pytest.raises(BadInput, match="2 times"):
        read_study(finished)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no runs below"):
        read_study(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        read_study(tmp_path / "absent")


# --- published -------------------------------------------------------------------------------------


def test_a_published_study_is_the_same(finished: Path, published: Path) -> None:
    assert sorted(path.name for path in published.iterdir()) == ["rows.parquet", "runs.json"]
    ours, theirs = read_study(finished), read_study(published)
    pd.testing.assert_frame_equal(theirs.rows, ours.rows)
    assert theirs.runs == ours.runs


def test_values_that_a_published_record_lacks_are_what_they_were(published: Path) -> None:
    """As of stored runs: else seeds set up on train+ would count with others as one method, unsaid."""

    def as_it_was(content: dict[str, Any]) -> None:
        config = content["runs"][0]["config"]
        config["benchmark"]["setup"] = "train+"
        config["detector"] |= {"relation": {"power": 1.0}, "t2fnorm": {"tau": 0.1}}

    changed(published / "runs.json", as_it_was)
    config = only(read_study(published))["config"]
    assert config["detector"]["relation"] == {"power": 1.0, "setup": "train+"}
    assert config["detector"]["t2fnorm"] == {"tau": 0.1, "scored": "scaled"}
    assert "setup" not in config["benchmark"]
    changed(published / "runs.json", lambda content: content["runs"][0].update(config={}))
    assert only(read_study(published))["config"] == {}


def test_published_studies_below_a_folder(published: Path, tmp_path: Path) -> None:
    one, two = (Path(shutil.copytree(published, tmp_path / "results" / name)) for name in ("one", "two"))
    changed(two / "runs.json", lambda c: c["runs"][0].update(seed=1))
    pd.read_parquet(one / "rows.parquet").assign(seed=1).to_parquet(two / "rows.parquet", index=False)
    study = read_study(tmp_path / "results")
    assert [run["seed"] for run in study.runs] == [0, 1]
    assert study.rows["seed"].value_counts().to_dict() == dict.fromkeys([0, 1], len(study.rows) // 2)


def test_runs_are_preferred_to_what_was_published_beside_them(finished: Path) -> None:
    """A report written into the folder of runs is older than they are, and must not count twice."""
    write_study(read_study(finished), finished)
    write_study(read_study(finished), finished / "report")
    shutil.rmtree(finished / RUN / "step04")
    assert set(read_study(finished).rows["step"]) == {1, 2, 3}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: c.update(format=99), "format 1"),
        (lambda c: c.update(runs={}), "list of runs"),
        (lambda c: c["runs"].append("icarl"), "no usable 'benchmark'"),
        (lambda c: c["runs"][0].pop("detectors"), "no usable 'detectors'"),
        (lambda c: c["runs"][0].update(seed="0"), "no usable 'seed'"),
        (lambda c: c["runs"][0].update(seed=-1), "no usable 'seed'"),
        (lambda c: c["runs"][0].update(k=True), "no usable 'k'"),
        (lambda c: c["runs"][0].update(k=0), "no usable 'k'"),
        (lambda c: c["runs"][0].update(steps=0), "no usable 'steps'"),
        (lambda c: c["runs"][0].update(trained=None), "no usable 'trained'"),
        (lambda c: c["runs"][0].update(seconds=[1]), "no usable 'seconds'"),
        (lambda c: c["runs"][0].update(seconds=[{"training": "x"}]), "no usable 'seconds'"),
        (lambda c: c["runs"][0].update(seconds=[{"training": float("nan")}]), "no usable 'seconds'"),
        (lambda c: c["runs"][0].update(detectors={"msp": "x"}), "no usable 'detectors'"),
        (lambda c: c["runs"][0].update(detectors={"msp": None}), "no usable 'detectors'"),
        (lambda c: c["runs"][0].update(config={"detector": ["msp"]}), "no usable 'config'"),
        (lambda c: c["runs"][0].update(config={"detector": {"msp": 3}}), "no usable 'config'"),
        (lambda c: c["runs"][0].update(environment={"a": [float("inf")]}), "no usable 'environment'"),
        (lambda c: c["runs"][0].update(data=[{}]), "no usable 'data'"),
        (lambda c: c["runs"][0].update(data=["x"]), "no usable 'data'"),
        (lambda c: c["runs"][0]["data"][0].pop("paper"), "no usable 'data'"),
        (lambda c: c["runs"][0]["data"][0].update(images=1.5), "no usable 'data'"),
        (lambda c: c["runs"][0].update(seed=1), "digits/k2/icarl/seed0 that is not among its runs"),
    ],
)
def test_foreign_records(published: Path, change: Callable[[dict[str, Any]], None], why: str) -> None:
    changed(published / "runs.json", change)
    with pytest.raises(OpenCILError, match=why) as error:
        read_study(published)
    assert str(published / "runs.json") in str(error.value)
    assert "delete" not in str(error.value), "what is published cannot be computed again by deleting it"


ESCAPE = "\x1b[2Jx"


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.update(cil=ESCAPE),
        lambda run: run.update(benchmark=ESCAPE),
        lambda run: run["detectors"].update({ESCAPE: 0}),
        lambda run: run["data"][0].update(name=ESCAPE),
        lambda run: run["config"].update({ESCAPE: 1}),
        lambda run: run["config"]["detector"]["msp"].update(a=["b", {"c": ESCAPE}]),
        lambda run: run["config"].update(lone="\ud800"),
    ],
)
def test_records_cannot_command_a_terminal(published: Path, change: Callable[[dict[str, Any]], None]) -> None:
    changed(published / "runs.json", lambda content: change(content["runs"][0]))
    with pytest.raises(OpenCILError, match="with control characters") as error:
        read_study(published)
    assert str(error.value).isprintable()


def test_blanks_of_any_width_are_no_commands(published: Path) -> None:
    changed(published / "runs.json", lambda c: c["runs"][0]["config"].update(path="My\u202fData"))
    assert read_study(published).runs


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("data.json", '"images": 965', '"images": "many"'),
        ("step01/step.json", '"training": ', '"training": [], "tuning": '),
        ("config.yml", "  msp: {}", '  msp: {}\n  "\\e[2Jx": {}'),
        ("config.yml", "  msp: {}", "  msp: 3"),
    ],
)
def test_a_runs_own_files_are_checked_as_well(finished: Path, name: str, old: str, new: str) -> None:
    path = finished / RUN / name
    unseal(path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(OpenCILError, match="cannot be used") as error:
        read_study(finished)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("k", ["[two]", "[0]", "[]", "[true]"])
def test_a_run_that_has_only_begun_must_say_which_it_is(finished: Path, k: str) -> None:
    for step in (finished / RUN).glob("step*"):
        shutil.rmtree(step)
    path = finished / RUN / "config.yml"
    unseal(path)
    path.write_text(path.read_text().replace("classes_per_step: [2]", f"classes_per_step: {k}"))
    with pytest.raises(OpenCILError, match="does not say which run"):
        read_study(finished)


@pytest.mark.parametrize("name", ["rows.parquet", "runs.json"])
def test_damaged_files(published: Path, name: str) -> None:
    (published / name).write_bytes(b"junk")
    with pytest.raises(OpenCILError, match=name):
        read_study(published)


@pytest.mark.parametrize(
    "rows",
    [
        lambda rows: rows.drop(columns="task"),
        lambda rows: rows.assign(value="high"),
        lambda rows: rows.assign(cil=None),
        lambda rows: rows.assign(detector="\x1b[2Jmsp"),
    ],
)
def test_foreign_rows(published: Path, rows: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = published / "rows.parquet"
    rows(pd.read_parquet(path)).to_parquet(path, index=False)
    with pytest.raises(OpenCILError, match=r"rows\.parquet cannot be used") as error:
        read_study(published)
    assert str(error.value).isprintable()


def test_rows_of_two_runs_in_one_folder(finished: Path) -> None:
    path = finished / RUN / "step02/detectors/msp.parquet"
    pd.read_parquet(path).assign(seed=3).to_parquet(path, index=False)
    study = read_study(finished)
    (why,) = only(study)["left_out"].values()
    assert "rows of seed 3 in the place of 0" in why
    assert set(study.rows["seed"]) == {0}


def test_records_nested_deeper_than_python_goes_are_refused(published: Path) -> None:
    (published / "runs.json").write_text('{"runs": ' + "[" * 100_000)
    with pytest.raises(OpenCILError, match=r"runs\.json cannot be used"):
        read_study(published)


def test_rows_of_another_publication_are_refused(finished: Path, published: Path) -> None:
    """As a kill between the two files leaves them."""
    whole = read_study(finished)
    write_rows(published / "rows.parquet", whole.rows[whole.rows["detector"] != "msp"])
    with pytest.raises(OpenCILError, match=r"runs\.json .*with other rows than those of rows\.parquet"):
        read_study(published)
    write_study(whole, published)
    assert len(read_study(published).rows) == len(whole.rows)
