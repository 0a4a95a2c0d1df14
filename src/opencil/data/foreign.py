"""Normalised images from the user: arrays, Datasets, DataLoaders and other iterables of batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from opencil.arrays import dense, whole_numbers
from opencil.data.images import Images
from opencil.data.precision import as_float64
from opencil.errors import BadInput

#: Keys of the images, and of the labels, in a batch that is a mapping.
IMAGE_KEYS = ("images", "image", "pixel_values", "data", "img", "x")
LABEL_KEYS = ("labels", "label", "targets", "target", "y")

Pair = tuple[Tensor, Tensor | None]
#: Yields the user's batches of at most a size: the images at indices, or all in order.
Reader = Callable[[Tensor | None, int], Iterable[Any]]


@dataclass(eq=False)
class ForeignImages:
    """Serve normalised images in batches, always in the same order."""

    read: Reader
    count: int | None  #: without it the images are read in order only
    name: str
    device: torch.device  #: of the batches
    labelled: bool  #: whether to read their labels too
    again: bool = True  #: whether they can be read a second time
    sums: list[float] = field(default_factory=list)  #: of each image, where only the order identifies it

    def __len__(self) -> int:
        if self.count is None and not self.sums:
            for _ in self.batches(None, 2**20):
                pass
        return self.count or len(self.sums)

    def batches(self, indices: Tensor | None, size: int) -> Iterator[Pair]:
        """Yield float32 images [≤ size, C, H, W] and int64 labels, if there are any, on the device."""
        if self.count is None and (indices is not None or (self.sums and not self.again)):
            raise BadInput(f"{self.name} is an iterable, to be read in order: give a Dataset or an array")
        seen, sums = 0, list[float]()
        for batch in self.read(indices, size):
            images, labels = _split_pair(batch, self.name, self.labelled)
            if images.ndim != 4 or not images.is_floating_point():
                raise BadInput(
                    f"images of {self.name} are {images.dtype} {list(images.shape)}: floating-point numbers "
                    "[N, channels, H, W] are needed, normalised, or an ImageSet with a transform"
                )
            if labels is not None and len(labels) != len(images):
                raise BadInput(f"{self.name} has a batch of {len(images)} images and {len(labels)} labels")
            if len(bad := (~torch.isfinite(images)).flatten(1).any(dim=1).nonzero()):
                raise BadInput(f"image {seen + int(bad[0])} of {self.name} is not finite")
            seen += len(images)
            if self.count is None:
                sums += as_float64(images).flatten(1).sum(dim=1).tolist()
            for start in range(0, len(images), size):
                rows = slice(start, start + size)
                yield (
                    images[rows].float().to(self.device),
                    None if labels is None else labels[rows].to(self.device),
                )
        if not seen and indices is None:
            raise BadInput(f"{self.name} has no images")
        if self.sums not in ([], sums):
            raise BadInput(f"{self.name} gave other images when it was read again: do not shuffle it")
        self.sums = sums


def _serve_array(array: "np.ndarray[Any, Any] | Tensor", name: str, *values: Any) -> ForeignImages:
    """Serve an array, such as a memory map, or a tensor [N, C, H, W], of any device."""
    if not array.ndim:
        raise BadInput(f"{name} is a single number: images [N, channels, H, W] are needed")

    def read(indices: Tensor | None, size: int) -> Iterator[Any]:
        for rows in torch.split(torch.arange(len(array)) if indices is None else indices.cpu(), size):
            yield array[rows.numpy() if isinstance(array, np.ndarray) else rows]

    return ForeignImages(read, len(array), name, *values)


def _serve_loader(loader: "DataLoader[Any]", name: str, *values: Any) -> ForeignImages:
    """Serve a DataLoader over a map-style Dataset, whose order is drawn once."""
    drawn = [list(batch) for batch in loader.batch_sampler or ()]
    if not drawn:
        raise BadInput(f"{name} has no images")
    order, largest = torch.tensor(list(chain(*drawn)), dtype=torch.int64), max(map(len, drawn))
    if loader.collate_fn is default_collate:
        # An image that torch cannot collate is refused before anything runs.
        _split_pair(loader.dataset[int(order[0])], name, labelled=False)

    def read(indices: Tensor | None, size: int) -> "DataLoader[Any]":
        rows = order if indices is None else order[indices.cpu()]
        return DataLoader(
            loader.dataset,
            batch_sampler=[batch.tolist() for batch in torch.split(rows, min(size, largest))],
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            generator=torch.Generator(),  # without it the loader draws from the user's random numbers
        )

    return ForeignImages(read, len(order), name, *values)


def serve_images(
    images: Any, name: str, device: torch.device | None, batch_size: int = 512, *, labelled: bool = True
) -> Images | ForeignImages:
    """Return an image set as it is, and anything else as ``ForeignImages``.

    ``device`` is the model's device, None if it is unknown. ``labelled``: read labels with the images.
    """
    values = (name, device or torch.device("cpu"), labelled)
    if isinstance(images, (Images, ForeignImages)):
        return images
    if isinstance(images, Tensor):
        images = dense(images, f"images of {name}")
        return _serve_array(images, name, device or images.device, labelled)
    if isinstance(images, np.ndarray):
        return _serve_array(images, *values)
    if isinstance(images, IterableDataset):
        images = DataLoader(images, batch_size=batch_size)
    indexed = hasattr(images, "__getitem__") and hasattr(images, "__len__")
    if isinstance(images, DataLoader):
        if images.batch_sampler is not None and not isinstance(images.dataset, IterableDataset):
            return _serve_loader(images, *values)
    elif isinstance(images, (str, bytes, Mapping, type)) or not (indexed or hasattr(images, "__iter__")):
        kind = type(images).__name__
        raise BadInput(
            f"{name} is a {kind}: a tensor, an array, a Dataset or an iterable of batches is needed"
        )
    elif indexed and not len(images):
        raise BadInput(f"{name} has no images")
    elif indexed and _split_pair(images[0], name, labelled=False)[0].ndim == 3:
        return _serve_loader(DataLoader(images, batch_size), *values)
    return ForeignImages(lambda *_: images, None, *values, again=not isinstance(images, Iterator))


def _split_pair(item: Any, name: str, labelled: bool) -> Pair:
    """Return images and labels of a batch or of an item."""
    images, labels = item, None
    if isinstance(item, Mapping):
        images = next((item[key] for key in IMAGE_KEYS if key in item), None)
        labels = next((item[key] for key in LABEL_KEYS if key in item), None)
        if images is None:
            raise BadInput(f"{name} has mappings without images: {', '.join(IMAGE_KEYS)} are looked for")
    elif isinstance(item, (tuple, list)) and item:
        images, labels = (*item, None)[:2]
    if not isinstance(images, (Tensor, np.ndarray)):
        raise BadInput(
            f"{name} gives a {type(images).__name__} as image: a normalised tensor or array is needed "
            "(torchvision: ToTensor, then Normalize)"
        )
    found = dense(images, f"images of {name}")
    return found, whole_numbers(labels, f"labels of {name}") if labelled and labels is not None else None
