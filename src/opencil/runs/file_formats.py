"""Tensors and notes in a run's files, all of them sealed, and the error for a file that cannot be used."""

import json
import logging
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from opencil.seals import BLANK, Damaged, digest, read_sealed, write_sealed
from opencil.seals import read_json as _read_json

#: What a file's name ends in that was damaged and has been computed again.
SET_ASIDE = ".damaged"
#: Files that the next run of the same config makes again by itself.
_MADE_AGAIN = {"checkpoint.safetensors", "accuracy.parquet", "environment.json", "data.json"}
_NOTES = "opencil"
_log = logging.getLogger("opencil.runs")


def damaged(path: Path, error: object) -> Damaged:
    """The error for a stored file that cannot be used, with what can be done about it."""
    room, name = path.parent, path.stem
    tuning = path.name.endswith(".checkpoint.safetensors")
    if path.name in _MADE_AGAIN or room.name == "detectors" or tuning:
        way = "'opencil run' makes it again"
    elif room.name == "heads":
        way = f"delete it and {room.parent / 'detectors' / name}.parquet to tune it again"
    elif path.name == "config.yml":
        way = f"if you changed it, remove its first line; else delete the folder {room} to compute it again"
    else:
        way = f"delete the folder {room} to compute it again"
    return Damaged(f"{path} cannot be used ({error}): {way}", error)


def set_aside(path: Path, reason: object) -> None:
    """Give a damaged file, or what lies in its place, another name: what it was for is computed again."""
    to = path.with_name(path.name + SET_ASIDE)
    number = 1
    while to.exists() or to.is_symlink():
        number += 1
        to = path.with_name(f"{path.name}{number}{SET_ASIDE}")
    path.rename(to)
    _log.warning("%s cannot be used (%s): it is computed again, and kept as %s", path, reason, to.name)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> str:
    """Write tensors as safetensors with their seal; its digits."""
    return write_sealed(path, packed(tensors, metadata))


def packed(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors and what is noted beside them as safetensors, to be sealed."""
    # One note: the order of several in a file is another in every process.
    notes = {_NOTES: json.dumps({**(metadata or {}), "seal": BLANK})}
    return save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, notes)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file's mapping."""
    return _read_json(path, damaged)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors."""
    return read_checked(path)[0]


def read_checked(path: Path, sha256: str | None = None) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """Tensors, metadata and checksum of a file, which must be ``sha256`` if that is named; one read.

    The checksum is that of the seal, and of the whole file where it has none.
    """
    content, seal = read_sealed(path, damaged)
    found = seal or digest(content)
    if sha256 is not None and found != sha256:
        raise damaged(path, "its checksum differs from the recorded one")
    try:
        tensors = load(content)
        (size,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + size])
        notes = header.get("__metadata__", {})
        notes = json.loads(notes[_NOTES]) if _NOTES in notes else notes
    except (SafetensorError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return tensors, {key: value for key, value in notes.items() if key != "seal"}, found


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's numbers, as they are stored."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def metadata(path: Path) -> dict[str, str] | None:
    """What was written beside the tensors of a file; None where there is no such file."""
    return read_checked(path)[1] if path.exists() else None
