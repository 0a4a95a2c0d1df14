"""Weights on disk: a tensor that an earlier step's file holds already is referred to, not written again.

A file's metadata says what lies elsewhere: in which step's file, as it was when it had this checksum, under
which name. So a frozen backbone is stored once, and a model that grows takes the room of what has grown.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.errors import OpenCILError
from opencil.runs import file_formats

#: Bytes of a tensor from which on it takes less room to refer to it.
WORTH_REFERRING = 256
_ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Stock:
    """What a step's weights hold, for the next step's to refer to.

    ``places`` are by content: the step whose file holds a tensor, and its name there. ``checksums`` are those
    of these files, by step.
    """

    places: dict[str, tuple[int, str]] = field(default_factory=dict)
    checksums: dict[int, str] = field(default_factory=dict)


def write_weights(
    path: Path,
    number: int,
    tensors: dict[str, Tensor],
    stock: Stock,
    metadata: dict[str, str] | None = None,
) -> Stock:
    """Write a step's tensors, but for those that are in stock; what there is to refer to then."""
    contents = _contents(tensors)
    borrowed = {name: stock.places[content] for name, content in contents.items() if content in stock.places}
    checksums = {step: stock.checksums[step] for step, _ in sorted(borrowed.values())}
    if borrowed:
        parts: dict[int, dict[str, Any]] = {
            step: {"sha256": sha256, "tensors": {}} for step, sha256 in checksums.items()
        }
        for name, (step, there) in borrowed.items():
            parts[step]["tensors"][name] = there
        metadata = (metadata or {}) | {_ELSEWHERE: json.dumps(parts)}
    own = {name: tensor for name, tensor in tensors.items() if name not in borrowed}
    checksums[number] = file_formats.write_tensors(path, own, metadata)
    return _stock(number, contents, borrowed, checksums)


def read_weights(
    path: Path, number: int, file_of: Callable[[int], Path], sha256: str | None = None
) -> tuple[dict[str, Tensor], Stock]:
    """A step's tensors, wherever they lie, and what there is to refer to; ``file_of`` gives a step's file.

    The file must have the checksum ``sha256``, if one is named, and every other one that which is said of it.
    """
    tensors, metadata, found = file_formats.read_checked(path, sha256)
    borrowed: dict[str, tuple[int, str]] = {}
    checksums = {number: found}
    try:
        parts = json.loads(metadata.get(_ELSEWHERE, "{}"))
        for step, part in parts.items():
            there = _read_borrowed(path, file_of(int(step)), part["sha256"])
            checksums[int(step)] = part["sha256"]
            for name, name_there in part["tensors"].items():
                tensors[name], borrowed[name] = there[name_there], (int(step), name_there)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise file_formats.damaged(path, f"what it refers to: {error!r}") from None
    return tensors, _stock(number, _contents(tensors), borrowed, checksums)


def _read_borrowed(path: Path, other: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of another step's file, if it is still the one that ``path`` refers to."""
    if not other.exists():
        raise OpenCILError(
            f"{other} is missing, and {path} refers to it: bring it back, or delete the folder "
            f"{other.parent} and let 'opencil run' compute it again"
        )
    tensors, _, found = file_formats.read_checked(other)
    if found == sha256:
        return tensors
    if found == file_formats.read_json(other.parent / "step.json").get("weights_sha256"):
        raise file_formats.damaged(path, f"{other}, which it refers to, has been computed anew")
    raise file_formats.damaged(other, f"its checksum differs from the one that {path} has recorded")


def _contents(tensors: dict[str, Tensor]) -> dict[str, str]:
    """A digest of each tensor that is worth a reference, by name; sorted: equal ones have one place."""
    contents = {}
    for name, tensor in sorted(tensors.items()):
        if tensor.nbytes >= WORTH_REFERRING:
            digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(file_formats.bytes_of(tensor))
            contents[name] = digest.hexdigest()
    return contents


def _stock(
    number: int, contents: dict[str, str], borrowed: dict[str, tuple[int, str]], checksums: dict[int, str]
) -> Stock:
    places = {content: borrowed.get(name, (number, name)) for name, content in contents.items()}
    return Stock(places, checksums)
