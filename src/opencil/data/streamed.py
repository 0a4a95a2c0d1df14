"""Images that stay on disk and are decoded batch by batch, for datasets too large for a device's memory."""

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from opencil.data.decoding import decoded
from opencil.data.images import Images

if TYPE_CHECKING:
    from opencil.data.kept_pixels import KeptPixels
    from opencil.data.readers.source import ImageSource


@dataclass(frozen=True, repr=False)
class StreamedImages(Images):
    """Images decoded by ``workers`` threads when they are asked for, two batches ahead.

    Batches are the same bytes as those of an ``ImageSet`` of the same source, for any number of workers, and
    whatever of them is ``kept`` in memory.
    """

    decodes: ClassVar[bool] = True

    name: str
    source: "ImageSource"
    labels: Tensor
    size: int
    workers: int
    key: str
    classes: tuple[str, ...] = ()
    kept: "KeptPixels | None" = None

    @property
    def fingerprint(self) -> str:
        """The checksum of the files' names, sizes and times."""
        return self.key

    @property
    def side(self) -> int:
        """Height and width of the images in pixels."""
        return self.size

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """The images at ``indices``, in that order, as uint8 batches [≤ size, 3, H, W] on the device.

        A corrupt image is an error that names it. Closing the iterator early ends the threads.
        """
        device, made = self.device, deque[Tensor]()
        # Only from pinned memory does the copy to a GPU run beside the computation: it is decoded into such.
        pinned = device.type == "cuda"

        def empty(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
            made.append(torch.empty(shape, dtype=torch.uint8, pin_memory=pinned))
            return made[-1].numpy()

        source = self.source if self.kept is None else self.kept.pass_over(self.source, self.key, self.size)
        with closing(decoded(source, indices.tolist(), self.size, size, self.workers, empty)) as batches:
            for batch in batches:
                for error in batch.corrupt.values():
                    raise error
                yield made.popleft().to(device, non_blocking=True)

    def to(self, device: torch.device) -> Self:
        """The same images, served on a device."""
        return self._with(labels=self.labels.to(device))
