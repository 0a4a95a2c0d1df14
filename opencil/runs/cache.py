"""Outputs kept on disk, so that a detector added later needs no forward pass.

An entry is one safetensors file, named by what it depends on: the weights, the images' pixels, the transform.
Before a new one is written, the least recently used ones make room for it: the folder never holds more than
its limit.
"""

import hashlib
import json
import os
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from opencil.engine.forward import Inputs, Outputs, outputs_of
from opencil.runs import files
from opencil.validation import plain

_NAMES = ("features", "logits")


class OutputsCache:
    """Features and logits in float32, in a folder of at most ``limit`` bytes; 0 keeps nothing.

    Several processes may use one folder: entries appear whole, and only one process at a time makes room.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def outputs(self, weights: str, inputs: Inputs) -> Outputs:
        """Outputs of the inputs, from the cache or by a forward pass; ``weights`` identifies their model."""
        if not self.limit:
            return outputs_of(inputs)
        path = self.folder / f"{_key(weights, inputs)}.safetensors"
        device = inputs.images.device
        stored = _read(path)
        if stored is None:
            outputs = outputs_of(inputs)
            self._write(path, dict(zip(_NAMES, (outputs.features, outputs.logits), strict=True)))
            return outputs
        features, logits = (stored[name].to(device) for name in _NAMES)
        return Outputs(features, logits, inputs.labels, inputs.model.classify, inputs)

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Store an entry, if it fits at all, after others have made room for it."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        if sum(tensor.nbytes for tensor in tensors.values()) > self.limit:
            return
        content = save(tensors, metadata={"sha256": _digest(tensors)})
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            files.remove_temporary(self.folder)
            path.unlink(missing_ok=True)
            if self._make_room(len(content)):
                files.write(path, lambda temporary: _fill(temporary, content))

    def _make_room(self, size: int) -> bool:
        """Remove the least recently used entries until ``size`` more bytes fit; whether they do."""
        entries = sorted(
            (e.stat().st_mtime_ns, e.stat().st_size, e) for e in self.folder.glob("*.safetensors")
        )
        total = sum(entry_size for _, entry_size, _ in entries)
        for _, entry_size, entry in entries:
            if total + size <= self.limit:
                break
            entry.unlink(missing_ok=True)
            total -= entry_size
        return total + size <= self.limit


def _key(weights: str, inputs: Inputs) -> str:
    """Name of an entry: a digest of all that decides its content."""
    transform = plain(inputs.transform) if inputs.transform else {}
    device = inputs.images.device.type  # devices round differently
    digest = hashlib.sha256(json.dumps([weights, transform, device, len(inputs)]).encode())
    if isinstance(inputs.images, Tensor):
        digest.update(_bytes(inputs.images))
    else:
        digest.update(inputs.images.fingerprint.encode())
    if inputs.indices is not None:
        digest.update(_bytes(inputs.indices))
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors of an entry, marked as used just now; None where it is absent or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in _NAMES}
        os.utime(path)
    except (OSError, SafetensorError):  # absent, damaged, or removed by another process just now
        return None
    return tensors if metadata and metadata.get("sha256") == _digest(tensors) else None


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(json.dumps([name, list(tensors[name].shape)]).encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
