"""Rows in files: numbers and texts of k in one table, and tables that cannot be used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opencil.files import Damaged, DiskError
from opencil.study.rows import COLUMNS, read_tables, settings_of, write_rows


def table(*ks: int | str) -> pd.DataFrame:
    rows = [("b", k, "icarl", 0, 1, "msp", "noise", "far", 0, "auc", i / 8) for i, k in enumerate(ks)]
    return pd.DataFrame(rows, columns=COLUMNS)


def test_numbers_and_texts_of_k(tmp_path: Path) -> None:
    checksum = write_rows(tmp_path / "a", table(10, 20))
    write_rows(tmp_path / "b", table("50+10"))
    rows = read_tables([(tmp_path / "a", checksum)])
    assert rows["k"].dtype == "int64"
    rows = read_tables([(tmp_path / "a", checksum), (tmp_path / "b", None)])
    assert rows["k"].tolist() == [10, 20, "50+10"]
    write_rows(tmp_path / "both", rows)  # as in a published study
    pd.testing.assert_frame_equal(read_tables([(tmp_path / "both", None)]), rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.drop(columns="task"),
        lambda rows: rows.assign(value="high"),
        lambda rows: rows.assign(cil=None),
        lambda rows: pd.DataFrame({"a": [1]}),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(table(10)).to_parquet(path := tmp_path / "a.parquet", index=False)
    with pytest.raises(Damaged, match=str(path)):
        read_tables([(path, None)])


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(100_000)])
@pytest.mark.parametrize("name", ["cil", "task", "other"])
def test_long_names_are_refused_before_they_stand_in_each_row(tmp_path: Path, kind: Any, name: str) -> None:
    rows = 20_000
    columns = {column: pa.array(values) for column, values in table(*[10] * rows).items()}
    long = pa.DictionaryArray.from_arrays(np.zeros(rows, "int32"), pa.array([b"x" * 100_000], kind))
    pq.write_table(pa.table({**columns, name: long}), path := tmp_path / "a.parquet", store_schema=False)
    limit = pa.default_memory_pool().max_memory() + 2**28
    with pytest.raises(Damaged):
        read_tables([(path, None)])
    assert pa.default_memory_pool().max_memory() < limit  # the names alone would take 2 GB


def test_damaged_and_missing_tables_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    checksum = write_rows(path, table(10))
    for content in (b"", b"junk", b"PAR1junkPAR1"):
        path.write_bytes(content)
        for known in (checksum, None):
            with pytest.raises(Damaged):
                read_tables([(path, known)])

    def fail(_: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(DiskError):
        read_tables([(path, None)])


def test_settings_sort_naturally() -> None:
    rows = table("50+10", 20, 5, 10, 5)
    assert settings_of(rows) == [("b", 5), ("b", 10), ("b", 20), ("b", "50+10")]
