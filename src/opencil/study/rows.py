"""Rows, one per measured value: their columns and their Parquet files."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from opencil.data.roles import FUTURE, ROLES
from opencil.data.stream import StepSizes
from opencil.files import damaged, read_bytes, write_bytes

#: Columns of a row. ``detector``, ``ood`` and ``distance`` are empty in rows of the CIL model itself.
#: ``task`` counts from 1 in rows of one task's samples, and is 0 in rows of all samples. ``k`` is a number
#: where all steps bring as many classes, and a text, 50+10, where they do not.
COLUMNS = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "distance", "task", "metric", "value"]
_TYPES = {"k": "int64", "seed": "int64", "step": "int64", "task": "int64", "value": "float64"}


#: Rows and bytes of a file, letters of a name, and a value whose square is finite.
_MOST, _MOST_BYTES, _LONGEST, _LARGEST = 50_000_000, 2**31, 1000, 1e100

#: Schemas of tables where k is a number, and where k is a text.
_NUMBERS = pa.schema([(name, _TYPES.get(name, "large_string")) for name in COLUMNS])
_TEXTS = _NUMBERS.set(COLUMNS.index("k"), pa.field("k", pa.large_string()))


def write_rows(path: Path, rows: pd.DataFrame) -> str:
    """Write rows as Parquet and return the file's checksum."""
    if rows["k"].dtype == object:  # numbers beside texts: a column of a file has one type
        rows = rows.assign(k=rows["k"].astype(str))
    return write_bytes(path, rows.to_parquet(index=False), flush=False)


def read_tables(files: Iterable[tuple[Path, str | None]]) -> pd.DataFrame:
    """Read the rows of some files, each with its checksum if known, one after the other."""
    return join_tables([read_table(path, sha256) for path, sha256 in files])


def join_tables(read: list[pa.Table]) -> pd.DataFrame:
    """Return the rows of some tables, one after the other."""
    if all(table.schema.equals(_NUMBERS) for table in read):
        rows: pd.DataFrame = pa.concat_tables([_NUMBERS.empty_table(), *read]).to_pandas()
        return rows
    rows = pa.concat_tables([table.cast(_TEXTS) for table in read]).to_pandas()
    labels = {text: int(text) if text.isdecimal() else text for text in rows["k"].unique()}
    return rows.assign(k=rows["k"].map(labels))


def settings_of(rows: pd.DataFrame) -> list[tuple[str, int | str]]:
    """Return the benchmarks and ks of rows, sorted: 5, 10, 20, 50+10."""
    pairs = rows[["benchmark", "k"]].drop_duplicates().itertuples(index=False, name=None)
    plain = [(str(benchmark), k if isinstance(k, str) else int(k)) for benchmark, k in pairs]
    return sorted(plain, key=lambda pair: (pair[0], StepSizes.parse(pair[1]).order))


def find_wrong(rows: pd.DataFrame, shares: Iterable[str]) -> str:
    """Return why rows cannot be those of runs, or ''; ``shares`` are metrics between 0 and 1."""
    percent = rows["metric"].isin([*shares])
    wrong = {
        "values that are not finite": ~(rows["value"].abs() < _LARGEST),
        "shares that are not between 0 and 1": percent & ~rows["value"].between(-1e-9, 1 + 1e-9),
        "steps or tasks that cannot be": (rows["task"] < 0) | (rows["step"] < rows["task"].clip(lower=1)),
        "unknown distances": ~rows["distance"].isin(["", *ROLES, FUTURE]),
        "two values of one metric": rows.duplicated([name for name in COLUMNS[:-1] if name != "distance"]),
    }
    return next((f"it has {what}" for what, these in wrong.items() if these.any()), "")


def read_table(path: Path, sha256: str | None) -> pa.Table:
    """Read a file's rows as an Arrow table: many tables are joined sooner than frames."""
    content = read_bytes(path, sha256, _MOST_BYTES)
    try:
        # Tables are small and many: a thread or a buffer for each takes longer than reading.
        with ParquetFile(pa.BufferReader(content), pre_buffer=False, read_dictionary=COLUMNS) as file:
            if file.metadata.num_rows > _MOST:
                raise ValueError(f"it has more than {_MOST:,} rows")
            _check_types(file.schema_arrow)
            table = file.read(use_threads=False)
        _check_names(table)
        table = table.cast(_NUMBERS if pa.types.is_integer(table.schema.field("k").type) else _TEXTS)
        if any(column.null_count for column in table.columns):
            raise ValueError("values are missing in it")
    except (OSError, ValueError, KeyError, RecursionError, pa.ArrowException) as error:
        raise damaged(path, error) from None
    return table


def _check_types(schema: pa.Schema) -> None:
    """Refuse columns that are not rows', before they are read: few bytes of them may fill the memory."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_dictionary)
    if schema.names != COLUMNS or not all(any(of(type) for of in kinds) for type in schema.types):
        raise ValueError(f"its columns are not {', '.join(COLUMNS)}, of numbers and names")


def _check_names(table: pa.Table) -> None:
    """Refuse long names while they are stored once, and not yet in each of their rows."""
    named = [column for column in table.columns if pa.types.is_dictionary(column.type)]
    names = [chunk.dictionary for column in named for chunk in column.chunks if len(chunk.dictionary)]
    longest = max((pc.max(pc.binary_length(part)).as_py() or 0 for part in names), default=0)
    if longest > _LONGEST or longest * len(table) > _MOST_BYTES:
        raise ValueError(f"it has a name of {longest:,} bytes, in {len(table):,} rows")
