"""Outputs kept on disk, so that a detector added later needs no forward pass.

An entry is one safetensors file, named by what it depends on: the weights, the images' pixels, the transform.
Before a new one is written, the least recently used ones make room for it: the folder never holds more than
its limit.
"""

import hashlib
import json
import logging
import os
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from opencil.atomic_files import remove_temporary, write_bytes
from opencil.data.images import Images
from opencil.engine.forward import Inputs, Outputs, outputs_of
from opencil.runs import file_formats
from opencil.validation import plain

_NAMES = ("features", "logits")
_FORMAT = 2  # raised whenever outputs come to be computed differently
_log = logging.getLogger("opencil.runs")


class OutputsCache:
    """Features and logits in float32, in a folder of at most ``limit`` bytes; 0 keeps nothing.

    Several processes may use one folder: entries appear whole, and only one process at a time makes room.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def trim(self) -> None:
        """Make what is kept already fit the limit, which may have been lowered."""
        if self.folder.is_dir():
            with FileLock(self.folder / ".lock"):
                self._make_room(0)

    def outputs(self, weights: str, inputs: Inputs, computed: Outputs | None = None) -> Outputs:
        """Outputs of the inputs, from the cache or by a forward pass; ``weights`` identifies their model.

        Where they have just been ``computed``, they are only kept.
        """
        if not self.limit:
            return computed or outputs_of(inputs)
        path = self.folder / f"{_key(weights, inputs)}.safetensors"
        stored = _read(path)
        if stored is None:
            outputs = computed or outputs_of(inputs)
            try:
                self._write(path, dict(zip(_NAMES, (outputs.features, outputs.logits), strict=True)))
            except OSError as error:  # a full disk must not cost a run
                _log.warning("outputs are not kept in %s: %s", self.folder, error)
            return outputs
        features, logits = (stored[name].to(inputs.images.device) for name in _NAMES)
        return Outputs(features, logits, inputs.labels, inputs.model.classify, inputs)

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Store an entry, if it fits at all, after others have made room for it."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        content = save(tensors, metadata={"sha256": _digest(tensors)})
        if len(content) > self.limit:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            remove_temporary(self.folder)
            path.unlink(missing_ok=True)
            self._make_room(len(content))
            write_bytes(path, content, flush=False)  # its checksum is looked at when it is read

    def _make_room(self, size: int) -> None:
        """Remove the least recently used entries until ``size`` more bytes fit."""
        entries = sorted(
            (e.stat().st_mtime_ns, e.stat().st_size, e) for e in self.folder.glob("*.safetensors")
        )
        total = sum(entry_size for _, entry_size, _ in entries)
        for _, entry_size, entry in entries:
            if total + size <= self.limit:
                break
            entry.unlink(missing_ok=True)
            total -= entry_size


def _key(weights: str, inputs: Inputs) -> str:
    """Name of an entry: a digest of all that decides its content."""
    transform = plain(inputs.transform) if inputs.transform else {}
    device = inputs.images.device.type  # devices round differently
    if isinstance(inputs.images, Tensor):
        pixels = [list(inputs.images.shape), str(inputs.images.dtype), _digest({"": inputs.images})]
    else:
        assert isinstance(inputs.images, Images)
        pixels = [inputs.images.fingerprint]
    parts = [_FORMAT, weights, transform, device, len(inputs), *pixels]
    digest = hashlib.sha256(json.dumps(parts).encode())
    if inputs.indices is not None:
        digest.update(file_formats.bytes_of(inputs.indices))
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors of an entry, marked as used just now; None where it is absent or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            # Copied: in the file they lie unaligned, and products of such matrices round otherwise on a CPU.
            metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in _NAMES}
        os.utime(path)
    except (OSError, SafetensorError):  # absent, damaged, or removed by another process just now
        return None
    return tensors if metadata and metadata.get("sha256") == _digest(tensors) else None


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(json.dumps([name, list(tensors[name].shape)]).encode())
        digest.update(file_formats.bytes_of(tensors[name]))
    return digest.hexdigest()
