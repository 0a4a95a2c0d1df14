"""The results that come with the code: the published comparison is made from the committed rows."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from opencil import read_study
from opencil.cli import app

RESULTS = Path(__file__).parents[2] / "results" / "cifar100"


@pytest.fixture(scope="module")
def comparison() -> str:
    done = CliRunner().invoke(app, ["report", str(RESULTS), "--compare", "paper", "--format", "markdown"])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_comparison_with_the_paper_is_made_from_the_committed_rows(comparison: str) -> None:
    """Ours and the paper's: accuracies of iCaRL and FOSTER, Energy of iCaRL, BER of FOSTER."""
    for figures in ("| 60.09 | 60.08 |", "| 66.83 | 66.01 |", "| 69.69 | 70.35 |", "| 68.43 | 76.40 |"):
        assert figures in comparison


def test_the_published_tables_are_those_that_the_rows_make(comparison: str) -> None:
    published = (RESULTS / "tables.md").read_text(encoding="utf-8").splitlines()
    of_comparison = [line for line in comparison.splitlines() if line.startswith("|")]
    assert len(of_comparison) > 30
    assert not set(of_comparison) - set(published)


def test_rows_are_whole() -> None:
    study = read_study(RESULTS)
    assert {run["cil"]: run["trained"] for run in study.runs} == dict.fromkeys(
        ("icarl", "bic", "wa", "foster"), 10
    )
    rows = study.rows[(study.rows["metric"] == "auc") & (study.rows["task"] == 0)]
    assert rows["value"].between(0, 1).all()
    variants = rows["detector"].str.contains("@")
    assert len(rows[~variants]) == 4 * 16 * 10 * 6
    assert set(rows[variants & (rows["cil"] == "foster")]["detector"]) == {"ber@chosen"}
    energy = rows[(rows["cil"] == "icarl") & (rows["detector"] == "energy")]["value"].mean()
    assert 100 * energy == pytest.approx(69.69, abs=0.005)
