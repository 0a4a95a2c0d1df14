"""A run's files: tensors and tables on top of the whole-or-absent writing of ``opencil.atomic_files``."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from opencil.atomic_files import digest, remove_temporary, write, write_json, write_text
from opencil.atomic_files import read_json as _read_json
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
    "write_tensors",
    "write_text",
]


def damaged(path: Path, error: object) -> OpenCILError:
    """The error for a stored file that cannot be used."""
    return OpenCILError(
        f"{path} cannot be used ({error}): delete the folder {path.parent} to compute it again"
    )


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors."""
    plain = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
    write(path, lambda temporary: save_file(plain, temporary, metadata))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file's mapping."""
    return _read_json(path, damaged)


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
