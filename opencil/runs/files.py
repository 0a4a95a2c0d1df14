"""Files that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from opencil.errors import OpenCILError

_TEMPORARY = ".part"


def write(path: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write a file that appears under ``path`` only when it is complete and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}{_TEMPORARY}")
    try:
        fill(temporary)
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    write(path, lambda temporary: _write_text(temporary, text))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file for people to read."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as safetensors."""
    write(
        path,
        lambda temporary: save_file(
            {n: t.detach().cpu().contiguous() for n, t in tensors.items()}, temporary
        ),
    )


def write_rows(path: Path, rows: pd.DataFrame) -> None:
    """Write a table as Parquet."""
    write(path, lambda temporary: rows.to_parquet(temporary, index=False))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file's mapping."""
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


def damaged(path: Path, error: object) -> OpenCILError:
    """The error for a stored file that cannot be used."""
    return OpenCILError(
        f"{path} cannot be used ({error}): delete the folder {path.parent} to compute it again"
    )


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_temporary(folder: Path) -> None:
    """Delete what an interrupted process left half-written."""
    for leftover in folder.rglob(f"*{_TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
