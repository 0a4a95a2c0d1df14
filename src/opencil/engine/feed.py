"""Where a training's batches come from."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from inspect import Parameter

import torch
from torch import Tensor

from opencil.data.images import Images, moved
from opencil.data.transforms import Draw, Transform
from opencil.engine.ranks import Share
from opencil.engine.seeding import generator
from opencil.errors import BadInput, nearest

#: What a loss gets beyond images and labels when it names it, and what that is.
EXTRAS = {
    "index": "the images' indices in the training set, int64 [B]",
    "from_memory": "whether they are of classes of earlier steps, bool [B]",
    "second_view": "the images again, augmented otherwise [B, 3, H, W]",
}


class Feed(ABC):
    """Epochs of batches: tensors that are on one device and have the same shapes in every iteration.

    All random choices of an epoch follow from a seed and the epoch's number alone.
    """

    device: torch.device
    iterations: int  #: of an epoch
    #: What a loss may draw from on the device; the feed seeds it when an epoch begins.
    generator: torch.Generator | None = None
    #: The rows of a batch that are served, where ranks share it; None: all.
    share: Share | None = None

    @abstractmethod
    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """The tensors of each iteration of an epoch, counted from 0."""


class ImageFeed(Feed):
    """Training images in random order with the choices that augment them: what ``augmented`` losses take.

    Every batch has the same size: an epoch's ragged tail is filled from the next permutation. ``extras`` are
    those that the loss asks for. Of a ``share`` its rows of every batch are served, with the choices that are
    drawn for them where all are.
    """

    def __init__(
        self,
        images: Images,
        transform: Transform,
        indices: Tensor,
        batch_size: int,
        seed: tuple[int | str, ...],
        extras: frozenset[str] = frozenset(),
        share: Share | None = None,
    ) -> None:
        self._images, self._transform, self._indices, self._seed = images, transform, indices, seed
        self._extras, self.share = extras, share
        self._batch = min(batch_size, len(indices))
        self.device = images.device
        self.iterations = -(-len(indices) // self._batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Bytes [B, 3, H, W], labels [B], how each image is cropped and flipped; then what is asked for."""
        length, share = self._batch * self.iterations, self.share or Share(0, self._batch, self._batch)
        drawn = self._indices[epoch_order(len(self._indices), length, number, self._seed)]
        order = moved(drawn, self.device)
        tensors = [self._images.labels[order], *self._draw(length, "augment", number)]
        if "second_view" in self._extras:
            tensors += self._draw(length, "second view", number)
        if "index" in self._extras:
            tensors.append(order)
        # Of those on the host: a store that decodes there would wait for the device to tell them.
        own = drawn.view(self.iterations, self._batch)[:, share.start : share.stop].flatten()
        for i, pixels in enumerate(self._images.batches(own, len(share))):
            first = i * self._batch
            rows = slice(first + share.start, first + share.stop)
            yield pixels, *(tensor[rows] for tensor in tensors)

    def _draw(self, length: int, purpose: str, number: int) -> tuple[Tensor, ...]:
        numbers = generator(*self._seed, purpose, number)
        return self._transform.draw(length, self._images.side, numbers).to(self.device).tensors


class TensorFeed(Feed):
    """Rows of tensors that have as many, in random order; an epoch's ragged tail is filled as of images."""

    def __init__(self, tensors: tuple[Tensor, ...], batch_size: int, seed: tuple[int | str, ...]) -> None:
        self._tensors, self._seed = tensors, seed
        self._batch = min(batch_size, len(tensors[0]))
        self.device = tensors[0].device
        self.iterations = -(-len(tensors[0]) // self._batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """The same rows [B, …] of each tensor."""
        length = self._batch * self.iterations
        order = moved(epoch_order(len(self._tensors[0]), length, number, self._seed), self.device)
        for rows in torch.split(order, self._batch):
            yield tuple(tensor[rows] for tensor in self._tensors)


def asked(loss: Callable[..., Tensor], stage: str) -> frozenset[str]:
    """Which extras the loss of a stage names among its arguments, after (images, labels)."""
    try:
        arguments = list(inspect.signature(loss).parameters.values())
    except ValueError:  # a built-in function that does not tell
        return frozenset()
    named = [a for a in arguments if a.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)][2:]
    for argument in named:
        if argument.name not in EXTRAS and argument.default is Parameter.empty:
            allowed = "; ".join(f"{name}, {what}" for name, what in EXTRAS.items())
            raise BadInput(
                f"the loss of stage {stage!r} asks for {argument.name!r}: beyond (images, labels) it may "
                f"name {allowed}{nearest(argument.name, EXTRAS)}"
            )
    return frozenset(argument.name for argument in named) & EXTRAS.keys()


def augmented(
    loss: Callable[..., Tensor],
    transform: Transform,
    extras: frozenset[str] = frozenset(),
    old: int = 0,
) -> Callable[..., Tensor]:
    """A loss of (images, labels, what it asks for) as one of what ``ImageFeed`` serves.

    Labels below ``old`` are of classes of earlier steps.
    """

    drawn = 4 if transform.brightness else 3

    def of_batch(pixels: Tensor, labels: Tensor, *served: Tensor) -> Tensor:
        given: dict[str, Tensor] = {}
        with torch.autocast(pixels.device.type, enabled=False):
            images = laid_out(transform.train(pixels, Draw(*served[:drawn])))
            if "second_view" in extras:
                second = Draw(*served[drawn : 2 * drawn])
                given["second_view"] = laid_out(transform.train(pixels, second))
        if "index" in extras:
            given["index"] = served[-1]
        if "from_memory" in extras:
            given["from_memory"] = labels < old
        return loss(images, labels, **given)

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
