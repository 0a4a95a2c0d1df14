"""Rows in files: what is written is read, numbers and texts of k in one table too."""

from pathlib import Path

import pandas as pd
import pytest

from opencil.runs import file_formats as files
from opencil.study.records import USABLE
from opencil.study.rows import COLUMNS, Table, read_tables, settings_of, write_rows


def row(k: int | str, value: float) -> tuple[object, ...]:
    return ("b", k, "icarl", 0, 1, "msp", "noise", "far", 0, "auc", value)


def table(*ks: int | str) -> pd.DataFrame:
    return pd.DataFrame([row(k, i / 8) for i, k in enumerate(ks)], columns=COLUMNS)


def test_equal_steps_are_numbers(tmp_path: Path) -> None:
    write_rows(tmp_path / "a", table(10, 20))
    rows = read_tables([Table(tmp_path / "a")], files.damaged)
    assert rows["k"].dtype == "int64"
    assert rows["k"].tolist() == [10, 20]


def test_uneven_steps_are_texts_beside_numbers(tmp_path: Path) -> None:
    write_rows(tmp_path / "a", table(10))
    write_rows(tmp_path / "b", table("50+10"))
    rows = read_tables([Table(tmp_path / "a"), Table(tmp_path / "b")], files.damaged)
    assert rows["k"].tolist() == [10, "50+10"]
    assert (rows["k"] == 10).tolist() == [True, False]
    assert (rows["k"] == "50+10").tolist() == [False, True]
    write_rows(tmp_path / "both", rows)  # as a published study has them
    pd.testing.assert_frame_equal(read_tables([Table(tmp_path / "both")], files.damaged), rows)


def test_settings_sort_naturally() -> None:
    rows = table("50+10", 20, 5, 10, 5)
    assert settings_of(rows) == [("b", 5), ("b", 10), ("b", 20), ("b", "50+10")]


@pytest.mark.parametrize(
    ("k", "usable"), [(10, True), ("50+10", True), ("10", False), ("x", False), (0, False)]
)
def test_a_record_names_its_steps_in_one_form(k: object, usable: bool) -> None:
    assert USABLE["k"](k) is usable
