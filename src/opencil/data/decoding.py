"""Read images of a source with several threads and yield them in order, a few batches ahead.

Threads, not processes: Pillow releases the interpreter's lock while it decodes and resizes. A thread writes
into the batch itself, where pixels of a process would be copied twice (benchmarks/README.md).
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from opencil.data.readers.decode import CorruptImage, Pixels
from opencil.data.readers.source import ImageSource

_AHEAD = 2  # batches in work beside the batch that is served
_CHUNK = 8  # images of a task at most: few enough to share a batch evenly, enough to hide the cost of a task


def count_workers() -> int:
    """Return the number of processors that this process may use, at most 16."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, 16)


def decode_batches(
    source: ImageSource,
    indices: Sequence[int],
    side: int,
    size: int,
    workers: int,
    allocate: Callable[[tuple[int, ...]], Pixels] = lambda shape: np.empty(shape, np.uint8),
) -> Generator[tuple[Pixels, dict[int, CorruptImage]], None, None]:
    """Yield uint8 [B, 3, side, side] and the errors of corrupt images by position, in the indices' order.

    At most three batches are in memory, in arrays that ``allocate`` makes in the batches' order. Closing the
    iterator early ends the threads.
    """

    def fill(pixels: Pixels, start: int, rows: Sequence[int]) -> dict[int, CorruptImage]:
        corrupt = {}
        for position, index in enumerate(rows, start):
            try:
                pixels[position] = source.pixels(index, side)
            except CorruptImage as error:
                corrupt[position] = error
        return corrupt

    pool = ThreadPoolExecutor(workers, thread_name_prefix="opencil-decode")
    queue: deque[tuple[Pixels, list[Future[dict[int, CorruptImage]]]]] = deque()

    def finish() -> tuple[Pixels, dict[int, CorruptImage]]:
        pixels, parts = queue.popleft()
        return pixels, {position: error for part in parts for position, error in part.result().items()}

    try:
        for first in range(0, len(indices), size):
            rows = indices[first : first + size]
            pixels: Any = allocate((len(rows), 3, side, side))
            each = min(_CHUNK, -(-len(rows) // workers))
            starts = range(0, len(rows), each)
            queue.append((pixels, [pool.submit(fill, pixels, s, rows[s : s + each]) for s in starts]))
            if len(queue) > _AHEAD:
                yield finish()
        while queue:
            yield finish()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
