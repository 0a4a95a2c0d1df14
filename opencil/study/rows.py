"""Rows, one a measured value: their columns, and the files that they are stored in."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.atomic_files import write
from opencil.data.stream import StepSizes
from opencil.errors import OpenCILError

#: Columns of a row. ``detector``, ``ood`` and ``distance`` are empty in rows of the CIL model itself.
#: ``task`` counts from 1 in rows of one task's samples, and is 0 in rows of all samples. ``k`` is a number
#: where all steps bring as many classes, and a text, 50+10, where they do not.
COLUMNS = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "distance", "task", "metric", "value"]
_TYPES = {"k": "int64", "seed": "int64", "step": "int64", "task": "int64", "value": "float64"}


def write_rows(path: Path, rows: pd.DataFrame) -> None:
    """Write a table as Parquet."""
    if rows["k"].dtype == object:  # numbers beside texts: a column of a file has one type
        rows = rows.assign(k=rows["k"].astype(str))
    write(path, lambda temporary: rows.to_parquet(temporary, index=False))


def read_tables(paths: list[Path], damaged: Callable[[Path, object], OpenCILError]) -> pd.DataFrame:
    """The rows of some files, one after the other: read by Arrow, three times as fast as by pandas.

    ``damaged`` makes the error for a file that cannot be used.
    """
    import pyarrow as pa

    schema = pa.schema([(name, _TYPES.get(name, "large_string")) for name in COLUMNS])
    uneven = schema.set(COLUMNS.index("k"), pa.field("k", pa.large_string()))
    tables = [_read_table(path, (schema, uneven), damaged) for path in paths]
    if all(table.schema.equals(schema) for table in tables):
        rows: pd.DataFrame = pa.concat_tables([schema.empty_table(), *tables]).to_pandas()
        return rows
    rows = pa.concat_tables([table.cast(uneven) for table in tables]).to_pandas()
    labels = {text: int(text) if text.isdecimal() else text for text in rows["k"].unique()}
    return rows.assign(k=rows["k"].map(labels))


def noted(rows: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """Rows that say which metrics they were measured with: those without a value are not looked for again."""
    if names := sorted(metrics):
        rows.attrs["metrics"] = names
    return rows


def measured_metrics(path: Path, damaged: Callable[[Path, object], OpenCILError]) -> set[str]:
    """The metrics of a file's rows, and those that were measured and had no value."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            attributes = json.loads((file.schema_arrow.metadata or {}).get(b"PANDAS_ATTRS", b"{}"))
            there = file.read(columns=["metric"])["metric"].unique().to_pylist()
    except (OSError, ValueError, ArrowException) as error:
        raise damaged(path, error) from None
    return {*there, *attributes.get("metrics", ())}


def plain_k(value: Any) -> int | str:
    """A row's k as plain Python: a number, or a text."""
    return value if isinstance(value, str) else int(value)


def settings_of(rows: pd.DataFrame) -> list[tuple[str, int | str]]:
    """The benchmarks and ks that rows have, sorted: 5, 10, 20, 50+10."""
    pairs = rows[["benchmark", "k"]].drop_duplicates().itertuples(index=False, name=None)
    return sorted(
        ((str(benchmark), plain_k(k)) for benchmark, k in pairs),
        key=lambda pair: (pair[0], StepSizes.parse(pair[1]).order),
    )


def _read_table(path: Path, schemas: tuple[Any, Any], damaged: Callable[[Path, object], OpenCILError]) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile
    from pyarrow.types import is_integer

    if not path.exists():
        raise damaged(path, "it is missing")
    try:
        # Tables are small and many: a thread or a buffer of its own takes longer than reading one.
        with ParquetFile(path, pre_buffer=False) as file:
            table = file.read(use_threads=False)
        if table.column_names != COLUMNS:
            raise damaged(path, f"its columns are {', '.join(table.column_names)}")
        schema = schemas[0] if is_integer(table.schema.field("k").type) else schemas[1]
        if not table.schema.equals(schema):
            table = table.cast(schema)
    except (OSError, ValueError, ArrowException) as error:
        raise damaged(path, error) from None
    if any(column.null_count for column in table.columns):
        raise damaged(path, "values are missing in it")
    return table
