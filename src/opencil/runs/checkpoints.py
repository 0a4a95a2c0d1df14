"""When a training is checkpointed: every so often, and at once where somebody leaves in its middle."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from torch import Tensor, nn

from opencil.engine.checkpoint import Checkpoint
from opencil.engine.loop import Progress
from opencil.engine.ranks import LostRank
from opencil.errors import OpenCILError

#: The least time between two copies that are kept in memory of where a training was: on a GPU an epoch may
#: be shorter than it takes to make a hundred of them.
KEPT_EVERY = 1.0


class Checkpoints:
    """The checkpoints of one training: ``store`` is called with the tensors, at most every ``seconds``.

    A training can be gone on from the end of an epoch. So whoever leaves in the middle of one, by Ctrl-C or
    because time is up, has the last end stored: a copy of it is kept in memory.
    """

    def __init__(self, seconds: float, store: Callable[[dict[str, Tensor]], None]) -> None:
        self._seconds, self._store = seconds, store
        self._stored = self._copied = time.monotonic()
        self._latest: Checkpoint | None = None

    def note(
        self, module: nn.Module, progress: Progress, ended: list[dict[str, Tensor]] | None = None
    ) -> None:
        """Another iteration is done: at the end of an epoch its state is stored, kept, or passed over."""
        now = time.monotonic()
        if not progress.epoch_ends or now - min(self._stored + self._seconds, self._copied + KEPT_EVERY) < 0:
            return
        taken = Checkpoint.take(module, progress, ended)
        if now - self._stored >= self._seconds:
            self._latest = None
            if taken.finite:  # else the last good one stays
                self._store(taken.tensors())
            self._stored = time.monotonic()
        else:
            self._latest = _copied(taken)
        self._copied = time.monotonic()

    @contextmanager
    def stored_on_leaving(self) -> Iterator[None]:
        """Where the block is left in the middle, and not by an error, what is kept in memory is stored."""
        try:
            yield
        except (GeneratorExit, KeyboardInterrupt, LostRank):
            with suppress(OSError, OpenCILError):  # a full disk: the last one stays
                if self._latest is not None and self._latest.finite:
                    self._store(self._latest.tensors())
            raise


def _copied(taken: Checkpoint) -> Checkpoint:
    """The same in tensors of its own: the training goes on in place."""
    weights, state = (
        {name: tensor.clone() for name, tensor in tensors.items()} for tensors in (taken.weights, taken.state)
    )
    return replace(taken, weights=weights, state=state, ended=list(taken.ended))
