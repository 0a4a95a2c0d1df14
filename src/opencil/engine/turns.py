"""Long work lets others have a turn, so that what they have queued on a GPU does not run dry meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_others: ContextVar[Callable[[], None] | None] = ContextVar("others", default=None)


@contextmanager
def taking_turns(others: Callable[[], None]) -> Iterator[None]:
    """Inside the block, work that calls ``let_others`` calls this."""
    token = _others.set(others)
    try:
        yield
    finally:
        _others.reset(token)


def let_others() -> None:
    """Between two batches of long work: others may go on. Nobody has to be there."""
    others = _others.get()
    if others is None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return
    # They are in the middle of this work's block: what it switched off is theirs to switch.
    with torch.enable_grad():
        others()
