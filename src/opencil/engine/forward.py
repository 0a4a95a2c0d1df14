"""One forward pass of a model over images: what herding, detectors and accuracy all read."""

import io
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from opencil.arrays import dense
from opencil.data.foreign import ForeignImages, served
from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL
from opencil.engine.ranks import Ranks, several
from opencil.engine.seeding import generator
from opencil.engine.turns import let_others
from opencil.errors import BadInput
from opencil.nets.model import Classifier
from opencil.nets.wrap import LogitsAlone, as_classifier

_MOST = 2**31  # images of a batch: no memory holds more
#: Pixels of a batch on a CPU, and images however large they are. What a narrow network's layer makes of
#: more has left the cache when the next one reads it, and is memory that the system gives anew each time.
_CPU_PIXELS, _CPU_IMAGES = 2**17, 128


@dataclass(frozen=True)
class Inputs:
    """A model and the images it reads, served in normalised batches.

    ``images``: an image set, which ``transform`` crops and normalises; or float images [N, channels, H, W]
    that are normalised already, by ``transform`` if one is named: a tensor or an array, a Dataset, a
    DataLoader or another iterable of batches. ``indices`` choose images (default: all).
    """

    model: Classifier
    images: Images | Tensor | ForeignImages
    transform: Transform | None = None
    indices: Tensor | None = None
    batch_size: int = 512

    def __post_init__(self) -> None:
        if type(self.batch_size) is not int or not 1 <= self.batch_size <= _MOST:
            raise BadInput(
                f"batch_size = {reprlib.repr(self.batch_size)} is not allowed: it should be at least 1 and "
                f"at most {_MOST}"
            )
        if not isinstance(self.transform, Transform | None):
            raise BadInput(
                f"transform is a {type(self.transform).__name__}: an opencil.Transform is needed. A dataset "
                "with a transform of its own gives images that are normalised already"
            )
        object.__setattr__(self, "model", as_classifier(self.model))
        images = served(self.images, "images", device_of(self.model), self.batch_size)
        object.__setattr__(self, "images", images)
        if self.indices is not None and not isinstance(self.indices, Tensor):
            raise BadInput(f"indices are a {type(self.indices).__name__}: a tensor, int64 [N], is needed")
        if self.indices is not None:
            self._check_indices(dense(self.indices, "indices"))
        if isinstance(self.images, Images):
            if self.transform is None:
                raise BadInput(f"images of {self.images.name!r} are bytes: a transform is needed with them")
            if not len(self.images):
                raise BadInput(f"{self.images.name!r} has no images: at least one is needed")
        elif isinstance(self.images, ForeignImages):
            return
        elif self.images.ndim != 4 or not self.images.is_floating_point() or not len(self.images):
            raise BadInput(
                f"images are {self.images.dtype} {list(self.images.shape)}: floating-point "
                "[N, channels, H, W] with at least one image is needed, or an ImageSet"
            )
        elif not torch.isfinite(self.images).all():
            bad = int((~torch.isfinite(self.images)).flatten(1).any(dim=1).nonzero()[0])
            raise BadInput(f"image {bad} is not finite: a model cannot read it")

    def _check_indices(self, indices: Tensor) -> None:
        """Refuse indices of images that are not there; batches that can be read once have no count yet."""
        if indices.ndim != 1 or indices.dtype != torch.int64:
            raise BadInput(f"indices are {indices.dtype} {list(indices.shape)}: int64 [N] is needed")
        if (isinstance(self.images, ForeignImages) and not self.images.by_index) or not len(indices):
            return
        low, high = (int(end) for end in indices.aminmax())
        if not 0 <= low <= high < len(self.images):
            raise BadInput(f"indices go from {low} to {high}: there are images 0 to {len(self.images) - 1}")

    def __len__(self) -> int:
        return len(self.images) if self.indices is None else len(self.indices)

    @property
    def labels(self) -> Tensor | None:
        """Labels [N] where an image set comes with them; those of other images come with their batches."""
        return self.images.labels[self._chosen] if isinstance(self.images, Images) else None

    @property
    def std(self) -> Tensor:
        """What normalising divided the pixels by, [channels, 1, 1]; 1 where no transform is named."""
        values = (1.0,) if self.transform is None else self.transform.std
        return torch.tensor(values, device=self.images.device).view(-1, 1, 1)

    def batches(self) -> Iterator[Tensor]:
        """The images in order, normalised, float32 [≤ batch_size, channels, H, W].

        Between them others may have a turn: whoever reads batches is at long work.
        """
        return (images for images, _ in self.labelled_batches())

    def labelled_batches(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The same, each with its labels where they come with the batch, and nowhere else."""
        for images, labels in self._served():
            most = _most_at_once(images)
            for start in range(0, max(1, len(images)), most):
                rows = slice(start, start + most)
                yield images[rows], None if labels is None else labels[rows]
                let_others()

    def _served(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        if isinstance(self.images, ForeignImages):
            yield from self.images.batches(self.indices, self.batch_size)
        elif isinstance(self.images, Tensor):
            for rows in torch.split(self._chosen, self.batch_size):
                yield self.images[rows].float(), None
        else:
            assert self.transform is not None
            for pixels in self.images.batches(self._wanted, self.batch_size):
                yield self.transform.test(pixels), None

    def maps(self) -> Iterator[list[Tensor]]:
        """The model's maps after each stage, batch by batch, float32 [≤ batch_size, C, H, W] each.

        They are computed as they are asked for, model in eval mode, full float32: those of all images would
        take gigabytes.
        """
        maps: Callable[[Tensor], list[Tensor]] | None = getattr(self.model, "maps", None)
        if maps is None:
            raise BadInput(
                f"{type(self.model).__name__} has no maps of its stages: a method maps(images) gives them, "
                "[B, C, H, W] each"
            )
        for batch in self.batches():
            with torch.no_grad(), FULL.active(), evaluating(self.model):
                given = maps(batch)
            if not isinstance(given, (list, tuple)) or any(one.ndim != 4 for one in given):
                raise BadInput(
                    f"maps of {type(self.model).__name__} should be a list of tensors [B, C, H, W], one for "
                    "each stage"
                )
            yield [one.float() for one in given]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Features [B, D] of maps that take the place of those before the last stage, computed alike."""
        last_stage: Callable[[Tensor], Tensor] | None = getattr(self.model, "last_stage", None)
        if last_stage is None:
            raise BadInput(
                f"{type(self.model).__name__} has no last stage that runs by itself: a method "
                "last_stage(maps) gives features [B, D] of the maps before it"
            )
        with torch.no_grad(), FULL.active(), evaluating(self.model):
            return _given(self.model, "last_stage", last_stage(maps), len(maps)).float()

    @property
    def _wanted(self) -> Tensor:
        """The indices, wherever they are: a store that decodes on the host need not ask a device for them."""
        return torch.arange(len(self.images)) if self.indices is None else self.indices

    @property
    def _chosen(self) -> Tensor:
        return self._wanted.to(self.images.device)


@dataclass(frozen=True)
class Outputs:
    """Features f [N, D], logits z [N, classes] and, where there are any, labels [N].

    ``classify`` is the head h that made the logits of the features, and ``inputs`` the images behind them:
    for detectors that read more than one forward pass gives. Of a function that gives logits alone, features
    have no columns and these two are missing. ``tasks`` [classes] is the task, counted from 1,
    that each class came with, where that is known; the highest is the new one.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor | None = None
    classify: Callable[[Tensor], Tensor] | None = None
    inputs: Inputs | None = None
    tasks: Tensor | None = None

    def __len__(self) -> int:
        return len(self.logits)

    def __repr__(self) -> str:
        shapes = f"features {list(self.features.shape)}, logits {list(self.logits.shape)}"
        return f"Outputs({shapes}{'' if self.labels is None else ', labels'})"

    def of(self, images: Images, indices: Tensor) -> "Outputs | None":
        """Outputs of some images of a set, chosen by index; None where they are not all among these."""
        if self.inputs is None or self.inputs.images is not images or self.inputs.indices is None:
            return None
        indices = indices.cpu()
        known, order = self.inputs.indices.cpu().sort()
        places = torch.searchsorted(known, indices).clamp(max=len(known) - 1)
        if not torch.equal(known[places], indices):
            return None
        rows = order[places].to(self.logits.device)
        labels = None if self.labels is None else self.labels[rows]
        inputs = replace(self.inputs, indices=indices)
        return replace(
            self, features=self.features[rows], logits=self.logits[rows], labels=labels, inputs=inputs
        )

    def by(self, model: Classifier) -> "Outputs":
        """The same outputs as those of a copy of the model that made them."""
        inputs = None if self.inputs is None else replace(self.inputs, model=model)
        return replace(self, classify=model.classify, inputs=inputs)

    def layers(self) -> Iterator[list[Tensor]]:
        """The maps after each stage of the backbone, batch by batch in the samples' order."""
        if self.inputs is None:
            raise BadInput("the maps of a network's stages are computed from its images: missing here")
        return self.inputs.maps()

    def last_stage(self, maps: Tensor) -> Tensor:
        """Features [B, D] that the backbone's last stage makes of other maps than those before it."""
        if self.inputs is None:
            raise BadInput("the last stage is that of the model that comes with images: missing here")
        return self.inputs.last_stage(maps)

    def linear(self) -> tuple[Tensor, Tensor]:
        """The head as W [classes, D] and b [classes]: z = W f + b; one that is not linear is refused."""
        if self.classify is None:
            raise BadInput("W and b are found by probing the head: classify is missing here")
        found = linear_head(self.classify, self.features.shape[1], self.features.device)
        if found is None:
            raise BadInput(
                "the head is not linear, as a cosine head is not: a detector that reads it as W and b needs "
                "logits that are W f + b"
            )
        return found


def forward(
    model: Classifier | Callable[[Tensor], Any],
    images: Any,
    transform: Transform | None = None,
    indices: Tensor | None = None,
    batch_size: int = 512,
) -> Outputs:
    """Outputs of the chosen images (default: all): test transform, model in eval mode, full float32.

    ``model`` has ``features`` and ``classify``, or is a function from images to logits, whose outputs have
    nothing else. ``images`` are what ``Inputs`` takes.
    """
    return outputs_of(Inputs(as_classifier(model), images, transform, indices, batch_size))


def _most_at_once(images: Tensor) -> int:
    """Images of a batch that a network is fastest with: all of them, but for a CPU."""
    if images.device.type != "cpu":
        return max(1, len(images))
    return max(_CPU_IMAGES, _CPU_PIXELS // max(1, images.shape[-2] * images.shape[-1]))


def device_of(model: Classifier) -> torch.device | None:
    """Where a model computes; None where it has no parameters that say so."""
    held = chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()
    return next((tensor.device for tensor in held), None)


Classify = Callable[[Tensor], Tensor]


@torch.no_grad()
def linear_head(classify: Classify, width: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """W [classes, width] and b [classes] of a head that gives W f + b, or None where it gives something else.

    They are its values at the unit vectors and at 0, so whatever a model does after its linear layer that is
    linear too, such as BiC's corrections, is in them.
    """
    with FULL.active():
        bias = classify(torch.zeros(1, width, device=device)).float()
        weight = (classify(torch.eye(width, device=device)).float() - bias).T
    found = weight.contiguous(), bias[0]
    return found if same_logits(classify, lambda f: f @ found[0].T + found[1], width, device) else None


@torch.no_grad()
def same_logits(one: Classify, other: Classify, width: int, device: torch.device) -> bool:
    """Whether two heads give the same logits of a few random features, but for rounding."""
    probe = torch.rand(8, width, generator=generator("probe")).to(device)
    with FULL.active():
        found, expected = one(probe).float(), other(probe).float()
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@contextmanager
def evaluating(model: Classifier) -> Iterator[None]:
    """The model in eval mode inside the block, and asking for no gradients; after it, as it was."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [module.training for module in modules]
    trained = [p for module in modules for p in module.parameters(recurse=False) if p.requires_grad]
    try:
        for module in modules:
            module.training = False
        for parameter in trained:
            parameter.requires_grad = False
        yield
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.training = mode
        for parameter in trained:
            parameter.requires_grad = True


def outputs_of(inputs: Inputs) -> Outputs:
    """One pass over the inputs: model in eval mode, full float32 whatever the training's precision."""
    found = by_ranks(inputs, _features_and_logits)
    if found is None:
        return _computed(inputs)
    features, logits = found
    if isinstance(inputs.model, LogitsAlone):
        return Outputs(features, logits, inputs.labels)
    return Outputs(features, logits, inputs.labels, inputs.model.classify, inputs)


#: What is computed of inputs, which are some rows of others: tensors with as many rows.
OfRows = Callable[[Inputs, slice], tuple[Tensor, ...]]


def by_ranks(inputs: Inputs, compute: OfRows) -> tuple[Tensor, ...] | None:
    """What is computed of inputs, by whole batches that each rank has of them: as a single process would.

    None where they are not shared: there are no ranks, not a batch for each, or what it takes cannot be sent.
    """
    ranks = several()
    if ranks is None or not isinstance(inputs.images, Images):
        return None
    if len(inputs) <= (ranks.size - 1) * inputs.batch_size:
        return None
    if ranks.working:
        return _by_all(inputs, compute, ranks)
    if (work := Pass.of(inputs, compute)) is None:
        return None
    ranks.hand_out(work)
    with ranks.together():
        return _by_all(inputs, compute, ranks)


@dataclass(frozen=True)
class Pass:
    """A pass that rank 0 hands out: a model, what is computed by it, and of which images of a set."""

    model_and_compute: bytes
    images: str  #: their fingerprint
    transform: Transform | None
    indices: Tensor
    batch_size: int

    @classmethod
    def of(cls, inputs: Inputs, compute: OfRows) -> "Pass | None":
        """The pass over inputs; None where their model cannot be sent to another process."""
        assert isinstance(inputs.images, Images)
        file = io.BytesIO()
        try:
            torch.save((inputs.model, compute), file)
        except Exception:  # a function inside a function, a lock, an open file: whatever pickle refuses
            return None
        chosen = inputs._wanted.cpu()
        return cls(file.getvalue(), inputs.images.fingerprint, inputs.transform, chosen, inputs.batch_size)

    def follow(self, images: Images, ranks: Ranks) -> None:
        """Do a follower's share of it."""
        file = io.BytesIO(self.model_and_compute)
        model, compute = torch.load(file, map_location=images.device, weights_only=False)
        _by_all(Inputs(model, images, self.transform, self.indices, self.batch_size), compute, ranks)


def _by_all(inputs: Inputs, compute: OfRows, ranks: Ranks) -> tuple[Tensor, ...]:
    """A pass of which each rank computes its batches."""
    chosen, size = inputs._wanted, inputs.batch_size
    batches = ranks.counts(-(-len(chosen) // size))
    ends = [min(size * sum(batches[: rank + 1]), len(chosen)) for rank in range(ranks.size)]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    rows = slice(ends[ranks.rank] - counts[ranks.rank], ends[ranks.rank])
    own = compute(replace(inputs, indices=chosen[rows]), rows)
    return tuple(ranks.gathered(tensor, counts, "a pass") for tensor in own)


def _features_and_logits(inputs: Inputs, _: slice) -> tuple[Tensor, ...]:
    found = _computed(inputs)
    return found.features, found.logits


@torch.no_grad()
def _computed(inputs: Inputs) -> Outputs:
    model = inputs.model
    alone = isinstance(model, LogitsAlone)
    features, logits, labels = [], [], []
    with FULL.active(), evaluating(model):
        for batch, known in inputs.labelled_batches():
            if isinstance(model, LogitsAlone):
                z = model(batch).float().to(batch.device)
                f = z.new_empty(len(z), 0)
            else:
                f = _given(model, "features", model.features(batch), len(batch))
                z = _given(model, "classify", model.classify(f), len(batch)).float()
            features.append(f.float())
            logits.append(z)
            if known is not None:
                labels.append(known)
    return Outputs(
        torch.cat(features),
        torch.cat(logits),
        torch.cat(labels) if labels else inputs.labels,
        None if alone else model.classify,
        None if alone else inputs,
    )


def _given(model: Classifier, method: str, found: object, rows: int) -> Tensor:
    """What a model's method gives, if that is a tensor with a row for each image."""
    if isinstance(found, Tensor) and found.ndim > 1 and len(found) == rows:
        return found
    what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    raise BadInput(
        f"{method} of {type(model).__name__} gives {what}: a tensor with a row for each of {rows} images is "
        "needed"
    )
