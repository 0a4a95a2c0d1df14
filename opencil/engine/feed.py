"""Where a training's batches come from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.data.transforms import Draw, Transform, moved
from opencil.engine.seeding import generator


class Feed(ABC):
    """Epochs of batches: tensors that are on one device and have the same shapes in every iteration.

    All random choices of an epoch follow from a seed and the epoch's number alone.
    """

    device: torch.device
    iterations: int  #: of an epoch
    #: What a loss may draw from on the device; the feed seeds it when an epoch begins.
    generator: torch.Generator | None = None

    @abstractmethod
    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """The tensors of each iteration of an epoch, counted from 0."""


class ImageFeed(Feed):
    """Training images in random order with the choices that augment them: what ``augmented`` losses take.

    Every batch has the same size: an epoch's ragged tail is filled from the next permutation.
    """

    def __init__(
        self,
        images: Images,
        transform: Transform,
        indices: Tensor,
        batch_size: int,
        seed: tuple[int | str, ...],
    ) -> None:
        self._images, self._transform, self._indices, self._seed = images, transform, indices, seed
        self._batch = min(batch_size, len(indices))
        self.device = images.device
        self.iterations = -(-len(indices) // self._batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Bytes [B, 3, H, W], labels [B], and how each image is cropped and flipped."""
        length = self._batch * self.iterations
        order = moved(self._indices[epoch_order(len(self._indices), length, number, self._seed)], self.device)
        draw = self._transform.draw(length, self._images.side, generator(*self._seed, "augment", number))
        draw, labels = draw.to(self.device), self._images.labels[order]
        for i, pixels in enumerate(self._images.batches(order, self._batch)):
            rows = slice(i * self._batch, (i + 1) * self._batch)
            yield pixels, labels[rows], *draw[rows].tensors


def augmented(loss: Callable[[Tensor, Tensor], Tensor], transform: Transform) -> Callable[..., Tensor]:
    """A loss of (images, labels) as one of what ``ImageFeed`` serves."""

    def of_batch(pixels: Tensor, labels: Tensor, *choices: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, enabled=False):
            images = laid_out(transform.train(pixels, Draw(*choices)))
        return loss(images, labels)

    return of_batch


def laid_out(images: Tensor) -> Tensor:
    """Images in the memory layout that convolutions are fastest in on their device."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def epoch_order(count: int, length: int, epoch: int, seed: tuple[int | str, ...]) -> Tensor:
    """Epoch's piece, int64 [length], of an endless sequence of permutations of ``count`` things."""
    first, skip = divmod(epoch * length, count)
    last = (epoch * length + length - 1) // count
    permutations = [
        torch.randperm(count, generator=generator(*seed, "order", number))
        for number in range(first, last + 1)
    ]
    return torch.cat(permutations)[skip : skip + length]
