"""Compute augmented views of a step's images and their features, once for all tuners."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from opencil.data.images import Images, move_to
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.device import SideStream
from opencil.engine.feed import epoch_order, to_fast_layout
from opencil.engine.forward import Inputs, linear_head, same_logits
from opencil.engine.ranks import current
from opencil.engine.seeding import generator
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
        self._images, self._chunks, ranks = images, torch.split(indices, rows), current()
        shared = images.decodes and ranks is not None and len(self._chunks[-1]) >= ranks.size
        self._ranks = ranks if shared else None
        self._next, self._served = -1, iter(list[Tensor]())

    def read(self, number: int) -> Tensor:
        """Return the pixels of a chunk."""
        if number != self._next:
            own = self._chunks[number:]
            if self._ranks is not None:
                shares = [self._ranks.share(len(chunk)) for chunk in own]
                own = tuple(chunk[s.rows] for chunk, s in zip(own, shares, strict=True))
            self._served = self._images.batches(torch.cat(own), len(own[0]))
        self._next = number + 1
        pixels = next(self._served)
        if self._next == len(self._chunks):  # end the reader's threads
            next(self._served, None)
        if self._ranks is None:
            return pixels
        return self._ranks.gather(pixels, self._ranks.counts(len(self._chunks[number])))


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
        self._indices = inputs.rows.cpu()
        old = torch.zeros(len(labels), dtype=torch.bool) if old is None else old.cpu()
        #: Positions in the inputs of the current images and, if there are any, of the memory.
        self.pools = {"current": (~old).nonzero().flatten()}
        if old.any():
            self.pools["memory"] = old.nonzero().flatten()
        if not len(self.pools["current"]):
            raise BadInput("there are no images of new classes: a head needs at least one to be tuned on")
        # Cached, since tuners can differ in their batch size or in their progress.
        self._epochs = lru_cache(maxsize=CACHED)(self._draw_epoch)
        self._chunks = lru_cache(maxsize=CACHED)(self._compute_chunk)
        # Tuners can advance on other CUDA streams.
        self._side = SideStream(self.device)

    @property
    def new_counts(self) -> dict[int, int]:
        """Return the number of current images of each new class, by label."""
        labels, counts = torch.unique(self.labels.cpu()[self.pools["current"]], return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def extra_head(self) -> nn.Module:
        """Return a trainable copy of the model's head: its ``extra_head()``, or its linear ``classify``."""
        model = self.inputs.model
        make: Callable[[], nn.Module | None] = getattr(model, "extra_head", None) or self._probe_head
        head = make()
        if head is None or not same_logits(head, model.classify, head_size(head)[1], self.device):
            name = type(model).__name__
            raise BadInput(f"{name} needs extra_head(): a module from features to the logits of classify")
        # A copy from a model in evaluation has no parameter that requires gradients.
        return head if any(p.requires_grad for p in head.parameters()) else head.requires_grad_(True)

    @torch.no_grad()
    def _probe_head(self) -> nn.Linear | None:
        """Return the model's ``classify`` as a linear layer, or None if it is not linear."""
        width = self.features(next(iter(replace(self.inputs, batch_size=1).batches()))).shape[1]
        found = linear_head(self.inputs.model.classify, width, self.device)
        if found is None:
            return None
        head = nn.Linear(width, len(found[1]), device="meta")  # draws nothing
        head.weight, head.bias = map(nn.Parameter, found)
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
        """Return features of normalised images, float32 [B, D], in training's arithmetic, shared by ranks."""
        count, ranks = len(images), current()
        if ranks is not None and count >= ranks.size:
            images = images[ranks.share(count).rows]
        with self.arithmetic.active(), self.arithmetic.autocast(self.device):
            found = self.inputs.model.features(to_fast_layout(images)).float()
        return ranks.gather(found, ranks.counts(count)) if ranks and len(found) < count else found

    def _together(self, batch: int) -> int:
        """Return the number of iterations in a chunk; constant on a CPU, where it may change the rounding."""
        transform = self.inputs.transform
        size = PIXELS // transform.crop**2 if transform and self.device.type == "cuda" else CHUNK
        return max(1, size // (batch * len(self.pools)))

    def _compute_chunk(self, epoch: int, first: int, last: int, batch: int) -> list[Views]:
        place, found = slice(first * batch, last * batch), []
        images, transform = self.inputs.images, self.inputs.transform
        with self._side.active():
            for order, augmented in self._epochs(epoch, batch):
                positions = move_to(order[place], self.device)
                if augmented is not None and transform is not None:
                    draw, reader = augmented
                    pixels = reader.read(first // self._together(batch))
                    views = transform.train(pixels, [choice[place] for choice in draw])
                else:
                    rows = self._indices[order[place]]  # on the host, where images are looked up
                    views = torch.cat([part for part, _ in images.batches(rows, batch)])
                found.append(Views(to_fast_layout(views), self.features(views), self.labels[positions]))
        return found

    def _draw_epoch(
        self, number: int, batch: int
    ) -> list[tuple[Tensor, tuple[list[Tensor], _ChunkReader] | None]]:
        """Draw each pool's order and augmentations of an epoch on the CPU; the order stays there."""
        length, found = self.iterations(batch) * batch, []
        images, transform = self.inputs.images, self.inputs.transform
        for name, positions in self.pools.items():
            seed, augmented = (*self.seed, name), None
            order = positions[epoch_order(len(positions), length, number, seed)]
            if isinstance(images, Images) and transform is not None:
                drawn = transform.draw(length, images.side, generator(*seed, "augment", number))
                reader = _ChunkReader(images, self._indices[order], self._together(batch) * batch)
                augmented = [move_to(tensor, self.device) for tensor in drawn], reader
            found.append((order, augmented))
        return found


def head_size(head: nn.Module) -> tuple[int, int]:
    """Return a head's number of classes and of features, from its attributes or its first matrix."""
    for part in head.modules():
        if isinstance(classes := getattr(part, "out_features", None), int):
            return classes, int(part.in_features)  # type: ignore[arg-type]
    classes, width = next(p.shape for p in head.parameters() if p.ndim == 2)
    return int(classes), int(width)
