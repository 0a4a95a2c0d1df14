"""What is shown can be saved, as CSV and as LaTeX."""

import csv
import io
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.registry import DETECTORS
from opencil.report.layout import Block, Column, Table, words
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
        "Accuracy↑ std", "seeds",
    ]  # fmt: skip
    shown = browser.board()
    assert {line[2] for line in lines} == {ODD, "energy"}
    assert {line[1] for line in lines} == {"'=icarl"}, "what a spreadsheet would take for a formula"
    assert [[n, cil.removeprefix("'"), d] for n, cil, d, *_ in lines] == [line[:3] for line in shown]
    for saved, seen in zip(lines, shown, strict=True):
        assert saved[-1] == "3 of 3"
        numbers = [f"{float(text):.2f}" for text in saved[3:-1]]
        assert numbers == [part for cell in seen[3:] for part in cell.split(" ± ")]


def test_a_board_begins_with_its_submissions_and_opens_the_last_ones_track(
    show: Callable[..., Any], made_up: Rows
) -> None:
    rows = made_up(detectors=("msp", "energy"))
    both = pd.concat([rows, rows.assign(k=20)], ignore_index=True)
    note = words("reproduced by another; " * 40)
    columns = [Column("submitter", label=True), Column("notes", label=True)]
    table = Table("submissions", "Submissions", columns, [Block([[words("Ada"), note]])], [])
    browser = show(both, [], 1440, tables=[table], opened=(rows["benchmark"][0], 20))
    assert browser.evaluate("document.querySelector('[name=k]').value") == "20"
    assert browser.evaluate("document.querySelector('main > section').id") == "tables"
    assert browser.evaluate("document.querySelector('#made-tables th[scope=row]').checkVisibility()")
    inside = "(box => box.scrollWidth <= box.clientWidth)(document.querySelector('#made-tables .scroll'))"
    assert browser.evaluate(inside)


def test_a_table_that_was_made_with_the_page(show: Callable[..., Any], made_up: Rows, record: Record) -> None:
    study = Study(made_up(detectors=("msp", "energy", "gen")), [record(seed=seed) for seed in range(3)])
    tables = statistics_tables(study)
    browser = show(study.rows, study.runs, tables=tables)
    assert browser.evaluate(
        "[...document.querySelectorAll('#made-tables summary')].map(s => s.textContent)"
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
