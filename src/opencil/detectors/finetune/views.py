"""What a step's tuners learn from: augmented views of its images, and their features, each computed once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from opencil.data.foreign import ForeignImages
from opencil.data.images import Images, moved
from opencil.data.transforms import Draw, Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.device import SideStream
from opencil.engine.feed import epoch_order, laid_out
from opencil.engine.forward import Inputs, linear_head, same_logits
from opencil.engine.ranks import at_work
from opencil.engine.seeding import generator, seeded
from opencil.errors import BadInput

#: Views that pass through the backbone together, and how many such chunks are kept.
CHUNK, KEPT = 1024, 3
#: A GPU takes as many as have so many pixels: of small images, few are computed before they are launched.
PIXELS = 4096 * 32 * 32


@dataclass(frozen=True)
class Views:
    """A batch of augmented, normalised images [B, 3, H, W], their frozen features [B, D] and labels [B]."""

    images: Tensor
    features: Tensor
    labels: Tensor

    def __getitem__(self, rows: slice) -> "Views":
        return Views(self.images[rows], self.features[rows], self.labels[rows])

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors, in the order that ``Views`` takes them."""
        return self.images, self.features, self.labels


@dataclass(frozen=True)
class _Pool:
    """Images that one half of every batch is drawn from: positions in the inputs."""

    name: str
    positions: Tensor


@dataclass(frozen=True)
class _Choices:
    """A pool's order and augmentations of an epoch: positions on the host and on the device."""

    order: Tensor
    positions: Tensor
    draw: Draw | None


class _ChunkReader:
    """A pool's images of an epoch, a chunk of ``rows`` after the other: the next are decoded meanwhile.

    Where ranks work together and images have to be decoded, each decodes its share, and has them all.
    """

    def __init__(self, images: Images, indices: Tensor, rows: int) -> None:
        self._images, self._indices, self._rows = images, indices, rows
        self._next = -1
        self._served: Iterator[Tensor] = iter(())
        last = len(indices) % rows or rows
        ranks = at_work() if images.decodes else None
        self._ranks = ranks if ranks is not None and last >= ranks.size else None

    def read(self, first: int) -> Tensor:
        """The bytes of the chunk that begins at a row."""
        end = min(first + self._rows, len(self._indices))
        if first != self._next:
            size = self._rows if self._ranks is None else len(self._ranks.share(self._rows))
            left = torch.split(self._indices[first:], self._rows)
            self._served = self._images.batches(torch.cat([self._own(part) for part in left]), size)
        self._next = -1
        pixels = next(self._served)
        if end == len(self._indices):  # so that its threads end
            next(self._served, None)
        self._next = end
        if self._ranks is None:
            return pixels
        return self._ranks.gathered(pixels, self._ranks.counts(end - first), "images")

    def _own(self, part: Tensor) -> Tensor:
        if self._ranks is None:
            return part
        share = self._ranks.share(len(part))
        return part[share.start : share.stop]


