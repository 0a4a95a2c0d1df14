"""Tensors and notes in a run's files, and the error for a file that cannot be used."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from opencil.atomic_files import read_json as _read_json
from opencil.atomic_files import write_bytes
from opencil.disk import disk_error
from opencil.errors import OpenCILError


def damaged(path: Path, error: object) -> OpenCILError:
    """The error for a stored file that cannot be used; one that a disk does not give is not damaged."""
    if isinstance(error, Exception) and (refused := disk_error(path, error, "read")):
        return refused
    return OpenCILError(
        f"{path} cannot be used ({error}): delete the folder {path.parent} to compute it again"
    )


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> str:
    """Write tensors as safetensors; the file's checksum."""
    content = save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, metadata)
    write_bytes(path, content)
    return checksum(content)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file's mapping."""
    return _read_json(path, damaged)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors."""
    return _read(path)[0]


def read_checked(path: Path, sha256: str | None = None) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """Tensors, metadata and checksum of a file, which must be ``sha256`` if that is named; one read."""
    tensors, content = _read(path)
    found = checksum(content)
    if sha256 is not None and found != sha256:
        raise damaged(path, "its checksum differs from the recorded one")
    return tensors, metadata_in(content), found


def metadata_in(content: bytes) -> dict[str, str]:
    """What was written beside the tensors of a file with this content."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's numbers, as they are stored."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def checksum(content: bytes) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def metadata(path: Path) -> dict[str, str] | None:
    """What was written beside the tensors of a file; None where there is no such file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None


def _read(path: Path) -> tuple[dict[str, Tensor], bytes]:
    try:
        content = path.read_bytes()
        return load(content), content
    except (OSError, SafetensorError) as error:
        raise damaged(path, error) from None
