"""Compute augmented views of a step's images and their features, once for all tuners."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from opencil.data.foreign import ForeignImages
from opencil.data.images import Images, move_to
from opencil.data.transforms import Draw, Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.device import SideStream
from opencil.engine.feed import epoch_order, to_fast_layout
from opencil.engine.forward import Inputs, linear_head, same_logits
from opencil.engine.ranks import current
from opencil.engine.seeding import generator, seeded
from opencil.errors import BadInput

#: Views in one pass through the backbone, and the number of cached passes.
CHUNK, CACHED = 1024, 3
#: Pixels in one pass on a GPU, large enough for small images to outweigh launches.
PIXELS = 4096 * 32 * 32


class Views(NamedTuple):
    """A batch of augmented, normalised images [B, 3, H, W], their frozen features [B, D] and labels [B]."""

    images: Tensor
    features: Tensor
    labels: Tensor


class _ChunkReader:
    """Read a pool's images of an epoch in chunks of ``rows``, decoding the next chunk in advance.

    Where images have to be decoded, each rank decodes its share and gathers the others'.
    """

    def __init__(self, images: Images, indices: Tensor, rows: int) -> None:
        self._images, self._indices, self._rows = images, indices, rows
        self._next = -1
        self._served: Iterator[Tensor] = iter(())
        last = len(indices) % rows or rows
        ranks = current() if images.decodes else None
        self._ranks = ranks if ranks is not None and last >= ranks.size else None

    def read(self, first: int) -> Tensor:
        """Return the pixels of the chunk that starts at a row."""
        end = min(first + self._rows, len(self._indices))
        if first != self._next:
            size = self._rows if self._ranks is None else len(self._ranks.share(self._rows))
            left = torch.split(self._indices[first:], self._rows)
            self._served = self._images.batches(torch.cat([self._own(part) for part in left]), size)
        self._next = -1
        pixels = next(self._served)
        if end == len(self._indices):  # end the reader's threads
            next(self._served, None)
        self._next = end
        if self._ranks is None:
            return pixels
        return self._ranks.gather(pixels, self._ranks.counts(end - first))

    def _own(self, part: Tensor) -> Tensor:
        if self._ranks is None:
            return part
        share = self._ranks.share(len(part))
        return part[share.start : share.stop]


class ViewSource:
    """A frozen model, and the images to tune extra heads on.

    ``old`` [N] marks the images of old classes, the memory; the others are the current images. An iteration
    has equally many of both, and an epoch is one pass over the current images. All tuners of a step read the
    same views and can share a source: it computes each view and its features once for tuners that advance
    together. ``tasks`` [classes] is the task of each class, if known.
    """

    def __init__(
        self,
        inputs: Inputs,
        labels: Tensor,
        old: Tensor | None = None,
        seed: tuple[int | str, ...] = (0,),
        arithmetic: Arithmetic = FULL,
        tasks: Tensor | None = None,
    ) -> None:
        self.inputs, self.seed, self.arithmetic, self.tasks = inputs, seed, arithmetic, tasks
        self.device = inputs.images.device
        self.labels = labels.long().to(self.device)
        old = torch.zeros(len(labels), dtype=torch.bool) if old is None else old.cpu()
        #: Positions in the inputs of the current images and, if there are any, of the memory.
        self.pools = {"current": (~old).nonzero().flatten()}
        if old.any():
            self.pools["memory"] = old.nonzero().flatten()
        if not len(self.pools["current"]):
            raise BadInput("there are no images of new classes: a head needs at least one to be tuned on")
        # Cached, since tuners can differ in their batch size or in their progress.
        self._choices = lru_cache(maxsize=CACHED)(self._draw_epoch)
        self._chunks = lru_cache(maxsize=CACHED)(self._compute_chunk)
        self._readers = lru_cache(maxsize=CACHED)(self._open_readers)
        # Tuners can advance on other CUDA streams.
        self._side = SideStream(self.device)

    @property
    def new_counts(self) -> dict[int, int]:
        """Return the number of current images of each new class, by label."""
        labels, counts = torch.unique(self.labels.cpu()[self.pools["current"]], return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def extra_head(self) -> nn.Module:
        """Return a trainable copy of the model's head, from features to logits.

        It is the model's own ``extra_head()`` if there is one, else its ``classify`` if that is linear.
        """
        model = self.inputs.model
        make: Callable[[], nn.Module] | None = getattr(model, "extra_head", None)
        head = make() if make else self._probed_head()
        if head is None or not same_logits(head, model.classify, head_size(head)[1], self.device):
            raise BadInput(
                f"{type(model).__name__} needs a method extra_head() for fine-tuning detectors: it returns a "
                "module from features to the logits of classify"
            )
        # A copy from a model in evaluation has no parameter that requires gradients.
        return head if any(p.requires_grad for p in head.parameters()) else head.requires_grad_(True)

    @torch.no_grad()
    def _probed_head(self) -> nn.Linear | None:
        """Return the model's ``classify`` as a linear layer, or None if it is not linear."""
        width = self.features(next(iter(replace(self.inputs, batch_size=1).batches()))).shape[1]
        found = linear_head(self.inputs.model.classify, width, self.device)
        if found is None:
            return None
        with seeded(0):  # the initial values are replaced; the user's random state is preserved
            head = nn.Linear(width, len(found[1])).to(self.device)
        head.weight.copy_(found[0])
        head.bias.copy_(found[1])
        return head

    @cached_property
    def scale(self) -> Transform:
        """Return the transform from pixels to images; by default it maps 0 … 255 to the images' range."""
        if self.inputs.transform is not None:
            return self.inputs.transform
        ranges = [torch.stack(batch.aminmax()) for batch in self.inputs.batches()]
        low, high = float(torch.stack(ranges)[:, 0].min()), float(torch.stack(ranges)[:, 1].max())
        span = max(high - low, 1e-6)
        return Transform(mean=(-low / span,) * 3, std=(1 / span,) * 3, crop=1)

    def iterations(self, batch: int) -> int:
        """Return the number of iterations of an epoch."""
        return -(-len(self.pools["current"]) // batch)

    def chunks(self, number: int, batch: int) -> Iterator[tuple[int, list[Views]]]:
        """Yield an epoch's views in chunks: the first iteration, and the views of several from it on."""
        together, count = self._together(batch), self.iterations(batch)
        for first in range(0, count, together):
            chunk = self._chunks(number, first, min(first + together, count), batch)
            self._side.hand_over(*(tensor for views in chunk for tensor in views))
            yield first, chunk

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return features of normalised images, float32 [B, D], in training's arithmetic.

        Each rank computes its share of them and gathers the others'.
        """
        ranks = current()
        if ranks is None or len(images) < ranks.size:
            return self._features(images)
        share = ranks.share(len(images))
        own = self._features(images[share.start : share.stop])
        return ranks.gather(own, ranks.counts(len(images)))

    def _features(self, images: Tensor) -> Tensor:
        with self.arithmetic.active(), self.arithmetic.autocast(self.device):
            return self.inputs.model.features(to_fast_layout(images)).float()

    def _together(self, batch: int) -> int:
        """Return the number of iterations in a chunk."""
        return max(1, self._chunk_size // (batch * len(self.pools)))

    @property
    def _chunk_size(self) -> int:
        """Return the number of views in a chunk, constant on a CPU, where it may change the rounding."""
        transform = self.inputs.transform
        if self.device.type != "cuda" or transform is None:
            return CHUNK
        return PIXELS // transform.crop**2

    def _compute_chunk(self, epoch: int, first: int, last: int, batch: int) -> list[Views]:
        rows, found = slice(first * batch, last * batch), []
        with self._side.active():
            for i, (order, draw) in enumerate(self._choices(epoch, batch)):
                positions = move_to(order[rows], self.device)
                if draw is None:
                    views = self._normalise(positions, batch)
                else:
                    assert self.inputs.transform is not None
                    pixels = self._readers(epoch, batch)[i].read(rows.start)
                    views = self.inputs.transform.train(pixels, [choice[rows] for choice in draw])
                found.append(Views(to_fast_layout(views), self.features(views), self.labels[positions]))
        return found

    def _open_readers(self, epoch: int, batch: int) -> list[_ChunkReader]:
        """Return a reader of each pool's images of an epoch."""
        images, indices = self.inputs.images, self.inputs.indices
        assert isinstance(images, Images)
        indices = torch.arange(len(images)) if indices is None else indices.cpu()
        rows = self._together(batch) * batch
        return [_ChunkReader(images, indices[order], rows) for order, _ in self._choices(epoch, batch)]

    def _draw_epoch(self, number: int, batch: int) -> list[tuple[Tensor, Draw | None]]:
        """Draw each pool's order and augmentations of an epoch on the CPU; the order stays there."""
        length, found = self.iterations(batch) * batch, list[tuple[Tensor, Draw | None]]()
        for name, positions in self.pools.items():
            seed = (*self.seed, name)
            order = positions[epoch_order(len(positions), length, number, seed)]
            draw = None
            if isinstance(self.inputs.images, Images):
                assert self.inputs.transform is not None
                numbers = generator(*seed, "augment", number)
                drawn = self.inputs.transform.draw(length, self.inputs.images.side, numbers)
                draw = [move_to(tensor, self.device) for tensor in drawn]
            found.append((order, draw))
        return found

    def _normalise(self, positions: Tensor, batch: int) -> Tensor:
        """Return normalised images, which are not augmented."""
        images, indices = self.inputs.images, self.inputs.indices
        assert not isinstance(images, Images)
        rows = positions if indices is None else indices.to(self.device)[positions]
        if isinstance(images, ForeignImages):
            return torch.cat([part for part, _ in images.batches(rows, batch)])
        return images[rows].float()


def head_size(head: nn.Module) -> tuple[int, int]:
    """Return a head's number of classes and of features, from its attributes or its first matrix."""
    for part in head.modules():
        if isinstance(classes := getattr(part, "out_features", None), int):
            return classes, int(part.in_features)  # type: ignore[arg-type]
    classes, width = next(p.shape for p in head.parameters() if p.ndim == 2)
    return int(classes), int(width)
