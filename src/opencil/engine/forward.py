"""One forward pass of a model over images, for herding, detectors and accuracy together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opencil.arrays import dense
from opencil.data.file_dataset import serve_path
from opencil.data.foreign import ForeignImages, serve_images
from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL
from opencil.engine.ranks import LostRank, current
from opencil.engine.seeding import generator
from opencil.errors import BadInput, no_exits, not_allowed
from opencil.nets.model import Classifier
from opencil.nets.wrap import LogitsAlone, as_classifier, describe

#: Pixels of a batch on a CPU, and its images however large they are. The activations of larger batches do not
#: fit into the cache.
_CPU_PIXELS, _CPU_IMAGES = 2**17, 128
Classify = Callable[[Tensor], Tensor]
#: Statistics of classes by name, such as ``means`` [classes, D].
Statistics = Mapping[str, Tensor]


@dataclass(frozen=True)
class Inputs:
    """A model and the images it reads, in normalised batches.

    ``images`` are an image set, which ``transform`` crops and normalises, or normalised float images
    [N, channels, H, W]: a tensor, an array, a Dataset, a DataLoader or another iterable of batches. Of these,
    ``transform`` only says how they were normalised. ``indices`` choose images (default: all).
    """

    model: Classifier
    images: Any  #: of any of these kinds; kept as Images or ForeignImages
    transform: Transform | None = None
    indices: Tensor | None = None
    batch_size: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise not_allowed("batch_size", self.batch_size, "a whole number from 1 on is")
        if not isinstance(self.transform, Transform | None):
            raise BadInput(f"transform is a {type(self.transform).__name__}: an opencil.Transform is needed")
        object.__setattr__(self, "model", as_classifier(self.model))
        images = serve_images(self.images, "images", device_of(self.model), self.batch_size)
        if isinstance(images, Images):
            images = images.order_classes(getattr(self.model, "class_names", ()))
        object.__setattr__(self, "images", images)
        if isinstance(images, Images) and self.transform is None:
            raise BadInput(f"images of {images.name!r} are bytes: a transform is needed with them")
        if self.indices is None:
            return
        indices = dense(self.indices, "indices")
        object.__setattr__(self, "indices", indices)
        if indices.ndim != 1 or indices.dtype != torch.int64:
            raise BadInput(f"indices are {describe(indices)}: int64 [N] is needed")
        # An iterable has no count before it is read.
        if len(indices) and (isinstance(images, Images) or images.count is not None):
            low, high = (int(end) for end in indices.aminmax())
            if not 0 <= low <= high < len(images):
                raise BadInput(f"indices go from {low} to {high}: there are images 0 to {len(images) - 1}")

    def __len__(self) -> int:
        return len(self.images) if self.indices is None else len(self.indices)

    @property
    def rows(self) -> Tensor:
        """Return the indices; images decoded on the host need them on their own device."""
        return torch.arange(len(self.images)) if self.indices is None else self.indices

    @property
    def labels(self) -> Tensor | None:
        """Return the labels [N] of an image set; labels of other images come with their batches."""
        images = self.images
        return images.labels[self.rows.to(images.device)] if isinstance(images, Images) else None

    def batches(self) -> Iterator[Tensor]:
        """Yield the images in order, normalised, float32 [≤ batch_size, channels, H, W]."""
        return (images for images, _ in self.labelled_batches())

    def labelled_batches(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the same batches with their labels, or None for images without labels."""
        if isinstance(self.images, ForeignImages):
            whole = self.images.batches(self.indices, self.batch_size)
        else:
            assert self.transform is not None
            pixels = self.images.batches(self.rows, self.batch_size)
            whole = zip(map(self.transform.test, pixels), repeat(None))
        for images, labels in whole:
            most = max(1, len(images))
            if images.device.type == "cpu":
                most = max(_CPU_IMAGES, _CPU_PIXELS // max(1, images.shape[-2] * images.shape[-1]))
            for start in range(0, max(1, len(images)), most):
                rows = slice(start, start + most)
                yield images[rows], None if labels is None else labels[rows]


@dataclass(frozen=True)
class Outputs:
    """Features f [N, D], logits z [N, classes] and, where there are any, labels [N].

    ``classify`` is the head h, from features to logits; ``inputs`` are the model and its images. A model with
    logits alone has neither, and features without columns. ``tasks`` [classes] is the task of each class,
    counted from 1, if known; the highest is the new one. ``carried`` are statistics of further classes.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor | None = None
    classify: Classify | None = None
    inputs: Inputs | None = None
    tasks: Tensor | None = None
    carried: tuple[Statistics, ...] = ()

    def __len__(self) -> int:
        return len(self.logits)

    def __repr__(self) -> str:
        shapes = f"features {list(self.features.shape)}, logits {list(self.logits.shape)}"
        return f"Outputs({shapes}{'' if self.labels is None else ', labels'})"

    def of(self, images: Images, indices: Tensor) -> "Outputs | None":
        """Return the outputs of some images of a set, chosen by index; None where some are missing here."""
        if self.inputs is None or self.inputs.images is not images or self.inputs.indices is None:
            return None
        indices = indices.cpu()
        ordered, order = self.inputs.indices.cpu().sort()
        places = torch.searchsorted(ordered, indices).clamp(max=len(ordered) - 1)
        if not torch.equal(ordered[places], indices):
            return None
        rows = order[places].to(self.logits.device)
        labels = None if self.labels is None else self.labels[rows]
        inputs = replace(self.inputs, indices=indices)
        return replace(
            self, features=self.features[rows], logits=self.logits[rows], labels=labels, inputs=inputs
        )

    def layers(self) -> Iterator[list[Tensor]]:
        """Yield the backbone's maps after each stage, float32 [≤ batch_size, C, H, W] each, batch by batch.

        The model is in eval mode and full float32. Maps of all images together would take gigabytes.
        """
        inputs, maps = self._method_of_model("maps")
        for batch in inputs.batches():
            with torch.no_grad(), FULL.active(), evaluating(inputs.model):
                stages = maps(batch)
            if not isinstance(stages, (list, tuple)) or any(stage.ndim != 4 for stage in stages):
                name = type(inputs.model).__name__
                raise BadInput(f"maps of {name} should be a list of tensors [B, C, H, W]")
            yield [stage.float() for stage in stages]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Return features [B, D] of the backbone's last stage for given maps before it."""
        inputs, last_stage = self._method_of_model("last_stage")
        with torch.no_grad(), FULL.active(), evaluating(inputs.model):
            return _check_rows(inputs.model, "last_stage", last_stage(maps), len(maps)).float()

    def _method_of_model(self, name: str) -> tuple[Inputs, Callable[[Tensor], Any]]:
        if self.inputs is None:
            raise BadInput("a network's stages are computed from its images, which are missing here")
        method = getattr(self.inputs.model, name, None)
        if method is None:
            model = type(self.inputs.model).__name__
            raise BadInput(f"{model} has no method {name}(), which the detector needs")
        return self.inputs, method

    def linear(self) -> tuple[Tensor, Tensor]:
        """Return the head as W [classes, D] and b [classes], where z = W f + b; raise if it is not linear."""
        if self.classify is None:
            raise BadInput("W and b are found by probing the head: classify is missing here")
        found = linear_head(self.classify, self.features.shape[1], self.features.device)
        if found is None:
            raise BadInput("the head is not linear: the detector reads it as W and b, for logits W f + b")
        if (classes := self.logits.shape[1]) not in (0, len(found[1])):
            raise BadInput(f"the head has {len(found[1])} classes: there are logits of {classes}")
        return found


@no_exits(LostRank)
def forward(
    model: Classifier | Callable[[Tensor], Any],
    images: Any,
    transform: Transform | None = None,
    indices: Tensor | None = None,
    batch_size: int = 512,
) -> Outputs:
    """Return outputs of the chosen images (default: all): test transform, eval mode, always full float32.

    ``model`` has ``features`` and ``classify``, or is a function from images to logits, whose outputs have
    nothing else. ``Inputs`` says which ``images`` are accepted; the path of a folder, or of a file, is too,
    and its images have no labels. If the model has ``class_names``, as those of runs, labels of an image set
    with these classes are positions among them.
    """
    model, unlabelled = as_classifier(model), isinstance(images, str | Path)
    if unlabelled:
        images = serve_path(images, "images", transform, labelled=False)
        images = images.to(device_of(model) or torch.device("cpu"))
    inputs = Inputs(model, images, transform, indices, batch_size)
    shared = compute_by_ranks(inputs, lambda part, _: _compute(part))
    features, logits, *labels = shared or _compute(inputs)
    known = None if unlabelled else labels[0] if labels else inputs.labels
    if isinstance(inputs.model, LogitsAlone):
        return Outputs(features, logits, known)
    return Outputs(features, logits, known, inputs.model.classify, inputs)


def device_of(model: Classifier) -> torch.device | None:
    """Return the device of a model; None where it has no parameters."""
    tensors = chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()
    return next((tensor.device for tensor in tensors), None)


@torch.no_grad()
def linear_head(classify: Classify, width: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return W [classes, width] and b [classes] of a linear head, W f + b; None for another head.

    They are its values at the unit vectors and at 0, so they include linear operations after the linear
    layer, such as BiC's corrections.
    """
    with FULL.active():
        bias = classify(torch.zeros(1, width, device=device)).float()
        weight = (classify(torch.eye(width, device=device)).float() - bias).T
    weight, bias = weight.contiguous(), bias[0]
    return (weight, bias) if same_logits(classify, lambda f: f @ weight.T + bias, width, device) else None


@torch.no_grad()
def same_logits(one: Classify, other: Classify, width: int, device: torch.device) -> bool:
    """Return whether two heads compute the same logits from random features, but for rounding."""
    probe = torch.rand(8, width, generator=generator("probe")).to(device)
    with FULL.active():
        found, expected = one(probe).float(), other(probe).float()
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@contextmanager
def evaluating(model: Classifier) -> Iterator[None]:
    """Put a model into eval mode, without gradients of its parameters, inside the block."""
    network = model if isinstance(model, nn.Module) else nn.Module()
    on: list[tuple[object, str]] = [(m, "training") for m in network.modules() if m.training]
    on += [(p, "requires_grad") for p in network.parameters() if p.requires_grad]
    for part, name in on:
        setattr(part, name, False)
    try:
        yield
    finally:
        for part, name in on:
            setattr(part, name, True)


def compute_by_ranks(
    inputs: Inputs, compute: Callable[[Inputs, slice], tuple[Tensor, ...]]
) -> tuple[Tensor, ...] | None:
    """Compute tensors of inputs, each rank on some batches of a single process, and gather them.

    ``compute`` takes inputs of some rows, and these rows as a slice. Return None without ranks, with fewer
    batches than ranks, and for other images than an image set.
    """
    ranks, size = current(), inputs.batch_size
    if ranks is None or not isinstance(inputs.images, Images) or len(inputs) <= (ranks.size - 1) * size:
        return None
    batches = ranks.counts(-(-len(inputs) // size))
    ends = [min(size * sum(batches[:rank]), len(inputs)) for rank in range(ranks.size + 1)]
    rows, counts = slice(*ends[ranks.rank : ranks.rank + 2]), [b - a for a, b in pairwise(ends)]
    tensors = compute(replace(inputs, indices=inputs.rows[rows]), rows)
    return tuple(ranks.gather(tensor, counts) for tensor in tensors)


@torch.no_grad()
def _compute(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return features, logits and, where they come with the batches, labels."""
    model = inputs.model
    features, logits, labels = [], [], []
    with FULL.active(), evaluating(model):
        for batch, batch_labels in inputs.labelled_batches():
            if isinstance(model, LogitsAlone):
                z = model(batch).float().to(batch.device)
                f = z.new_empty(len(z), 0)
            else:
                f = _check_rows(model, "features", model.features(batch), len(batch))
                z = _check_rows(model, "classify", model.classify(f), len(batch)).float()
            features.append(f.float())
            logits.append(z)
            if batch_labels is not None:
                labels.append(batch_labels)
    return tuple(torch.cat(parts) for parts in (features, logits, labels) if parts)


def _check_rows(model: Classifier, method: str, value: object, rows: int) -> Tensor:
    """Return the value of a model's method if it is a tensor with a row for each image."""
    if isinstance(value, Tensor) and value.ndim > 1 and len(value) == rows:
        return value
    name = type(model).__name__
    raise BadInput(f"{method} of {name} returns {describe(value)}: a tensor of {rows} rows is needed")
