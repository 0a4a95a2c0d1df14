"""Folders of runs as a study: what is damaged or lost is left out, and named."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from opencil import OpenCILError
from opencil.cli import app
from opencil.report.tables import KINDS, tables
from opencil.runs.reading import read_study, study_so_far
from opencil.study.study import Study, write_study

RUN = Path("digits/k2/icarl/seed0")
Damage = Callable[[Path], object]
MSP = "step03/detectors/msp.parquet"


def junk(path: Path) -> None:
    path.write_bytes(b"junk")


def lost(path: Path) -> None:
    path.unlink()


@pytest.fixture
def with_broken(finished: Path) -> Path:
    """A run beside another whose config cannot be read."""
    shutil.copytree(finished / RUN, finished / RUN.with_name("seed1"))
    junk(finished / RUN.with_name("seed1") / "config.yml")
    return finished


@pytest.mark.parametrize("damage", [junk, lost])
@pytest.mark.parametrize(
    ("file", "trained", "detectors", "rows"),
    [
        ("step02/step.json", 3, {"energy": 3, "msp": 3, "relation": 3}, lambda r: r["step"] != 2),
        ("step04/step.json", 3, {"energy": 3, "msp": 3, "relation": 3}, lambda r: r["step"] != 4),
        ("step02/accuracy.parquet", 4, {}, lambda r: (r["step"] != 2) | (r["detector"] != "")),
        (
            "step03/detectors/msp.parquet",
            4,
            {"msp": 3},
            lambda r: (r["step"] != 3) | (r["detector"] != "msp"),
        ),
        ("environment.json", 4, {}, lambda r: r["step"] > 0),
        ("data.json", 4, {}, lambda r: r["step"] > 0),
    ],
)
def test_a_file_that_is_damaged_or_lost_is_left_out_and_named(
    finished: Path,
    damage: Damage,
    file: str,
    trained: int,
    detectors: dict[str, int],
    rows: Callable[[pd.DataFrame], Any],
) -> None:
    before = read_study(finished)
    damage(finished / RUN / file)
    study = read_study(finished)
    (run,) = study.runs
    assert run["trained"] == trained
    assert run["detectors"] == {"energy": 4, "msp": 4, "relation": 4} | detectors
    pd.testing.assert_frame_equal(study.rows, before.rows[rows(before.rows)].reset_index(drop=True))
    if damage is lost and file in ("environment.json", "data.json", MSP):
        assert "left_out" not in run, "it may not have been written yet"
    else:
        assert list(run["left_out"]) == [file]
        (sentence,) = study.problems
        assert sentence.startswith(f"{RUN}: {file} ")
        assert str(finished) not in sentence, "it is published: paths of this machine have no place in it"
        made = [table for kind in KINDS for table in tables(kind, study)]
        assert made
        for table in made:
            assert f"Damaged or lost, so left out: icarl seed 0 ({file})." in table.missing
    if trained < 4 or detectors:
        missing = tables("main", study)[0].missing[0]
        assert missing.startswith("Not finished, so not counted: icarl seed 0, 3 of 4 steps (")


def test_a_run_that_failed_is_named(finished: Path) -> None:
    text = "Traceback (most recent call last):\n  File x\nRuntimeError: out of \x1b[31mluck\nand more\n"
    (finished / RUN / "error.txt").write_text(text, encoding="utf-8")
    study = read_study(finished)
    assert study.runs[0]["failed"] == "RuntimeError: out of [31mluck"
    assert study.problems == [], "nothing is left out"
    assert tables("main", study)[0].missing == ["Failed: icarl seed 0 (RuntimeError: out of [31mluck)."]


def test_a_run_that_cannot_be_read_leaves_the_others(with_broken: Path) -> None:
    study = read_study(with_broken)
    assert [run["seed"] for run in study.runs] == [0]
    assert list(study.left_out) == ["digits/k2/icarl/seed1"]
    assert study.problems[0].startswith("digits/k2/icarl/seed1: config.yml ")
    assert tables("main", study)[0].missing == [
        "Damaged or lost, so left out: digits/k2/icarl/seed1 (all of it)."
    ]
    assert study_so_far([with_broken / RUN, with_broken / RUN.with_name("seed1")], ["msp"]).problems


def test_a_run_of_another_setting_is_no_matter_of_a_table(finished: Path) -> None:
    study = read_study(finished)
    for name, told in {"digits/k5/icarl/seed0": False, "digits/k2/wa/seed0": True, "somewhere": True}.items():
        main = tables("main", Study(study.rows, study.runs, {name: "it is gone"}))
        assert bool(main[0].missing) is told


def test_a_folder_that_cannot_be_looked_into_is_named(
    with_broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, scan = with_broken / RUN.with_name("seed1"), os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(os.fspath(path)) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    study = read_study(with_broken)
    assert study.problems == ["digits/k2/icarl/seed1: it cannot be looked into (Permission denied)"]


def test_a_link_that_leads_nowhere_is_named(with_broken: Path) -> None:
    gone, link = with_broken / "unmounted", with_broken / RUN.with_name("seed2")
    link.symlink_to(gone)
    assert f"{link}: it is a link to {gone}, where nothing is" in read_study(with_broken).problems


def test_where_nothing_is_left_it_is_an_error(with_broken: Path) -> None:
    shutil.rmtree(with_broken / RUN)
    with pytest.raises(OpenCILError, match=r"^digits/k2/icarl/seed1: .*config\.yml"):
        read_study(with_broken)


def test_what_is_published_says_what_it_lacks(with_broken: Path, tmp_path: Path) -> None:
    junk(with_broken / RUN / "step01/step.json")
    (with_broken / RUN / "error.txt").write_text("ValueError: no\n", encoding="utf-8")
    study = read_study(with_broken)
    write_study(study, tmp_path / "results/one")
    published = read_study(tmp_path / "results")
    assert (published.runs, published.left_out) == (study.runs, study.left_out)
    assert tables("main", published)[0].missing == tables("main", study)[0].missing
    shutil.copytree(tmp_path / "results/one", tmp_path / "results/other")
    (tmp_path / "results/other/rows.parquet").unlink()
    beside = read_study(tmp_path / "results")
    assert set(beside.left_out) - set(study.left_out) == {str(tmp_path / "results/other")}


def test_an_asked_for_detector_is_not_behind_for_others_that_the_run_has(finished: Path) -> None:
    study = study_so_far([finished / RUN], ["msp"])
    assert all(not table.missing for kind in KINDS for table in tables(kind, study))


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex"])
def test_the_command_shows_the_rest_and_says_what_it_left_out(with_broken: Path, form: str) -> None:
    junk(with_broken / RUN / "step03/detectors/msp.parquet")
    result = CliRunner().invoke(app, ["report", str(with_broken), "--table", "all", "--format", form])
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    for sentence in ("digits/k2/icarl/seed1: ", "digits/k2/icarl/seed0: step03/detectors/msp.parquet "):
        assert sentence in result.stderr
    shown = " ".join(result.stdout.replace("\\", "").split())
    assert "Damaged or lost, so left out: icarl seed 0 (step03/detectors/msp.parquet); digits/k2" in shown


def test_the_command_that_made_a_run_stays_with_it(finished: Path) -> None:
    assert "command" in (finished / RUN / "environment.json").read_text(encoding="utf-8")
    (run,) = read_study(finished).runs
    assert "command" not in run["environment"], "it names folders, and studies are published"
    assert "torch" in run["environment"]
