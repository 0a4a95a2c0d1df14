"""Rows, one a measured value: their columns, and the files that they are stored in."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.stream import StepSizes
from opencil.errors import OpenCILError
from opencil.seals import BLANK, read_sealed, write_sealed

Trouble = Callable[[Path, object], OpenCILError]  #: makes the error for a file that cannot be used

#: Columns of a row. ``detector``, ``ood`` and ``distance`` are empty in rows of the CIL model itself.
#: ``task`` counts from 1 in rows of one task's samples, and is 0 in rows of all samples. ``k`` is a number
#: where all steps bring as many classes, and a text, 50+10, where they do not.
COLUMNS = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "distance", "task", "metric", "value"]
#: Where pandas, too, keeps what is noted of a table.
_NOTES = b"PANDAS_ATTRS"
_TYPES = {"k": "int64", "seed": "int64", "step": "int64", "task": "int64", "value": "float64"}


def write_rows(path: Path, rows: pd.DataFrame) -> str:
    """Write a table as Parquet, what ``noted`` has noted beside it, with its seal; the seal's digits."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    if rows["k"].dtype == object:  # numbers beside texts: a column of a file has one type
        rows = rows.assign(k=rows["k"].astype(str))
    table = pa.Table.from_pandas(rows, preserve_index=False)
    notes = {_NOTES: json.dumps(rows.attrs).encode()} if rows.attrs else {}
    file = pa.BufferOutputStream()
    write_table(table.replace_schema_metadata({**table.schema.metadata, **notes, b"seal": BLANK}), file)
    return write_sealed(path, file.getvalue().to_pybytes())


def noted(rows: pd.DataFrame, metrics: Iterable[str], model: str = "") -> pd.DataFrame:
    """Rows that say which metrics they were measured with, and on which model, by its checksum.

    Metrics without a value are not looked for again.
    """
    rows.attrs = {"metrics": sorted(metrics), "model": model}
    rows.attrs = {key: value for key, value in rows.attrs.items() if value}
    return rows


@dataclass(frozen=True)
class Table:
    """A file of rows, and what they must be of: all rows have these values in these columns."""

    path: Path
    of: Mapping[str, int | str] = field(default_factory=dict)
    #: Checksum of the model that they were measured on. Tables did not say it once.
    model: str = ""


def read_tables(tables: Iterable[Table], damaged: Trouble) -> pd.DataFrame:
    """The rows of some files, one after the other: read by Arrow, three times as fast as by pandas.

    ``damaged`` makes the error for a file that cannot be used.
    """
    import pyarrow as pa

    read = [_read_table(table, damaged)[0] for table in tables]
    schema, uneven = _schemas()
    if all(table.schema.equals(schema) for table in read):
        rows: pd.DataFrame = pa.concat_tables([schema.empty_table(), *read]).to_pandas()
        return rows
    rows = pa.concat_tables([table.cast(uneven) for table in read]).to_pandas()
    labels = {text: int(text) if text.isdecimal() else text for text in rows["k"].unique()}
    return rows.assign(k=rows["k"].map(labels))


def measured_metrics(table: Table, damaged: Trouble) -> set[str]:
    """The metrics of a file's rows, and those that were measured and had no value."""
    rows, notes = _read_table(table, damaged)
    return {*rows["metric"].unique().to_pylist(), *notes.get("metrics", ())}


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


@cache
def _schemas() -> tuple[Any, Any]:
    """What tables look like whose k is a number, and whose k is a text."""
    import pyarrow as pa

    schema = pa.schema([(name, _TYPES.get(name, "large_string")) for name in COLUMNS])
    return schema, schema.set(COLUMNS.index("k"), pa.field("k", pa.large_string()))


def _read_table(table: Table, damaged: Trouble) -> tuple[Any, dict[str, Any]]:
    """A file's rows, which are those of its place, and what is noted beside them."""
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import ParquetFile
    from pyarrow.types import is_integer

    path = table.path
    if not path.exists():
        raise damaged(path, "it is missing")
    content, _ = read_sealed(path, damaged)
    try:
        # Tables are small and many: a thread or a buffer of its own takes longer than reading one.
        with ParquetFile(BufferReader(content), pre_buffer=False) as file:
            rows = file.read(use_threads=False)
        notes = json.loads((rows.schema.metadata or {}).get(_NOTES, b"{}"))
        if rows.column_names != COLUMNS:
            raise damaged(path, f"its columns are {', '.join(rows.column_names)}")
        schema = _schemas()[0 if is_integer(rows.schema.field("k").type) else 1]
        if not rows.schema.equals(schema):
            rows = rows.cast(schema)
    except (OSError, ValueError, RecursionError, ArrowException) as error:
        raise damaged(path, error) from None
    if any(column.null_count for column in rows.columns):
        raise damaged(path, "values are missing in it")
    for name, wanted in table.of.items():
        for found in rows[name].unique().to_pylist():
            if str(found) != str(wanted):
                raise damaged(path, f"it has rows of {name} {found!r} in the place of {wanted!r}")
    if table.model and notes.get("model", table.model) != table.model:
        raise damaged(path, "it was measured on another model than the step's")
    return rows, notes
