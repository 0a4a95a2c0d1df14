"""The checkpoints of a training: stored at intervals and where it is interrupted, read where it resumes."""

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import load
from torch import Tensor, nn

from opencil.engine.loop import BadCheckpoint, Checkpoint, Progress
from opencil.engine.ranks import from_first
from opencil.errors import OpenCILError
from opencil.evaluation.protocol import Measurement
from opencil.files import Damaged, damaged, read_checked, write_checked
from opencil.runs.store import StepFolder, pack

_log = logging.getLogger("opencil.runs")
#: The least seconds between two copies in memory: on a GPU an epoch may be shorter than a copy takes.
COPY_EVERY = 1.0


class Checkpoints:
    """The checkpoints of a step's training, or of the tuning of a head, which ``made_of`` identifies.

    ``resume`` is the checkpoint to start from, or None. ``measured`` are the measurements in the training so
    far, ``seconds`` its length when the block ends. At the end of an epoch the training is stored, at most
    every ``every`` seconds, or copied. Where the block is interrupted, the copy is stored.
    """

    def __init__(self, stored: StepFolder, made_of: str, every: float, head: str = "") -> None:
        self._stored, self._made_of, self._every, self._head = stored, made_of, every, head
        self._latest: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self.resume, notes = from_first(self._read)
        self.measured = [Measurement(*values) for values in notes.get("measured", ())]
        self._stored_at = self._copied_at = time.monotonic()
        self._started = self._stored_at - notes.get("seconds", 0.0)

    def _read(self) -> tuple[Checkpoint | None, dict[str, Any]]:
        path = self._stored.checkpoint(self._head)
        try:
            tensors = load(read_checked(path)) if path.exists() else {}
        except Damaged as error:
            _log.warning("%s", error)
            tensors = {}
        notes = json.loads(bytes(tensors.pop("notes").tolist())) if tensors else {}
        same = notes.get("made_of") == self._made_of
        return (Checkpoint.from_tensors(tensors), notes) if same else (None, {})

    def note(self, module: nn.Module, progress: Progress, ended: Sequence[dict[str, Tensor]] = ()) -> None:
        """Take note of an iteration: at the end of an epoch store or copy the state."""
        now = time.monotonic()
        due = now >= self._stored_at + self._every
        if not progress.epoch_ends or not (due or now >= self._copied_at + COPY_EVERY):
            return
        tensors = Checkpoint.take(module, progress, ended).tensors()
        notes = {"made_of": self._made_of, "seconds": now - self._started, "measured": list(self.measured)}
        if due:
            self._latest = None
            self._store(tensors, notes)
            self._stored_at = time.monotonic()
        else:  # the training changes tensors in place
            self._latest = {name: tensor.clone() for name, tensor in tensors.items()}, notes
        self._copied_at = time.monotonic()

    def _store(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
        if self._stored.writes and finite:  # else the last good checkpoint stays
            text = bytearray(json.dumps(notes, default=astuple).encode())
            content = pack(tensors | {"notes": torch.frombuffer(text, dtype=torch.uint8)})
            write_checked(self._stored.checkpoint(self._head), content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        self.seconds = time.monotonic() - self._started
        if isinstance(error, BadCheckpoint):
            self._stored.remove_checkpoint(self._head)
            raise damaged(self._stored.checkpoint(self._head), error) from None
        # GeneratorExit, KeyboardInterrupt and a lost rank are no Exception.
        if self._latest is not None and error is not None and not isinstance(error, Exception):
            with suppress(OSError, OpenCILError):  # a full disk: the last checkpoint stays
                self._store(*self._latest)
