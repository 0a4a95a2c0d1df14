"""Images that stay on disk and are read batch by batch, for datasets too large for a device's memory."""

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from opencil.data.decoding import decode_batches
from opencil.data.images import Images
from opencil.data.readers.source import ImageSource


@dataclass(frozen=True, repr=False)
class StreamedImages(Images):
    """Images that ``workers`` threads read or decode two batches ahead of the computation.

    Batches have the same bytes as those of an ``ImageSet`` of the same source, for any number of workers.
    """

    decodes: ClassVar[bool] = True

    name: str
    source: ImageSource
    labels: Tensor
    size: int
    workers: int
    key: str
    classes: tuple[str, ...] = ()

    @property
    def side(self) -> int:
        """Return the height and width of the images in pixels."""
        return self.size

    @property
    def fingerprint(self) -> str:
        """Return the digest of the files' names, sizes and times."""
        return self.key

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images at ``indices``, in that order, as uint8 batches [≤ size, 3, H, W] on the device.

        A corrupt image raises an error that names it. Closing the iterator early ends the threads.
        """
        device, buffers = self.device, deque[Tensor]()
        pinned = device.type == "cuda"  # copies to a GPU run beside the computation only from pinned memory

        def allocate(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
            buffers.append(torch.empty(shape, dtype=torch.uint8, pin_memory=pinned))
            return buffers[-1].numpy()

        decoding = decode_batches(self.source, indices.tolist(), self.size, size, self.workers, allocate)
        with closing(decoding) as batches:
            for _, corrupt in batches:
                for error in corrupt.values():
                    raise error
                yield buffers.popleft().to(device, non_blocking=True)

    def to(self, device: torch.device) -> Self:
        """Return the same images, served on a device."""
        return self._with(labels=self.labels.to(device))
