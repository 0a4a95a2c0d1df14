"""The checkpoints of a training: stored at intervals and where it is interrupted, read where it resumes."""

import copy
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from opencil.engine.loop import BadCheckpoint, Checkpoint, Progress
from opencil.engine.ranks import from_first
from opencil.errors import OpenCILError
from opencil.files import Damaged
from opencil.runs.store import StepFolder

_log = logging.getLogger("opencil.runs")
#: The least seconds between two copies in memory: on a GPU an epoch may be shorter than a hundred copies
#: take.
COPY_EVERY = 1.0


class Checkpoints:
    """The checkpoints of a step's training, or of the tuning of a head, which ``made_of`` identifies.

    ``resume`` is the checkpoint to start from, with its ``notes``; None where there is none. At the end of an
    epoch the training is stored, at most every ``seconds``, or copied. Where the block is interrupted, the
    copy is stored.
    """

    def __init__(self, stored: StepFolder, made_of: str, seconds: float, head: str = "") -> None:
        self._stored, self._made_of, self._seconds, self._head = stored, made_of, seconds, head
        self._stored_at = self._copied_at = time.monotonic()
        self._latest: tuple[Checkpoint, dict[str, Any]] | None = None
        self.resume, self.notes = from_first(self._read)

    def _read(self) -> tuple[Checkpoint | None, dict[str, Any]]:
        try:
            if found := self._stored.read_checkpoint(self._made_of, self._head):
                return Checkpoint.from_tensors(found[0]), found[1]
        except (Damaged, BadCheckpoint) as error:
            self.refuse(error)
        return None, {}

    def refuse(self, error: Exception) -> None:
        """Delete an unusable checkpoint, with a warning."""
        path = self._stored.checkpoint(self._head)
        _log.warning("%s: %s; the training starts from its beginning", path, error)
        self._stored.remove_checkpoint(self._head)

    def note(
        self,
        module: nn.Module,
        progress: Progress,
        ended: Sequence[dict[str, Tensor]] = (),
        **notes: Any,
    ) -> None:
        """Take note of an iteration: at the end of an epoch store or copy the state, with the notes."""
        now = time.monotonic()
        due, copied_until = self._stored_at + self._seconds, self._copied_at + COPY_EVERY
        if not progress.epoch_ends or now < min(due, copied_until):
            return
        taken = Checkpoint.take(module, progress, ended)
        if now >= due:
            self._latest = None
            self._store(taken, notes)
            self._stored_at = time.monotonic()
        else:
            self._latest = _copy(taken), copy.deepcopy(notes)
        self._copied_at = time.monotonic()

    def _store(self, taken: Checkpoint, notes: dict[str, Any]) -> None:
        notes = notes | {"made_of": self._made_of}
        self._stored.save_checkpoint(taken.tensors(), notes, self._head)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        # GeneratorExit, KeyboardInterrupt and a lost rank are no Exception.
        if self._latest is not None and error is not None and not isinstance(error, Exception):
            with suppress(OSError, OpenCILError):  # a full disk: the last checkpoint stays
                self._store(*self._latest)


def _copy(taken: Checkpoint) -> Checkpoint:
    """Copy a checkpoint's tensors: the training changes them in place."""
    weights, state = (
        {name: tensor.clone() for name, tensor in tensors.items()} for tensors in (taken.weights, taken.state)
    )
    return replace(taken, weights=weights, state=state, ended=list(taken.ended))
