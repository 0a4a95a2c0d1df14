"""Images of a source decoded by several threads, served in order, a few batches ahead.

Threads, not processes: Pillow lets go of the interpreter while it decodes and resizes, and pixels decoded by
a thread land in the batch itself, where those of a process would be copied twice (benchmarks/README.md).
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from opencil.data.readers.decode import CorruptImage
    from opencil.data.readers.source import ImageSource

_AHEAD = 2  # batches in work beside the one that is served
_CHUNK = 8  # images per task at most: small enough to share a batch evenly, large enough to cost nothing


@dataclass(frozen=True)
class DecodedBatch:
    """Decoded images, uint8 [B, 3, side, side], and the errors of those that are corrupt, by position."""

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    corrupt: "dict[int, CorruptImage]"


def workers_here() -> int:
    """As many threads as this process may use processors, 16 at most."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, 16)


def decoded(
    source: "ImageSource",
    indices: Sequence[int],
    side: int,
    size: int,
    workers: int,
    empty: "Callable[[tuple[int, ...]], np.ndarray[Any, np.dtype[np.uint8]]] | None" = None,
) -> Generator[DecodedBatch, None, None]:
    """Batches of the images at ``indices``, in that order whatever the number of threads.

    Memory holds three batches at most, in arrays that ``empty`` makes of a shape, in the batches' order.
    Closing the iterator early ends the threads.
    """
    from opencil.data.readers.decode import CorruptImage

    def fill(pixels: np.ndarray[Any, Any], start: int, rows: Sequence[int]) -> dict[int, CorruptImage]:
        corrupt = {}
        for position, index in enumerate(rows, start):
            try:
                pixels[position] = source.pixels(index, side)
            except CorruptImage as error:
                corrupt[position] = error
        return corrupt

    pool = ThreadPoolExecutor(workers, thread_name_prefix="opencil-decode")
    queue: deque[tuple[np.ndarray[Any, Any], list[Future[dict[int, CorruptImage]]]]] = deque()

    def submit(rows: Sequence[int]) -> None:
        shape = (len(rows), 3, side, side)
        pixels = np.empty(shape, np.uint8) if empty is None else empty(shape)
        each = min(_CHUNK, -(-len(rows) // workers))
        starts = range(0, len(rows), each)
        queue.append((pixels, [pool.submit(fill, pixels, s, rows[s : s + each]) for s in starts]))

    try:
        waiting = iter([indices[start : start + size] for start in range(0, len(indices), size)])
        for rows in waiting:
            submit(rows)
            if len(queue) <= _AHEAD:
                continue
            yield _finished(*queue.popleft())
        while queue:
            yield _finished(*queue.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(pixels: np.ndarray[Any, Any], parts: "list[Future[dict[int, CorruptImage]]]") -> DecodedBatch:
    corrupt: dict[int, CorruptImage] = {}
    for part in parts:
        corrupt |= part.result()
    return DecodedBatch(pixels, corrupt)
