"""When a training is checkpointed: at intervals, and at once where it is interrupted."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from opencil.engine.checkpoint import Checkpoint
from opencil.engine.loop import Progress
from opencil.errors import OpenCILError

#: The least seconds between two copies in memory: on a GPU an epoch may be shorter than a hundred copies
#: take.
COPY_EVERY = 1.0


class Checkpoints:
    """The checkpoints of one training: ``store`` is called with tensors and notes, at most every ``seconds``.

    A training is resumed from the end of an epoch. A copy of the latest end is kept in memory and stored when
    the training is interrupted.
    """

    def __init__(self, seconds: float, store: Callable[[dict[str, Tensor], list[Any]], None]) -> None:
        self._seconds, self._store = seconds, store
        self._stored = self._copied = time.monotonic()
        self._latest: tuple[Checkpoint, list[Any]] | None = None

    def note(
        self,
        module: nn.Module,
        progress: Progress,
        ended: Sequence[dict[str, Tensor]] = (),
        notes: Sequence[Any] = (),
    ) -> None:
        """Take note of an iteration: at the end of an epoch store its state, copy it, or pass over it.

        ``notes`` belong to the state: a copy of them is stored with it.
        """
        now = time.monotonic()
        if not progress.epoch_ends or now < min(self._stored + self._seconds, self._copied + COPY_EVERY):
            return
        taken = Checkpoint.take(module, progress, ended)
        if now - self._stored >= self._seconds:
            self._latest = None
            if taken.finite:  # else the last good checkpoint stays
                self._store(taken.tensors(), list(notes))
            self._stored = time.monotonic()
        else:
            self._latest = _copy(taken), list(notes)
        self._copied = time.monotonic()

    @contextmanager
    def stored_on_leaving(self) -> Iterator[None]:
        """Store the copy in memory where the block is interrupted, but not where it raises an error."""
        try:
            yield
        except Exception:
            raise
        except BaseException:  # GeneratorExit, KeyboardInterrupt, a lost rank
            with suppress(OSError, OpenCILError):  # a full disk: the last checkpoint stays
                if self._latest is not None and self._latest[0].finite:
                    self._store(self._latest[0].tensors(), self._latest[1])
            raise


def _copy(taken: Checkpoint) -> Checkpoint:
    """Copy a checkpoint's tensors: the training changes them in place."""
    weights, state = (
        {name: tensor.clone() for name, tensor in tensors.items()} for tensors in (taken.weights, taken.state)
    )
    return replace(taken, weights=weights, state=state, ended=list(taken.ended))
