"""``opencil report``: what it prints and writes, in which format, and what it refuses."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from opencil.cli import app
from opencil.published import OOD
from opencil.runs.reading import read_study
from opencil.study.rows import COLUMNS
from opencil.study.study import Study, write_study
from tests.siege.damage import unseal, unseal_run

RUN = "digits/k2/icarl/seed0"
RESULTS = Path(__file__).parents[2] / "results"
SHORT = ["--benchmark", "digits", "--cil", "icarl", "--device", "cpu", "--detector", "energy,msp,relation"]
CIFAR = {name: distance for distance, names in OOD["cifar100"].items() for name in names}


@pytest.fixture(autouse=True)
def _own_folder(empty_wide_folder: None) -> None:
    """Every command here starts so."""


def call(*words: str, **env: str) -> Any:
    return CliRunner().invoke(app, list(words), env=env or None)


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., Path]:
    """A made-up study of the paper's CIFAR-100 track, as published: ``published("msp", "energy")``."""

    def make(
        *detectors: str,
        cil: tuple[str, ...] = ("icarl", "wa"),
        name: str = "published",
        seeds: int = 1,
        done: int = 2,
    ) -> Path:
        draw, rows, runs = np.random.default_rng(0), [], []
        for method, seed in product(cil, range(seeds)):
            for step in range(1, done + 1):
                head = ("cifar100", 10, method, seed, step)
                rows += [(*head, "", "", "", task, "accuracy", draw.random()) for task in range(step + 1)]
                for detector in detectors:
                    for ood, distance in CIFAR.items():
                        place = (*head, detector, ood, distance, 0)
                        metrics = ("auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive")
                        rows += [(*place, metric, draw.random()) for metric in metrics]
            run: Any = {"benchmark": "cifar100", "k": 10, "cil": method, "seed": seed, "steps": 2}
            run |= {"trained": done, "seconds": [{"training": 1.0}] * done, "config": {}}
            run |= {"detectors": dict.fromkeys(detectors, done)}
            of_places = {"name": "places365", "role": "far", "split": "test", "images": 10_000}
            run |= {"environment": {}, "data": [{**of_places, "paper": 33_773, "files": ""}]}
            runs.append(run)
        write_study(Study(pd.DataFrame(rows, columns=COLUMNS), runs), tmp_path / name)
        return tmp_path / name

    return make


# --- how many are shown ----------------------------------------------------------------------------


@pytest.fixture
def grown(published: Callable[..., Path]) -> str:
    """Ten CIL methods, with eighteen detectors each."""
    return str(published(*(f"d{i:02}" for i in range(18)), cil=tuple(f"c{i}" for i in range(10))))


def test_a_terminal_shows_the_best_and_says_so(grown: str) -> None:
    shown = call("report", grown).stdout
    assert "16 of 18 detectors and 8 of 10 CIL methods" in " ".join(shown.split())
    every = call("report", grown, "--top", "all").stdout
    assert "CIL methods;" not in every
    assert len(every.splitlines()) > len(shown.splitlines()) + 180 - 128
    printed = call("report", grown, "--format", "csv").stdout
    assert all(f"d{i:02}" in printed for i in range(18)), "what goes into a file is whole"


def test_top_is_a_number_and_names(grown: str) -> None:
    table = ["--table", "main", "--format", "markdown", "--top"]
    few = call("report", grown, *table, "3,d00,d01,d02,d03")
    assert few.exit_code == 0, few.stderr
    assert all(f"| d0{i} |" in few.stdout for i in range(4))
    assert re.search(r"[4-7] of 18 detectors and 3 of 10 CIL methods", few.stdout)
    assert call("report", grown, "--table", "main", "--format", "csv", "--top", "3").stdout == (
        call("report", grown, "--table", "main", "--format", "csv").stdout
    )


@pytest.mark.parametrize(
    ("top", "told"),
    [
        ("3,4", "--top 3,4 is not understood"),
        ("0", "not understood"),
        ("3,d1", "did you mean"),
        ("", "names"),
    ],
)
def test_top_that_is_not_understood_is_2(grown: str, top: str, told: str) -> None:
    result = call("report", grown, "--top", top)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


# --- summary ---------------------------------------------------------------------------------------


def test_report_shows_what_run_showed(finished: Path) -> None:
    ran = call("run", *SHORT, "--set", "cil.icarl.epochs=2", "--runs", str(finished))
    reported = call("report", str(finished))
    assert (reported.exit_code, reported.stderr) == (0, "")
    assert ran.stdout.splitlines()[:-1] == reported.stdout.splitlines()


