"""Rows, one a measured value: their columns, and the files that they are stored in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.atomic_files import write
from opencil.errors import OpenCILError

#: Columns of a row. ``detector``, ``ood`` and ``distance`` are empty in rows of the CIL model itself.
#: ``task`` counts from 1 in rows of one task's samples, and is 0 in rows of all samples.
COLUMNS = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "distance", "task", "metric", "value"]
_TYPES = {"k": "int64", "seed": "int64", "step": "int64", "task": "int64", "value": "float64"}


def write_rows(path: Path, rows: pd.DataFrame) -> None:
    """Write a table as Parquet."""
    write(path, lambda temporary: rows.to_parquet(temporary, index=False))


def read_tables(paths: list[Path], damaged: Callable[[Path, object], OpenCILError]) -> pd.DataFrame:
    """The rows of some files, one after the other: read by Arrow, three times as fast as by pandas.

    ``damaged`` makes the error for a file that cannot be used.
    """
    import pyarrow as pa

    schema = pa.schema([(name, _TYPES.get(name, "large_string")) for name in COLUMNS])
    tables = [_read_table(path, schema, damaged) for path in paths]
    rows: pd.DataFrame = pa.concat_tables([schema.empty_table(), *tables]).to_pandas()
    return rows


def _read_table(path: Path, schema: Any, damaged: Callable[[Path, object], OpenCILError]) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    if not path.exists():
        raise damaged(path, "it is missing")
    try:
        # Tables are small and many: a thread or a buffer of its own takes longer than reading one.
        with ParquetFile(path, pre_buffer=False) as file:
            table = file.read(use_threads=False)
        if table.column_names != COLUMNS:
            raise damaged(path, f"its columns are {', '.join(table.column_names)}")
        if not table.schema.equals(schema):
            table = table.cast(schema)
    except (OSError, ValueError, ArrowException) as error:
        raise damaged(path, error) from None
    if any(column.null_count for column in table.columns):
        raise damaged(path, "values are missing in it")
    return table
