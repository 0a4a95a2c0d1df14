"""The results that come with the code: the published comparison is made from the committed rows."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from opencil import read_study
from opencil.cli import app

RESULTS = Path(__file__).parents[2] / "results" / "cifar100"


def test_the_comparison_with_the_paper_is_made_from_the_committed_rows() -> None:
    done = CliRunner().invoke(app, ["report", str(RESULTS), "--compare", "paper", "--format", "markdown"])
    assert done.exit_code == 0, done.output
    for figure in ("60.36", "60.08", "70.61", "70.35", "66.08", "74.17"):  # iCaRL: accuracy, Energy, BER
        assert figure in done.stdout


def test_rows_are_whole() -> None:
    study = read_study(RESULTS)
    rows = study.rows
    assert {run["cil"]: run["trained"] for run in study.runs} == {"icarl": 10, "bic": 10, "wa": 10}
    of_icarl = rows[(rows["cil"] == "icarl") & (rows["metric"] == "auc") & (rows["task"] == 0)]
    assert len(of_icarl) == 19 * 10 * 6
    assert of_icarl["value"].between(0, 1).all()
    energy = of_icarl[of_icarl["detector"] == "energy"]["value"].mean()
    assert 100 * energy == pytest.approx(70.61, abs=0.005)
