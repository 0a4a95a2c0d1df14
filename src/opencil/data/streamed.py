"""Images read from disk batch by batch, for datasets too large for a device's memory.

Threads read them, not processes: Pillow releases the interpreter's lock while it decodes and resizes. A
thread writes into the batch itself, where pixels of a process would be copied twice (benchmarks/README.md).
"""

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.data.readers.source import CorruptImage, ImageSource

_AHEAD = 2  # batches in work beside the served batch
_CHUNK = 8  # images of a task at most: few enough to share a batch evenly, enough to hide the cost of a task


def count_workers() -> int:
    """Return the number of processors available to this process, at most 16."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, 16)


def decode_batches(
    source: ImageSource, indices: Sequence[int], side: int, size: int, workers: int, pinned: bool = False
) -> Generator[tuple[Tensor, dict[int, CorruptImage]], None, None]:
    """Yield uint8 [B, 3, side, side] and the errors of corrupt images by position, in the indices' order.

    At most three batches are in memory. Closing the iterator early ends the threads.
    """

    def fill(pixels: Tensor, start: int, rows: Sequence[int]) -> dict[int, CorruptImage]:
        array, corrupt = pixels.numpy(), {}
        for position, index in enumerate(rows, start):
            try:
                array[position] = source.pixels(index, side)
            except CorruptImage as error:
                corrupt[position] = error
        return corrupt

    pool = ThreadPoolExecutor(workers, thread_name_prefix="opencil-decode")
    queue: deque[tuple[Tensor, list[Future[dict[int, CorruptImage]]]]] = deque()

    def finish() -> tuple[Tensor, dict[int, CorruptImage]]:
        pixels, parts = queue.popleft()
        return pixels, {position: error for part in parts for position, error in part.result().items()}

    try:
        for first in range(0, len(indices), size):
            rows = indices[first : first + size]
            pixels = torch.empty(len(rows), 3, side, side, dtype=torch.uint8, pin_memory=pinned)
            each = min(_CHUNK, -(-len(rows) // workers))
            starts = range(0, len(rows), each)
            queue.append((pixels, [pool.submit(fill, pixels, s, rows[s : s + each]) for s in starts]))
            if len(queue) > _AHEAD:
                yield finish()
        while queue:
            yield finish()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, repr=False)
class StreamedImages(Images):
    """Images read or decoded by ``workers`` threads, two batches ahead of the computation.

    Batches have the same bytes as those of an ``ImageSet`` of the same source, for any number of workers.
    """

    decodes: ClassVar[bool] = True

    name: str
    source: ImageSource
    labels: Tensor
    side: int
    workers: int
    fingerprint: str
    classes: tuple[str, ...] = ()

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images at ``indices``, in that order, or raise the error of a corrupt one."""
        pinned = self.device.type == "cuda"  # only pinned memory is copied to a GPU beside the computation
        decoding = decode_batches(self.source, indices.tolist(), self.side, size, self.workers, pinned)
        with closing(decoding) as batches:
            for pixels, corrupt in batches:
                for error in corrupt.values():
                    raise error
                yield pixels.to(self.device, non_blocking=True)

    def to(self, device: torch.device) -> Self:
        """Return the same images, served on a device."""
        return self._with(labels=self.labels.to(device))
