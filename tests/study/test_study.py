"""Published studies: the same rows and records as from runs; other and damaged files are refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import opencil
from opencil import BadInput, OpenCILError
from opencil.runs.reading import read_study
from opencil.study.rows import write_rows
from opencil.study.study import Study, write_study
from tests.stored import edit_json

RUN = Path("digits/k2/icarl/seed0")
ESCAPE = "\x1b[2Jx"


@pytest.fixture
def published(_finished_once: Path, tmp_path: Path) -> Path:
    write_study(read_study(_finished_once), tmp_path / "published")
    return tmp_path / "published"


def test_a_published_study_is_the_same(finished: Path, published: Path) -> None:
    assert sorted(path.name for path in published.iterdir()) == ["rows.parquet", "runs.json"]
    ours, theirs = read_study(finished), read_study(published)
    pd.testing.assert_frame_equal(theirs.rows, ours.rows)
    assert theirs.runs == ours.runs


def test_it_names_what_it_lacks(finished: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(finished / RUN, finished / RUN.with_name("seed1")))
    (broken / "config.yml").write_bytes(b"junk")
    (finished / RUN / "step01/step.json").write_bytes(b"junk")
    (finished / RUN / "error.txt").write_text("ValueError: no\n", encoding="utf-8")
    study = read_study(finished)
    write_study(study, tmp_path / "results/one")
    published = read_study(tmp_path / "results")
    assert (published.runs, published.left_out) == (study.runs, study.left_out)
    assert published.problems == study.problems
    shutil.copytree(tmp_path / "results/one", tmp_path / "results/other")
    (tmp_path / "results/other/rows.parquet").unlink()
    assert set(read_study(tmp_path / "results").left_out) - set(study.left_out) == {
        str(tmp_path / "results/other")
    }


def test_several_published_studies(published: Path, tmp_path: Path) -> None:
    other = tmp_path / "results/two"
    rows = pd.read_parquet(published / "rows.parquet").assign(seed=1)
    (run,) = read_study(published).runs
    write_study(Study(rows, [{**run, "seed": 1}]), other)
    shutil.copytree(published, tmp_path / "results/one")
    study = read_study(tmp_path / "results")
    assert [run["seed"] for run in study.runs] == [0, 1]
    assert study.rows["seed"].value_counts().to_dict() == dict.fromkeys([0, 1], len(rows))
    assert study.rows.index.tolist() == list(range(2 * len(rows)))
    with pytest.raises(BadInput, match="2 times"):
        read_study(tmp_path / "results", published)


def test_runs_are_preferred_to_a_study_beside_them(finished: Path) -> None:
    """A report in the folder of runs is older than they are."""
    write_study(read_study(finished), finished)
    write_study(read_study(finished), finished / "report")
    shutil.rmtree(finished / RUN / "step04")
    assert set(read_study(finished).rows["step"]) == {1, 2, 3}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda c: c.update(format=99), "format"),
        (lambda c: c.update(rows="0" * 64), "checksum"),
        (lambda c: c["runs"].append("icarl"), "icarl"),
        (lambda c: c.update(runs=3), "runs"),
        (lambda c: c.update(left_out=[1]), "left_out"),
        (lambda c: c["runs"][0].update(steps=10**9), "steps"),
        (lambda c: c["runs"][0].update(steps=3), "3 steps"),
        (lambda c: c["runs"][0].update(k=True), "k"),
        (lambda c: c["runs"][0].update(k="2+2"), "k"),
        (lambda c: c["runs"][0].update(cil=["icarl"]), "cil"),
        (lambda c: c["runs"][0]["detectors"].update(msp="all"), "msp"),
        (lambda c: c["runs"][0]["detectors"].update(msp=9), "steps"),
        (lambda c: c["runs"][0].update(seconds=[{"training": 1e308}]), "training"),
        (lambda c: c["runs"][0]["made"][0].pop("device"), "device"),
        (lambda c: c["runs"][0].update(data=[{"name": "<b>"}]), "data"),
        (lambda c: c["runs"][0]["config"].update(detector=[]), "detector"),
        (lambda c: c["runs"][0]["config"].update(a=eval("[" * 60 + "]" * 60)), "nested"),
        (lambda c: c["runs"][0].pop("seed"), "seed"),
        (lambda c: c["runs"][0].update(seed=1), "digits/k2/icarl/seed0"),
        (lambda c: c["runs"][0].update(seconds=[{"training": float("nan")}]), "not finite"),
        (lambda c: c["runs"][0].update(environment={"a": [float("inf")]}), "not finite"),
        (lambda c: c["runs"][0].update(cil=ESCAPE), "control characters"),
        (lambda c: c["runs"][0]["detectors"].update({ESCAPE: 0}), "control characters"),
        (
            lambda c: c["runs"][0]["config"]["detector"]["msp"].update(a=["b", {"c": ESCAPE}]),
            "control characters",
        ),
        (lambda c: c["runs"][0]["config"].update(lone="\ud800"), "control characters"),
    ],
)
def test_other_records_are_refused(
    published: Path, change: Callable[[dict[str, Any]], None], key: str
) -> None:
    edit_json(published / "runs.json", change)
    with pytest.raises(OpenCILError, match=key) as error:
        read_study(published)
    assert str(published) in str(error.value)
    assert str(error.value).isprintable()
    assert "delete" not in str(error.value), "a published study cannot be computed again"


def test_wide_blanks_can_be_shown(published: Path) -> None:
    edit_json(published / "runs.json", lambda c: c["runs"][0]["config"].update(path="My\u202fData"))
    assert read_study(published).runs


def test_rows_that_cannot_be_shown_are_refused(published: Path) -> None:
    rows = opencil.read_study(published).rows.assign(detector=f"{ESCAPE}msp")
    checksum = write_rows(published / "rows.parquet", rows)
    edit_json(published / "runs.json", lambda content: content.update(rows=checksum))
    with pytest.raises(OpenCILError, match="control characters") as error:
        read_study(published)
    assert str(error.value).isprintable()


def change_first(column: str, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(rows: pd.DataFrame) -> pd.DataFrame:
        where = rows.index[rows["metric"] == "auc"][0]
        return rows.assign(**{column: rows[column].mask(rows.index == where, value)})

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_first("value", float("nan")),
        change_first("value", 1e300),
        change_first("value", 1.5),
        change_first("value", -0.5),
        change_first("step", 10**9),
        change_first("step", 5),
        change_first("step", 0),
        change_first("task", -1),
        change_first("task", 2),
        change_first("distance", "<b>"),
        change_first("seed", 1),
        lambda rows: pd.concat([rows, rows[:1]]),
    ],
)
def test_rows_that_cannot_be_of_the_runs_are_refused(
    published: Path, change: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    checksum = write_rows(published / "rows.parquet", change(read_study(published).rows))
    edit_json(published / "runs.json", lambda content: content.update(rows=checksum))
    with pytest.raises(OpenCILError, match=r"rows\.parquet"):
        read_study(published)


@pytest.mark.parametrize("name", ["rows.parquet", "runs.json"])
@pytest.mark.parametrize("content", [b"junk", b"", None])
def test_damaged_files_are_refused(published: Path, name: str, content: bytes | None) -> None:
    (published / name).unlink() if content is None else (published / name).write_bytes(content)
    with pytest.raises(OpenCILError, match=name) as error:
        read_study(published)
    assert "delete" not in str(error.value)