def test_report_looks_in_runs_by_default(finished: Path, tmp_path: Path) -> None:
    shutil.move(finished, tmp_path / "runs")
    assert call("report").exit_code == 0


def test_report_of_nothing_is_2(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        result = call("report", str(folder))
        assert (result.exit_code, result.stdout) == (2, "")
        assert str(folder) in result.stderr.replace("\n", "")


def test_a_run_that_has_only_begun_is_2(finished: Path) -> None:
    for step in (finished / RUN).glob("step*"):
        shutil.rmtree(step)
    result = call("report", str(finished))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the run has no finished step yet" in result.stderr
    other = Path(shutil.copytree(finished / RUN, finished / "other"))
    unseal_run(other)
    config = (other / "config.yml").read_text()
    (other / "config.yml").write_text(config.replace("  run: 0\n", "  run: 1\n"))
    assert "none of the 2 runs has a finished step yet" in call("report", str(finished)).stderr


def test_a_run_that_no_detector_has_been_evaluated_on(finished: Path) -> None:
    for folder in (finished / RUN).glob("step*/detectors"):
        shutil.rmtree(folder)
    assert "average" in call("report", str(finished)).stdout
    result = call("report", str(finished), "--table", "main")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no detector has been evaluated yet" in result.stderr
    assert call("report", str(finished), "--out", "out").exit_code == 0


def test_report_as_markdown(finished: Path) -> None:
    result = call("report", str(finished), "--format", "markdown")
    assert result.exit_code == 0
    models, detection = result.stdout.split("## digits, 2 classes per step: OOD detection\n")
    assert models.startswith("## digits, 2 classes per step: accuracy\n")
    assert models.count("| icarl |") == 1
    for table in detection.split("## digits, 2 classes per step: OOD detection under covariate shift\n"):
        found = [line.split()[3] for line in table.splitlines() if line.startswith("| icarl")]
        assert found == ["msp", "energy", "relation"], "as in the paper"


def test_report_with_the_flipped_conventions(finished: Path) -> None:
    plain, extra = call("report", str(finished)), call("report", str(finished), "--extra")
    assert "FPR(OOD+)↓" not in plain.stdout
    assert "FPR(OOD+)↓" in extra.stdout
    assert "AP(ID+)↑" in extra.stdout


def test_the_flipped_conventions_need_a_summary(finished: Path, tmp_path: Path) -> None:
    for words in (["--table", "main"], ["--statistics"]):
        result = call("report", str(finished), *words, "--extra")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--table summary" in result.stderr
    assert "FPR(OOD+)" in call("report", str(finished), "--table", "main,summary", "--extra").stdout
    assert call("report", str(finished), "--table", "main", "--extra", "--out", "out").exit_code == 0
    assert "FPR(OOD+)" in (tmp_path / "out" / "tables" / "summary-digits-k2.md").read_text()


def test_seconds_between_pages_need_a_watch(finished: Path) -> None:
    result = call("report", str(finished), "--every", "5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--watch" in result.stderr


def test_watching_does_not_speak_into_a_csv(finished: Path) -> None:
    result = call("report", str(finished), "--watch", "--format", "csv", "--table", "main")
    assert result.exit_code == 0
    assert result.stdout == call("report", str(finished), "--format", "csv", "--table", "main").stdout
    assert "all runs are done" in result.stderr


def test_a_page_does_not_replace_a_folder(finished: Path, tmp_path: Path) -> None:
    result = call("report", str(finished), "--html", str(tmp_path))
    assert result.exit_code == 2
    assert "is no file but a folder" in result.stderr.replace("\n", " ")


def test_report_of_damaged_rows_is_1_and_names_the_file(finished: Path) -> None:
    path = finished / RUN / "step02" / "accuracy.parquet"
    path.write_bytes(b"junk")
    result = call("report", str(finished))
    assert result.exit_code == 1
    assert f"{RUN}: step02/accuracy.parquet cannot be used" in result.stderr
    assert "Damaged or lost, so left out: icarl seed 0 (step02/accuracy.parquet)." in result.stdout


# --- tables ----------------------------------------------------------------------------------------


def test_tables_by_name(finished: Path) -> None:
    result = call("report", str(finished), "--table", "main,distance dataset")
    assert (result.exit_code, result.stderr) == (0, "")
    titles = [line for line in result.stdout.splitlines() if line.startswith("digits, 2 classes per step")]
    assert [title.rpartition(": ")[2] for title in titles] == [
        "main results",
        "near and far OOD, AUC↑",
        "near and far OOD, AP↑",
        "near and far OOD, FPR↓",
        "OOD detection per dataset",
    ]


@pytest.mark.parametrize(
    "words", [["--table", "mian"], ["--table", ","], ["--format", "pdf"], ["--compare", "x"]]
)
def test_unknown_words_are_2(finished: Path, words: list[str]) -> None:
    result = call("report", str(finished), *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_an_unknown_table_names_the_nearest(finished: Path) -> None:
    assert "did you mean 'main'?" in call("report", str(finished), "--table", "mian").stderr


def test_without_labels_no_ablation(finished: Path) -> None:
    result = call("report", str(finished), "--table", "ablation")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ber@nter" in result.stderr
    assert call("report", str(finished), "--table", "all").exit_code == 0, "all are those that there are"


@pytest.mark.parametrize(("width", "seeds"), [(40, 3), (60, 1), (80, 3), (160, 1)])
def test_no_line_is_wider_than_the_terminal(published: Callable[..., Path], width: int, seeds: int) -> None:
    detectors = ("msp", "relation", "regmix", "ber", "ber@nter")
    words = [
        str(published(*detectors, seeds=seeds)),
        "--extra",
        "--table",
        "all",
        "--compare",
        "paper",
        "--statistics",
    ]
    result = call("report", *words, COLUMNS=str(width), TTY_COMPATIBLE="1", NO_COLOR="1")
    assert result.exit_code == 0
    # Styles are no characters; the names of CIL methods tell that every part is there.
    plain = re.sub(r"\x1b\[[\d;]*m", "", result.stdout).splitlines()
    assert max(map(cell_len, plain)) <= width
    assert "icarl" in result.stdout
    assert "wa" in result.stdout


def test_csv_goes_to_other_programs(finished: Path) -> None:
    result = call("report", str(finished), "--table", "main", "--format", "csv", "--html", "a.html")
    assert result.stderr == "report: a.html\n", "not among the figures"
    header, *lines = csv.reader(io.StringIO(result.stdout))
    assert header == ["block", "detector", "icarl AUC↑", "icarl FPR↓"]
    assert [line[1] for line in lines] == [
        "CIL accuracy",
        *("model MB", "memory MB"),
        *("msp", "energy", "relation", "Average"),
    ]
    assert all(0 <= float(line[2]) <= 100 for line in lines)


@pytest.mark.parametrize(("form", "mark"), [("markdown", "## digits"), ("latex", r"\begin{tabular}")])
def test_other_formats(finished: Path, form: str, mark: str) -> None:
    result = call("report", str(finished), "--table", "main", "--format", form)
    assert (result.exit_code, result.stdout.count(mark)) == (0, 1)


# --- comparison and statistics ---------------------------------------------------------------------


def test_compare(published: Callable[..., Path]) -> None:
    result = call("report", str(published("msp", "energy", "odin")), "--compare", "paper")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "ours beside the paper's" in result.stdout
    assert "agreement with the paper" in result.stdout
    assert "places365 has 10,000 test images, the paper's 33,773." in result.stdout
    assert "70.35" in result.stdout


def test_compare_adds_the_tables_that_the_paper_has(published: Callable[..., Path]) -> None:
    words = ["--compare", "paper", "--table", "distance,summary"]
    text = call("report", str(published("msp", "energy", "odin")), *words).stdout
    assert "71.72" in text
    for about in (
        "OOD detection",
        "near and far OOD, AUC↑",
        "near and far OOD, AUC↑, ours beside the paper's",
    ):
        assert f"cifar100, 10 classes per step: {about}\n" in text, "those asked for, and their comparison"


def test_nothing_to_compare_with_is_2(finished: Path) -> None:
    result = call("report", str(finished), "--compare", "paper")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "digits with k = 2" in result.stderr


def test_compare_with_the_survey(finished: Path) -> None:
    result = call("report", str(RESULTS / "study"), "--compare", "survey")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "accuracy, ours beside the survey's" in result.stdout
    assert "67.09" in result.stdout
    result = call("report", str(finished), "--compare", "survey")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "digits in 4 steps of 2" in result.stderr.replace("\n", " ")


def test_what_is_not_finished_cannot_be_compared_yet(published: Callable[..., Path]) -> None:
    result = call("report", str(published("msp", "energy", done=1)), "--compare", "paper")
    assert (result.exit_code, result.stdout) == (2, "")
    said = result.stderr.replace("\n", " ")
    assert "nothing that is finished can be compared" in said
    assert "icarl seed 0, 1 of 2 steps (all detectors)" in said
    assert "has no figures" not in said


def test_statistics_of_what_is_not_finished(published: Callable[..., Path]) -> None:
    result = call("report", str(published("msp", "energy", done=1)), "--statistics")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "that are finished" in result.stderr.replace("\n", " ")


def test_statistics(finished: Path) -> None:
    result = call("report", str(finished), "--baseline", "msp")
    assert result.stdout == call("report", str(finished), "--statistics", "--baseline", "msp").stdout
    assert (result.exit_code, result.stderr) == (0, "")
    assert "detectors ranked by AUC↑" in result.stdout
    assert "Difference from msp" in result.stdout
    assert "accuracy" not in result.stdout, "no summary unless it is asked for"


def test_a_baseline_that_is_not_there_is_2(finished: Path) -> None:
    result = call("report", str(finished), "--statistics", "--baseline", "energie")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'energy'?" in result.stderr


def test_one_detector_has_no_statistics(published: Callable[..., Path]) -> None:
    result = call("report", str(published("msp")), "--statistics")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "at least two detectors" in result.stderr


# --- a folder of everything ------------------------------------------------------------------------


def test_out_writes_everything(published: Callable[..., Path], tmp_path: Path) -> None:
    source = published("msp", "odin", "ber", "ber@nter")
    result = call("report", str(source), "--out", "new/report")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "report: new/report"
    folder = tmp_path / "new" / "report"
    pd.testing.assert_frame_equal(read_study(folder).rows, read_study(source).rows)
    assert read_study(folder).runs == read_study(source).runs
    names = {path.stem for path in (folder / "tables").iterdir()}
    assert names == {
        "accuracy-cifar100-k10",
        "summary-cifar100-k10",
        "main-cifar100-k10",
        *(f"distance-{metric}-cifar100-k10" for metric in ("auc", "ap", "fpr")),
        *(f"dataset-{cil}-cifar100-k10" for cil in ("icarl", "wa")),
        *(f"ablation-ber-{cil}-cifar100-k10" for cil in ("icarl", "wa")),
        "compare-main-cifar100-k10",
        *(f"compare-distance-{metric}-cifar100-k10" for metric in ("auc", "ap", "fpr")),
        "compare-ablation-cifar100-k10",
        *(f"agreement-{kind}-cifar100-k10" for kind in ("main", "distance", "ablation")),
        "contradictions-cifar100-k10",
        *(f"statistics-{metric}-cifar100-k10" for metric in ("auc", "fpr")),
    }
    for name in names:
        assert {path.suffix for path in (folder / "tables").glob(f"{name}.*")} == {".md", ".csv", ".tex"}
    whole = (folder / "tables.md").read_text(encoding="utf-8")
    assert all((folder / "tables" / f"{name}.md").read_text(encoding="utf-8") in whole for name in names)


def test_out_of_runs_that_the_paper_does_not_have(finished: Path, tmp_path: Path) -> None:
    assert call("report", str(finished), "--out", "out").exit_code == 0
    names = {path.stem.partition("-")[0] for path in (tmp_path / "out" / "tables").iterdir()}
    assert names == {"accuracy", "summary", "shifted", "main", "distance", "dataset", "statistics"}


def test_a_report_of_a_published_report_is_the_same(published: Callable[..., Path], tmp_path: Path) -> None:
    call("report", str(published("msp", "energy", cil=("icarl",))), "--out", "one")
    call("report", "one", "--out", "two")
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()} for n in ("one", "two")
    )
    assert one == two


def test_several_folders_are_one_study(published: Callable[..., Path]) -> None:
    one = published("msp", "energy", cil=("icarl",), name="one")
    two = published("msp", "energy", cil=("wa",), name="two")
    text = call("report", str(one), str(two), "--table", "main", "--format", "csv").stdout
    assert text.splitlines()[0] == "block,detector,icarl AUC↑,icarl FPR↓,wa AUC↑,wa FPR↓"
    result = call("report", str(one), str(one))
    assert result.exit_code == 2
    assert "2 times" in result.stderr


def test_names_from_a_strangers_file_stay_in_the_folder(
    published: Callable[..., Path], tmp_path: Path
) -> None:
    source = published("msp", cil=("icarl",))
    rows = pd.read_parquet(source / "rows.parquet").assign(benchmark="../../evil")
    rows.to_parquet(source / "rows.parquet", index=False)
    unseal(source / "runs.json")
    content = json.loads((source / "runs.json").read_text())
    for run in content["runs"]:
        run["benchmark"] = "../../evil"
    (source / "runs.json").write_text(json.dumps(content))
    before = set(tmp_path.rglob("*"))
    assert call("report", str(source), "--out", "deep/er/out").exit_code == 0
    inside = tmp_path / "deep"
    assert all(inside in (path, *path.parents) for path in set(tmp_path.rglob("*")) - before)
