"""``opencil report``: output, files, formats and errors."""

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

from opencil.published import OOD
from opencil.runs.reading import read_study
from opencil.study.rows import COLUMNS
from opencil.study.study import Study, write_study
from tests.cli.common import call

RUN = "digits/k2/icarl/seed0"
RESULTS = Path(__file__).parents[2] / "results"
SHORT = ["--benchmark", "digits", "--cil", "icarl", "--device", "cpu", "--detector", "energy,msp,relation"]
CIFAR = {name: distance for distance, names in OOD["cifar100"].items() for name in names}


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


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ("3,4", "--top 3,4 is not understood"),
        ("0", "not understood"),
        ("3,d1", "did you mean"),
        ("", "names"),
    ],
)
def test_top_that_is_not_understood_is_2(grown: str, top: str, expected: str) -> None:
    result = call("report", grown, "--top", top)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


def test_report_shows_what_run_showed(finished: Path) -> None:
    ran = call("run", *SHORT, "--set", "cil.icarl.epochs=2", "--runs", str(finished))
    reported = call("report", str(finished))
    assert (reported.exit_code, reported.stderr) == (0, "")
    assert ran.stdout.splitlines()[:-1] == reported.stdout.splitlines()


def test_a_run_that_has_only_begun_is_2(finished: Path) -> None:
    for step in (finished / RUN).glob("step*"):
        shutil.rmtree(step)
    result = call("report", str(finished))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "none of 1 runs has a finished step yet" in result.stderr


def test_the_flipped_conventions_need_a_summary(finished: Path, tmp_path: Path) -> None:
    assert "FPR(OOD+)" in call("report", str(finished), "--table", "main,summary", "--extra").stdout
    assert call("report", str(finished), "--table", "main", "--extra", "--out", "out").exit_code == 0
    assert "FPR(OOD+)" in (tmp_path / "out" / "tables" / "summary-digits-k2.md").read_text()


def test_report_of_damaged_rows_is_1_and_names_the_file(finished: Path) -> None:
    path = finished / RUN / "step02" / "model.parquet"
    path.write_bytes(b"junk")
    result = call("report", str(finished))
    assert result.exit_code == 1
    assert f"{RUN}: step02/model.parquet" in result.stderr
    assert "Damaged or lost, so left out: icarl seed 0 (step02/model.parquet)." in result.stdout


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


def test_compare(published: Callable[..., Path]) -> None:
    result = call("report", str(published("msp", "energy", "odin")), "--compare", "paper")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "ours beside the paper's" in result.stdout
    assert "agreement with the paper" in result.stdout
    assert "places365 has 10,000 test images, the paper's 33,773." in result.stdout
    assert "70.35" in result.stdout


def test_compare_with_the_survey(finished: Path) -> None:
    result = call("report", str(RESULTS / "study"), "--compare", "survey")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "accuracy, ours beside the survey's" in result.stdout
    assert "67.09" in result.stdout
    result = call("report", str(finished), "--compare", "survey")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "digits, 4 steps, k = 2" in result.stderr.replace("\n", " ")


def test_statistics(finished: Path) -> None:
    result = call("report", str(finished), "--baseline", "msp")
    assert result.stdout == call("report", str(finished), "--statistics", "--baseline", "msp").stdout
    assert (result.exit_code, result.stderr) == (0, "")
    assert "detectors ranked by AUC↑" in result.stdout
    assert "Difference from msp" in result.stdout
    assert "accuracy" not in result.stdout, "no summary unless it is asked for"
    assert call("report", str(finished), "--baseline", "energie").exit_code == 2


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


def test_a_report_of_a_published_report_is_the_same(published: Callable[..., Path], tmp_path: Path) -> None:
    call("report", str(published("msp", "energy", cil=("icarl",))), "--out", "one")
    call("report", "one", "--out", "two")
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()} for n in ("one", "two")
    )
    assert one == two


def test_names_from_a_strangers_file_stay_in_the_folder(
    published: Callable[..., Path], tmp_path: Path
) -> None:
    study = read_study(published("msp", cil=("icarl",)))
    runs = [run | {"benchmark": "../../evil"} for run in study.runs]
    source = tmp_path / "evil"
    write_study(Study(study.rows.assign(benchmark="../../evil"), runs), source)  # type: ignore[arg-type]
    before = set(tmp_path.rglob("*"))
    assert call("report", str(source), "--out", "deep/er/out").exit_code == 0
    inside = tmp_path / "deep"
    assert all(inside in (path, *path.parents) for path in set(tmp_path.rglob("*")) - before)
