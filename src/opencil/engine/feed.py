"""Feeds: batches of images or of tensors for a training."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from inspect import Parameter

import torch
from torch import Tensor

from opencil.data.images import Images, move_to
from opencil.data.transforms import Transform
from opencil.engine.ranks import Share
from opencil.engine.seeding import generator
from opencil.errors import BadInput, nearest

#: Arguments of a loss beyond images and labels: the images' indices in the training set, int64
#: [B]; whether they are of classes of earlier steps, bool [B]; and a second augmentation [B, 3, H, W].
EXTRAS = ("index", "from_memory", "second_view")


class Feed(ABC):
    """Epochs of batches: tensors on one device, with the same shapes in every iteration.

    All random choices of an epoch depend on a seed and the epoch's number only.
    """

    device: torch.device
    iterations: int  #: of an epoch
    #: Generator on the device for losses that draw; the feed seeds it at the beginning of an epoch.
    generator: torch.Generator | None = None
    #: Rows of a batch for this rank; None: all.
    share: Share | None = None

    @abstractmethod
    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the tensors of each iteration of an epoch, counted from 0."""


class ImageFeed(Feed):
    """Training images in random order with their random augmentation, for an ``augmented_loss``.

    The last batch of an epoch is filled from the next permutation, or ``ragged``: it has the rest. ``extras``
    are further arguments of the loss. Of every batch only the rows of a ``share`` are served, with the same
    random numbers.
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
        ragged: bool = False,
    ) -> None:
        self._images, self._transform, self._indices, self._seed = images, transform, indices, seed
        self._extras, self.share = extras, share
        self._batch, self._ragged = min(batch_size, len(indices)), ragged
        self.device = images.device
        self.iterations = -(-len(indices) // self._batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield bytes [B, 3, H, W], labels [B], the augmentation of each image, and the extras."""
        length = len(self._indices) if self._ragged else self._batch * self.iterations
        drawn = self._indices[epoch_order(len(self._indices), length, number, self._seed)]
        order = move_to(drawn, self.device)
        tensors = [self._images.labels[order], *self._draw(length, "augment", number)]
        if "second_view" in self._extras:
            tensors += self._draw(length, "second view", number)
        if "index" in self._extras:
            tensors.append(order)
        rows = slice(None) if self.share is None else self.share.rows
        # Indices on the host: images decoded there do not wait for the device.
        own, *batches = ([part[rows] for part in torch.split(t, self._batch)] for t in (drawn, *tensors))
        pixels = self._images.batches(torch.cat(own), len(own[0]))
        yield from zip(pixels, *batches, strict=True)

    def _draw(self, length: int, purpose: str, number: int) -> tuple[Tensor, ...]:
        numbers = generator(*self._seed, purpose, number)
        drawn = self._transform.draw(length, self._images.side, numbers)
        return tuple(move_to(tensor, self.device) for tensor in drawn)


class TensorFeed(Feed):
    """Rows of tensors of one length, in random order; the last batch is filled as in ``ImageFeed``."""

    def __init__(self, tensors: tuple[Tensor, ...], batch_size: int, seed: tuple[int | str, ...]) -> None:
        self._tensors, self._seed = tensors, seed
        self._batch = min(batch_size, len(tensors[0]))
        self.device = tensors[0].device
        self.iterations = -(-len(tensors[0]) // self._batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the same rows [B, …] of each tensor."""
        length = self._batch * self.iterations
        order = move_to(epoch_order(len(self._tensors[0]), length, number, self._seed), self.device)
        for rows in torch.split(order, self._batch):
            yield tuple(tensor[rows] for tensor in self._tensors)


def extras_of(loss: Callable[..., Tensor], stage: str) -> frozenset[str]:
    """Return the extras among the arguments of a stage's loss after (images, labels)."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    named = [a for a in inspect.signature(loss).parameters.values() if a.kind not in variadic][2:]
    names = [a.name for a in named if a.name in EXTRAS or a.default is Parameter.empty]
    for name in names:
        if name not in EXTRAS:
            allowed = f"allowed after (images, labels) are {', '.join(EXTRAS)}{nearest(name, EXTRAS)}"
            raise BadInput(f"the loss of stage {stage!r} has an argument {name!r}: {allowed}")
    return frozenset(names)


def augmented_loss(
    loss: Callable[..., Tensor], transform: Transform, extras: frozenset[str] = frozenset(), old: int = 0
) -> Callable[..., Tensor]:
    """Return a loss of an ``ImageFeed``'s tensors, for a loss of (images, labels, extras).

    Labels below ``old`` are of classes of earlier steps.
    """
    drawn = 4 if transform.brightness else 3

    def of_batch(pixels: Tensor, labels: Tensor, *served: Tensor) -> Tensor:
        more: dict[str, Tensor] = {}
        with torch.autocast(pixels.device.type, enabled=False):
            images = to_fast_layout(transform.train(pixels, served[:drawn]))
            if "second_view" in extras:
                second = served[drawn : 2 * drawn]
                more["second_view"] = to_fast_layout(transform.train(pixels, second))
        if "index" in extras:
            more["index"] = served[-1]
        if "from_memory" in extras:
            more["from_memory"] = labels < old
        return loss(images, labels, **more)

    return of_batch


def to_fast_layout(images: Tensor) -> Tensor:
    """Return images in the memory layout of the fastest convolutions on their device."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images


def epoch_order(count: int, length: int, epoch: int, seed: tuple[int | str, ...]) -> Tensor:
    """Return an epoch's part, int64 [length], of an endless sequence of permutations of ``count`` items."""
    first, skip = divmod(epoch * length, count)
    last = (epoch * length + length - 1) // count
    generators = (generator(*seed, "order", number) for number in range(first, last + 1))
    return torch.cat([torch.randperm(count, generator=g) for g in generators])[skip : skip + length]
