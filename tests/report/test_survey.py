"""Ours beside the survey of class-incremental learning."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.published import SURVEY, SURVEY_ACCURACY, published_survey
from opencil.report.compare import incomparable, survey_tables
from opencil.report.layout import Table
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
NEAREST = "accuracy_nearest_mean"


@pytest.fixture
def cifar(made_up: Rows) -> Rows:
    """Random rows of CIFAR-100 at k = 10, all ten steps, with accuracies of nearest means."""

    def make(cil: str = "icarl", **values: Any) -> pd.DataFrame:
        place: dict[str, Any] = {"benchmark": "cifar100", "k": 10, "steps": 10, "detectors": ("msp",)}
        return made_up(cil=cil, others=(NEAREST,), **place | values)

    return make


def lines(table: Table) -> dict[str, list[str]]:
    return {cells[0].text: [cell.text for cell in cells[1:]] for cells in table.lines}


def accuracy(rows: pd.DataFrame, cil: str, seed: int, step: int, metric: str) -> float:
    """One accuracy, in percent, looked up row by row."""
    found = [
        row["value"]
        for row in rows.to_dict("records")
        if (row["cil"], row["seed"], row["step"]) == (cil, seed, step)
        and (row["detector"], row["task"], row["metric"]) == ("", 0, metric)
    ]
    (value,) = found
    return 100 * value


def test_the_surveys_figures_are_whole() -> None:
    table = published_survey()
    assert len(table) == 240
    assert list(table.columns) == ["split", "cil", "step", "classes", "metric", "value"]
    assert table["cil"].nunique() == 14
    assert {"icarl", "bic", "wa", "foster", "replay", "finetune"} <= set(table["cil"])
    assert table["value"].between(0, 100).all()
    assert round(table["value"].sum(), 2) == 13053.17
    assert "2302.03648" in SURVEY
    known = table.set_index(["split", "cil", "metric", "step"])["value"]
    assert known["b0-10", "icarl", "average_accuracy", 0] == 64.42
    assert known["b0-10", "wa", "accuracy", 10] == known["b0-10", "wa", "last_accuracy", 0] == 52.30


@pytest.mark.parametrize("cil", ["wa", "icarl"])
def test_average_last_and_steps_beside_the_surveys(cifar: Rows, cil: str) -> None:
    rows, metric = cifar(cil), SURVEY_ACCURACY.get(cil, "accuracy")
    (table,) = survey_tables(Study(rows))
    (name,) = lines(table)
    assert name == {"wa": "wa", "icarl": "icarl (nearest mean)"}[cil]
    found = lines(table)[name]
    by_step = {
        step: sum(accuracy(rows, cil, seed, step, metric) for seed in (0, 1, 2)) / 3 for step in range(1, 11)
    }
    figures = published_survey()
    of_cil = figures[(figures["split"] == "b0-10") & (figures["cil"] == cil)]
    theirs = of_cil.set_index(["metric", "step"])["value"].to_dict()
    for place, ours, survey in (
        (0, sum(by_step.values()) / 10, theirs["average_accuracy", 0]),
        (3, by_step[10], theirs["last_accuracy", 0]),
    ):
        assert found[place].startswith(f"{ours:.2f} ± ")
        assert found[place + 1 : place + 3] == [f"{survey:.2f}", f"{ours - survey:+.2f}"]
    assert found[6:] == [f"{by_step[step] - theirs['accuracy', step]:+.2f}" for step in by_step]
    assert any("nearest means of exemplars" in note for note in table.notes)


def test_a_larger_first_step_has_the_average_of_its_steps(cifar: Rows) -> None:
    (table,) = survey_tables(Study(cifar("wa", k="50+10", steps=6, seeds=(0,))))
    steps = [76.54, 68.65, 66.43, 60.74, 57.68, 55.85]
    found = lines(table)["wa"]
    assert (found[1], found[4]) == (f"{sum(steps) / 6:.2f}", "55.85")
    assert "–" not in found


def test_detectors_that_are_not_finished_are_no_matter(cifar: Rows, record: Callable[..., Any]) -> None:
    run = record(benchmark="cifar100", k=10, cil="wa", steps=10, trained=10, detectors={"energy": 3})
    (table,) = survey_tables(Study(cifar("wa", seeds=(0,)), [run]))
    assert not table.missing
    half = cifar("wa", seeds=(0,), steps=5)  # its record says that ten are planned
    assert survey_tables(Study(half, [run])) == []
    assert "wa seed 0, 5 of 10 steps" in str(incomparable(Study(half, [run]), "survey"))
