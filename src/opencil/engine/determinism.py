"""Operations that a device computes otherwise every time: refused, and told by their name."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OPERATION = re.compile(r"(\S+) does not have a deterministic implementation")
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def only_deterministic(wanted: bool) -> Iterator[None]:
    """Inside the block torch refuses operations that it cannot compute with the same bits every time."""
    if not wanted:
        yield
        return
    # Without it every product of matrices on a GPU is refused; it is read when the first one is computed.
    os.environ.setdefault(_CUBLAS, ":4096:8")
    memory: Any = torch.utils.deterministic  # its attributes are made at run time
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        memory.fill_uninitialized_memory,
    )
    torch.use_deterministic_algorithms(True)
    # To fill what is about to be written takes time, and changes nothing of what is computed.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = before[2]


def refused_operation(error: BaseException | None) -> str | None:
    """The operation that torch has refused as not deterministic, by an error or its cause; None for none."""
    while error is not None:
        if isinstance(error, RuntimeError):
            if found := _OPERATION.search(str(error)):
                return found[1]
            if _CUBLAS in str(error):
                return f"a product of matrices ({_CUBLAS} is {os.environ.get(_CUBLAS)!r})"
        error = error.__cause__
    return None
