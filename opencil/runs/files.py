"""A run's files: tensors and tables on top of the whole-or-absent writing of ``opencil.atomic_files``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from opencil.atomic_files import digest, remove_temporary, write, write_text
from opencil.errors import OpenCILError

__all__ = [
    "damaged",
    "digest",
    "metadata",
    "read_json",
    "read_tensors",
    "remove_temporary",
    "write",
    "write_json",
    "write_rows",
    "write_tensors",
    "write_text",
]


def damaged(path: Path, error: object) -> OpenCILError:
    """The error for a stored file that cannot be used."""
    return OpenCILError(
        f"{path} cannot be used ({error}): delete the folder {path.parent} to compute it again"
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file for people to read."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors."""
    plain = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    write(path, lambda temporary: save_file(plain, temporary, metadata))


def write_rows(path: Path, rows: pd.DataFrame) -> None:
    """Write a table as Parquet."""
    write(path, lambda temporary: rows.to_parquet(temporary, index=False))


def read_json(path: Path, damaged: Callable[[Path, object], OpenCILError] = damaged) -> dict[str, Any]:
    """Read a JSON file's mapping; ``damaged`` makes the error for one that has none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a mapping")
        return content
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None


def metadata(path: Path) -> dict[str, str] | None:
    """What was written beside the tensors of a file; None where there is no such file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