class ViewSource:
    """A frozen model and the images that its extra heads are tuned on.

    ``old`` marks the images of old classes, bool [N]: they are the memory, all others the current images. An
    iteration takes as many of the one as of the other; an epoch is one pass over the current ones. All tuners
    of a step see the same views, so they can share a source: for those that advance together each view is
    made, and passed through the backbone, once. ``tasks`` [classes] is the task that each class came with,
    where that is known.
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
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool or labels.min() < 0:
            raise BadInput(
                f"labels are {labels.dtype} {list(labels.shape)} from {labels.min()} on: whole numbers from "
                "0 on are needed, one for each image"
            )
        self.labels = labels.long().to(self.device)
        old = torch.zeros(len(labels), dtype=torch.bool) if old is None else old.cpu()
        self._current = _Pool("current", (~old).nonzero().flatten())
        self._memory = _Pool("memory", old.nonzero().flatten())
        if not len(self._current.positions):
            raise BadInput("there are no images of new classes to tune a head on: at least one is needed")
        # Tuners with other batches, or epochs behind the others, each go on with a chunk of their own.
        self._choices = lru_cache(maxsize=KEPT)(self._drawn)
        self._chunks = lru_cache(maxsize=KEPT)(self._computed_chunk)
        self._readers = lru_cache(maxsize=KEPT)(self._opened)
        # Tuners may advance on streams of their own.
        self._side = SideStream(self.device)

    @property
    def pools(self) -> list[_Pool]:
        """The current images and, where there is one, the memory."""
        return [self._current, self._memory] if len(self._memory.positions) else [self._current]

    @property
    def new_counts(self) -> dict[int, int]:
        """Current images of each new class, by label."""
        labels, counts = torch.unique(self.labels.cpu()[self._current.positions], return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def extra_head(self) -> nn.Module:
        """A copy of the model's head, from features to logits, whose linear layer can be trained.

        The model's own ``extra_head()`` where it has one; else what its ``classify`` computes, if that is
        linear.
        """
        model = self.inputs.model
        make: Callable[[], nn.Module] | None = getattr(model, "extra_head", None)
        head = make() if make else self._probed_head()
        if head is None or not same_logits(head, model.classify, head_size(head)[1], self.device):
            raise BadInput(
                f"{type(model).__name__} has no head to begin with: fine-tuning detectors train a copy of "
                "it, so a model whose classify is not linear needs a method extra_head() that returns one, a "
                "module from features to the logits of classify"
            )
        # A plain copy of a head asks for gradients no more than its model does, which is evaluated.
        return head if any(p.requires_grad for p in head.parameters()) else head.requires_grad_(True)

    @torch.no_grad()
    def _probed_head(self) -> nn.Linear | None:
        """What the model's ``classify`` computes as a linear layer, if it is linear."""
        width = self.features(next(iter(replace(self.inputs, batch_size=1).batches()))).shape[1]
        found = linear_head(self.inputs.model.classify, width, self.device)
        if found is None:
            return None
        with seeded(0):  # what it is initialised with is not kept, and a user's random state is
            head = nn.Linear(width, len(found[1])).to(self.device)
        head.weight.copy_(found[0])
        head.bias.copy_(found[1])
        return head

    @cached_property
    def scale(self) -> Transform:
        """What leads from pixels to the images and back; float images without a transform fill its range."""
        if self.inputs.transform is not None:
            return self.inputs.transform
        ranges = [torch.stack(batch.aminmax()) for batch in self.inputs.batches()]
        low, high = float(torch.stack(ranges)[:, 0].min()), float(torch.stack(ranges)[:, 1].max())
        span = max(high - low, 1e-6)
        return Transform(mean=(-low / span,) * 3, std=(1 / span,) * 3, crop=1)

    def batch_of(self, size: int) -> int:
        """Images of each pool in an iteration: ``size``, or all where there are fewer."""
        return min(size, len(self._current.positions))

    def iterations(self, batch: int) -> int:
        """Iterations of an epoch."""
        return -(-len(self._current.positions) // batch)

    def epoch(self, number: int, batch: int) -> Iterator[list[Views]]:
        """Views of the current images and, where there is one, of the memory, of each iteration."""
        for _, parts in self.chunks(number, batch):
            for start in range(0, len(parts[0].labels), batch):
                yield [views[start : start + batch] for views in parts]

    def chunks(self, number: int, batch: int) -> Iterator[tuple[int, list[Views]]]:
        """An epoch's views as they are computed: a first iteration, and those of several from there on."""
        together, count = self._together(batch), self.iterations(batch)
        for first in range(0, count, together):
            chunk = self._chunks(number, first, min(first + together, count), batch)
            self._side.hand_over(*(tensor for views in chunk for tensor in views.tensors))
            yield first, chunk

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Features of normalised images, float32 [B, D], by the frozen backbone in training's arithmetic.

        Where ranks work together each computes its share of them, and has them all.
        """
        ranks = at_work()
        if ranks is None or len(images) < ranks.size:
            return self._features(images)
        share = ranks.share(len(images))
        own = self._features(images[share.start : share.stop])
        return ranks.gathered(own, ranks.counts(len(images)), "features")

    def _features(self, images: Tensor) -> Tensor:
        with self.arithmetic.active(), self.arithmetic.autocast(self.device):
            return self.inputs.model.features(laid_out(images)).float()

    def _together(self, batch: int) -> int:
        """Iterations whose views are computed together."""
        return max(1, self._chunk_size // (batch * len(self.pools)))

    @property
    def _chunk_size(self) -> int:
        """Views in a chunk. On a CPU, whose rounding may depend on it, they are always as many."""
        transform = self.inputs.transform
        if self.device.type != "cuda" or transform is None:
            return CHUNK
        return PIXELS // transform.crop**2

    def _computed_chunk(self, epoch: int, first: int, last: int, batch: int) -> list[Views]:
        rows, found = slice(first * batch, last * batch), []
        with self._side.active():
            for i, choices in enumerate(self._choices(epoch, batch)):
                positions, draw = choices.positions[rows], choices.draw
                if draw is None:
                    views = self._given(positions, batch)
                else:
                    assert self.inputs.transform is not None
                    pixels = self._readers(epoch, batch)[i].read(rows.start)
                    views = self.inputs.transform.train(pixels, draw[rows])
                found.append(Views(laid_out(views), self.features(views), self.labels[positions]))
        return found

    def _opened(self, epoch: int, batch: int) -> list[_ChunkReader]:
        """Where each pool's images of an epoch come from."""
        images, indices = self.inputs.images, self.inputs.indices
        assert isinstance(images, Images)
        indices = torch.arange(len(images)) if indices is None else indices.cpu()
        rows = self._together(batch) * batch
        return [_ChunkReader(images, indices[c.order], rows) for c in self._choices(epoch, batch)]

    def _drawn(self, number: int, batch: int) -> list[_Choices]:
        """Each pool's order and augmentations of an epoch, drawn on the CPU, for its device."""
        length, found = self.iterations(batch) * batch, []
        for pool in self.pools:
            seed = (*self.seed, pool.name)
            order = pool.positions[epoch_order(len(pool.positions), length, number, seed)]
            draw = None
            if isinstance(self.inputs.images, Images):
                assert self.inputs.transform is not None
                numbers = generator(*seed, "augment", number)
                draw = self.inputs.transform.draw(length, self.inputs.images.side, numbers).to(self.device)
            found.append(_Choices(order, moved(order, self.device), draw))
        return found

    def _given(self, positions: Tensor, batch: int) -> Tensor:
        """Images that come normalised: they are not augmented."""
        images, indices = self.inputs.images, self.inputs.indices
        assert not isinstance(images, Images)
        rows = positions if indices is None else indices.to(self.device)[positions]
        if isinstance(images, ForeignImages):
            return torch.cat([part for part, _ in images.batches(rows, batch)])
        return images[rows].float()


def head_size(head: nn.Module) -> tuple[int, int]:
    """Classes of a head, and columns of the features that it reads: what it says, or its first matrix."""
    for part in head.modules():
        if isinstance(classes := getattr(part, "out_features", None), int):
            return classes, int(part.in_features)  # type: ignore[arg-type]
    classes, width = next(p.shape for p in head.parameters() if p.ndim == 2)
    return int(classes), int(width)
