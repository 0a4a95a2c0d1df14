"""What is shown can be saved, as CSV and as LaTeX."""

import csv
import io
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.registry import DETECTORS
from opencil.report.statistics import statistics_tables
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
ODD = 'a "b", 50 % & c_d'


def test_the_leaderboard_as_csv(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    """In its order and selection, numbers alone, deviations in columns of their own."""
    rows = made_up(detectors=("msp", "energy", ODD))
    rows["cil"] = "=icarl"
    browser = show(rows, [record(cil="=icarl", seed=seed) for seed in range(3)])
    browser.choose("detector", ODD, "energy")
    browser.evaluate("document.querySelector('th[data-key=\"metric:fpr\"] button').click()")
    head, *lines = csv.reader(io.StringIO(browser.saved("#leaderboard", "CSV")))
    assert head == [
        "#", "CIL", "Detector", "AUC↑", "AUC↑ std", "FPR↓", "FPR↓ std", "AP↑", "AP↑ std", "Accuracy↑",
        "Accuracy↑ std",
    ]  # fmt: skip
    shown = browser.board()
    assert {line[2] for line in lines} == {ODD, "energy"}
    assert {line[1] for line in lines} == {"'=icarl"}, "what a spreadsheet would take for a formula"
    assert [[n, cil.removeprefix("'"), d] for n, cil, d, *_ in lines] == [line[:3] for line in shown]
    for saved, seen in zip(lines, shown, strict=True):
        numbers = [f"{float(text):.2f}" for text in saved[3:]]
        assert numbers == [part for cell in seen[3:] for part in cell.split(" ± ")]


def test_the_matrix_as_latex(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    """The three best are marked as in the tables; nothing in a name is a command."""
    level = {"msp": 0.4, "energy": 0.9, "gen": 0.6, ODD: 0.5}
    rows = made_up(detectors=tuple(level), seeds=(0,))
    rows["value"] = rows["detector"].map(level).where(rows["metric"] == "auc", rows["value"])
    browser = show(rows, [record(detectors=dict.fromkeys(level, 4))])
    text = browser.saved("#matrix", "LaTeX")
    assert r"energy & \underline{\textbf{90.00}} \\" in text
    assert r"gen & \textbf{60.00} \\" in text
    assert r'a "b", 50 \% \& c\_d & \underline{50.00} \\' in text
    assert r"msp & 40.00 \\" in text
    assert r"\begin{tabular}{lr}" in text
    assert "One seed: differences under 3 points mean little." in text
    assert text.count("{") == text.count("}")
    browser.evaluate("document.querySelector('#grid button').click()")  # a family that is folded is not shown
    assert "energy" not in browser.saved("#matrix", "LaTeX")


def test_a_table_that_was_made_with_the_page(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    study = Study(made_up(detectors=("msp", "energy", "gen")), [record(seed=seed) for seed in range(3)])
    tables = statistics_tables(study)
    browser = show(study.rows, study.runs, tables=tables)
    assert browser.evaluate(
        "[...document.querySelectorAll('#made-tables summary')].map(s => s.innerText)"
    ) == [table.title for table in tables]
    cells = "[...document.querySelectorAll('#made-tables table')[0].tBodies[0].rows]"
    shown = browser.evaluate(f"{cells}.map(r => [...r.cells].map(c => c.textContent))")
    titles = {name: DETECTORS.entry(name).title for name in ("msp", "energy", "gen")}
    assert shown == [[titles.get(cell.text, cell.text) for cell in line] for line in tables[0].lines]
    saved = list(csv.reader(io.StringIO(browser.saved("#made-tables details", "CSV"))))
    expected = list(csv.reader(io.StringIO(tables[0].csv())))
    assert saved[0] == expected[0]
    for ours, theirs in zip(saved[1:], expected[1:], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one == other or float(one) == pytest.approx(float(other), rel=1e-5)


def test_what_is_missing_is_shown_and_saved(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    lost = {"step02/step.json": "is missing"}
    runs = [record(left_out=lost), record(seed=1, trained=2, failed="RuntimeError: no luck")]
    browser = show(made_up(seeds=(0, 1)), runs)
    said = "Damaged or lost, so left out: icarl seed 0 (step02/step.json)."
    assert said in browser.evaluate("document.querySelector('#notes').innerText")
    status = browser.evaluate("document.querySelector('#status').innerText")
    assert "1 damaged" in status
    assert "1 failed" in status
    assert "b/k2/icarl/seed0: step02/step.json is missing" in status
    assert "RuntimeError: no luck" in browser.evaluate("document.querySelector('#progress').innerText")
    for place in ("#leaderboard", "#matrix"):
        head, *lines = csv.reader(io.StringIO(browser.saved(place, "CSV")))
        assert head[-1] == "missing"
        assert all(line[-1].startswith(said) for line in lines)
        assert r"(step02/step.json)" in browser.saved(place, "LaTeX")
