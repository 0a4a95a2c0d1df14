"""The paper's own figures."""

from importlib import resources
from pathlib import Path

import pandas as pd
import pytest

import opencil
from opencil.published import in_percent, published_ablation
from opencil.study.rows import COLUMNS

RESULTS = Path(__file__).parents[2] / "results"


def test_published_results() -> None:
    table = opencil.published_results()
    assert len(table) == 3096
    assert list(table.columns) == [*COLUMNS, "table"]
    assert table["value"].between(0, 1).all()
    assert set(table["metric"]) == {"accuracy", "auc", "fpr", "ap"}
    accuracy = table[table["metric"] == "accuracy"]
    assert set(accuracy["detector"]) == set(accuracy["distance"]) == {""}
    assert set(table.loc[table["metric"] != "accuracy", "distance"]) == {"near", "far", "all"}
    assert "" not in set(table.loc[table["metric"] != "accuracy", "detector"])


def test_published_figures_stand_beside_rows_of_ours() -> None:
    """Same names, types and units: both in one table, without converting anything."""
    paper, ours = opencil.published_results(), opencil.read_study(RESULTS / "study").rows
    assert {name: str(paper[name].dtype) for name in COLUMNS} == {
        name: str(ours[name].dtype) for name in COLUMNS
    }
    both = pd.concat([paper[COLUMNS], ours[COLUMNS]])
    energy = both[(both["cil"] == "icarl") & (both["k"] == 10) & (both["detector"] == "energy")]
    near = energy[(energy["metric"] == "auc") & (energy["distance"] == "near") & (energy["seed"] == 0)]
    of_paper, of_ours = (near.loc[near["step"].eq(0) == paper, "value"].mean() for paper in (True, False))
    assert of_paper == 0.7172
    assert of_ours == pytest.approx(of_paper, abs=0.05)


def test_printed_figures_come_back_in_percent() -> None:
    with (resources.files("opencil.published") / "results.csv").open(encoding="utf-8") as file:
        printed = pd.read_csv(file, keep_default_na=False)["value"]
    assert in_percent(opencil.published_results()["value"]).tolist() == printed.tolist()
    ablation = published_ablation()
    assert list(ablation.columns) == [*COLUMNS, "table"]
    assert set(ablation["distance"]) == {"near", "far"}


def test_spot_values() -> None:
    table = opencil.published_results()

    def value(**where: object) -> float:
        found = table
        for column, wanted in where.items():
            found = found[found[column] == wanted]
        assert found["value"].nunique() == 1
        return float(found["value"].iloc[0])

    place = {"benchmark": "cifar100", "k": 10, "metric": "accuracy"}
    assert value(cil="icarl", **place) == 0.6008
    assert value(cil="bic", **place) == 0.6168
