"""Outputs kept on disk, so that a detector added later needs no forward pass.

An entry is one safetensors file, named by what it depends on: the weights, the images' pixels, the transform.
Before a new one is written, the least recently used ones make room for it: the folder never holds more than
its limit.
"""

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from opencil.atomic_files import remove_temporary
from opencil.data.images import Images
from opencil.engine.forward import Inputs, Outputs, outputs_of
from opencil.errors import OpenCILError
from opencil.locks import Lock
from opencil.runs import file_formats
from opencil.seals import write_sealed
from opencil.validation import plain

_NAMES = ("features", "logits")
_FORMAT = 3  # raised whenever outputs come to be computed, or stored, differently
_PATIENCE = 20.0  # seconds; an entry is written in less than one
_log = logging.getLogger("opencil.runs")


class OutputsCache:
    """Features and logits in float32, in a folder of at most ``limit`` bytes; 0 keeps nothing.

    Several processes may use one folder: entries appear whole, and only one process at a time makes room.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._told: set[str] = set()

    def trim(self) -> None:
        """Make what is kept already fit the limit, which may have been lowered."""
        try:
            if self.folder.is_dir():
                with self._alone():
                    self._make_room(0)
        except OSError as error:  # a folder that cannot be written to is no more than that
            self._warn(error)

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
                self._warn(error)
            return outputs
        features, logits = (stored[name].to(inputs.images.device) for name in _NAMES)
        return Outputs(features, logits, inputs.labels, inputs.model.classify, inputs)

    def _warn(self, error: OSError) -> None:
        """Say once for each reason that runs go on without: a grid asks for thousands of entries."""
        why = os.strerror(error.errno) if error.errno else str(error)
        if why not in self._told:
            self._told.add(why)
            _log.warning("outputs are not kept in %s (%s): runs go on without", self.folder, why)

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Store an entry, if it fits at all, after others have made room for it."""
        content = file_formats.packed(tensors, {"entry": path.stem})
        if len(content) > self.limit:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            remove_temporary(self.folder)
            path.unlink(missing_ok=True)
            self._make_room(len(content))
            write_sealed(path, content, flush=False)  # its checksum is looked at when it is read

    def _alone(self) -> Lock:
        """Nobody waits for long, and only once, for a process that was halted while it held the folder."""
        return Lock(self.folder / ".held", timeout=0 if self._told else _PATIENCE)

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
        found, notes, _ = file_formats.read_checked(path)
        if notes.get("entry", path.stem) != path.stem:  # another's; entries did not say it once
            return None
        # Copied: in the file they lie unaligned, and products of such matrices round otherwise on a CPU.
        tensors = {name: found[name].clone() for name in _NAMES}
    except (KeyError, OpenCILError):  # absent, damaged, or removed by another process just now
        return None
    with suppress(OSError):  # of a folder that is read-only, or just removed
        os.utime(path)
    return tensors


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(json.dumps([name, list(tensors[name].shape)]).encode())
        digest.update(file_formats.bytes_of(tensors[name]))
    return digest.hexdigest()
