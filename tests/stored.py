"""The files of stored runs: compare two stores bit for bit, and change or damage a file."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.files import read_json, write_json
from opencil.runs.store import Info, StepFolder

#: Values in ``step.json`` and ``environment.json`` that differ between two runs of one config.
_MEASURED = {"seconds", "time", "command", "sha256"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every stored file below a folder by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "error.txt")
    }


def results(folder: Path) -> dict[str, object]:
    """Return all that must be the same in two runs of one config, in however many calls they were done."""
    return {
        name: _without_measured(json.loads(content)) if name.endswith(".json") else content
        for name, content in contents(folder).items()
    }


def _without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_measured(part) for key, part in value.items() if key not in _MEASURED}
    return [_without_measured(part) for part in value] if isinstance(value, list) else value


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a stored JSON file and renew its checksum."""
    content = read_json(path)
    change(content)
    write_json(path, content)


def edit_config(path: Path, old: str, new: str) -> None:
    """Replace text in a run's stored config and renew its checksum."""
    first, _, text = path.read_bytes().partition(b"\n")
    assert old.encode() in text
    text = text.replace(old.encode(), new.encode())
    label = first.rpartition(b" ")[0]
    path.write_bytes(label + b" " + hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def replace_model(step: StepFolder, tensors: dict[str, Tensor], info: Info) -> None:
    """Store other weights in a step, as if its rows were made on them."""
    step.save_tensors("model.safetensors", tensors, info)
    for note in info["rows"].values():
        note["model"] = info["files"]["model.safetensors"]
    step.save_info(info)


def flip(path: Path, position: int = -1) -> None:
    """Flip a bit of one byte of a file, by default of the last."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
