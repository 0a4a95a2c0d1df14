"""Rows, one per measured value: their columns and their Parquet files."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.stream import StepSizes
from opencil.files import damaged, read_bytes, write_bytes

#: Columns of a row. ``detector``, ``ood`` and ``distance`` are empty in rows of the CIL model itself.
#: ``task`` counts from 1 in rows of one task's samples, and is 0 in rows of all samples. ``k`` is a number
#: where all steps bring as many classes, and a text, 50+10, where they do not.
COLUMNS = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "distance", "task", "metric", "value"]
_TYPES = {"k": "int64", "seed": "int64", "step": "int64", "task": "int64", "value": "float64"}


def write_rows(path: Path, rows: pd.DataFrame) -> str:
    """Write rows as Parquet and return the file's checksum."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    if rows["k"].dtype == object:  # numbers beside texts: a column of a file has one type
        rows = rows.assign(k=rows["k"].astype(str))
    file = pa.BufferOutputStream()
    write_table(pa.Table.from_pandas(rows, preserve_index=False), file)
    return write_bytes(path, file.getvalue().to_pybytes(), flush=False, follow=False)


def read_tables(files: Iterable[tuple[Path, str | None]]) -> pd.DataFrame:
    """Read the rows of some files, each with its checksum if known, one after the other."""
    import pyarrow as pa

    read = [_read_table(path, sha256) for path, sha256 in files]
    schema, mixed = _schemas()
    if all(table.schema.equals(schema) for table in read):
        rows: pd.DataFrame = pa.concat_tables([schema.empty_table(), *read]).to_pandas()
        return rows
    rows = pa.concat_tables([table.cast(mixed) for table in read]).to_pandas()
    labels = {text: int(text) if text.isdecimal() else text for text in rows["k"].unique()}
    return rows.assign(k=rows["k"].map(labels))


def settings_of(rows: pd.DataFrame) -> list[tuple[str, int | str]]:
    """Return the benchmarks and ks of rows, sorted: 5, 10, 20, 50+10."""
    pairs = rows[["benchmark", "k"]].drop_duplicates().itertuples(index=False, name=None)
    plain = [(str(benchmark), k if isinstance(k, str) else int(k)) for benchmark, k in pairs]
    return sorted(plain, key=lambda pair: (pair[0], StepSizes.parse(pair[1]).order))


@cache
def _schemas() -> tuple[Any, Any]:
    """Return the schemas of tables where k is a number, and where k is a text."""
    import pyarrow as pa

    schema = pa.schema([(name, _TYPES.get(name, "large_string")) for name in COLUMNS])
    return schema, schema.set(COLUMNS.index("k"), pa.field("k", pa.large_string()))


def _read_table(path: Path, sha256: str | None) -> Any:
    """Read a file's rows."""
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import ParquetFile
    from pyarrow.types import is_integer

    content = read_bytes(path, sha256)
    try:
        # Tables are small and many: a thread or a buffer for each takes longer than reading.
        with ParquetFile(BufferReader(content), pre_buffer=False) as file:
            rows = file.read(use_threads=False)
        if rows.column_names != COLUMNS:
            raise damaged(path, f"its columns are {', '.join(rows.column_names)}")
        schema = _schemas()[0 if is_integer(rows.schema.field("k").type) else 1]
        if not rows.schema.equals(schema):
            rows = rows.cast(schema)
    except (OSError, ValueError, RecursionError, ArrowException) as error:
        raise damaged(path, error) from None
    if any(column.null_count for column in rows.columns):
        raise damaged(path, "values are missing in it")
    return rows
