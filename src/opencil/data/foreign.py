"""Normalised images from the user: arrays, Datasets, DataLoaders and other iterables of batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from opencil.arrays import dense, tensor_of
from opencil.data.images import Images
from opencil.data.precision import as_float64
from opencil.errors import BadInput

#: Keys of the images, and of the labels, in a batch that is a mapping.
IMAGE_KEYS = ("images", "image", "pixel_values", "data", "img", "x")
LABEL_KEYS = ("labels", "label", "targets", "target", "y")

Pair = tuple[Tensor, Tensor | None]


class ForeignImages(ABC):
    """Normalised images that are served in batches, in an order that stays the same.

    ``name`` is for errors, ``device`` is the device of the batches, ``labelled``: read labels that come with
    them. ``by_index``: images can be read by their indices. ``again``: they can be read a second time.
    """

    by_index: bool = True
    again: bool = True

    def __init__(self, name: str, device: torch.device, labelled: bool = True) -> None:
        self.name, self.device, self.labelled = name, device, labelled

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def raw_batches(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """Yield the user's batches: the images at ``indices``, or all in order."""

    def batches(self, indices: Tensor | None, size: int) -> Iterator[Pair]:
        """Yield float32 images [≤ size, C, H, W] and int64 labels, if there are any, on the device."""
        seen = 0
        for batch in self.raw_batches(indices, size):
            images, labels = _split_pair(batch, self.name, self.labelled)
            _check_images(images, images.is_floating_point(), f"batches of {self.name}")
            if labels is not None and len(labels) != len(images):
                raise BadInput(f"{self.name} has a batch of {len(images)} images and {len(labels)} labels")
            if not torch.isfinite(images).all():
                bad = int((~torch.isfinite(images)).flatten(1).any(dim=1).nonzero()[0])
                raise BadInput(f"image {seen + bad} of {self.name} is not finite: a model cannot read it")
            seen += len(images)
            for start in range(0, len(images), size):
                part = slice(start, start + size)
                of_part = None if labels is None else labels[part].to(self.device)
                yield images[part].float().to(self.device), of_part
        if not seen and indices is None:
            raise _no_images(self.name)


class ArrayImages(ForeignImages):
    """An array or a tensor [N, C, H, W] on another device than the model, such as a memory map."""

    def __init__(self, array: "np.ndarray[Any, Any] | Tensor", *values: Any) -> None:
        super().__init__(*values)
        floating = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
        _check_images(array, floating and len(array) > 0, f"images of {self.name}")
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def raw_batches(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """Yield rows of the array."""
        for rows in torch.split(torch.arange(len(self)) if indices is None else indices.cpu(), size):
            yield self._array[rows.numpy() if isinstance(self._array, np.ndarray) else rows]


class DatasetImages(ForeignImages):
    """A map-style Dataset, or a DataLoader over such a Dataset, whose order is drawn once."""

    def __init__(self, dataset: Any, loader: "DataLoader[Any] | None", *values: Any) -> None:
        super().__init__(*values)
        drawn: list[Any] = [range(len(dataset))]
        if loader is not None:
            drawn = [list(batch) for batch in loader.batch_sampler or ()]
        self._order = torch.tensor([index for batch in drawn for index in batch], dtype=torch.int64)
        if not len(self._order):
            raise _no_images(self.name)
        self._dataset, self._largest = dataset, None if loader is None else max(map(len, drawn))
        self._workers = 0 if loader is None else loader.num_workers
        self._collate = default_collate if loader is None else loader.collate_fn
        if self._collate is default_collate:
            # An image that torch cannot collate is refused before anything runs.
            _split_pair(dataset[int(self._order[0])], self.name, labelled=False)

    def __len__(self) -> int:
        return len(self._order)

    def raw_batches(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """Yield batches of items, collated by the loader's own function or by torch's."""
        order = self._order if indices is None else self._order[indices.cpu()]
        yield from DataLoader(
            self._dataset,
            batch_sampler=[rows.tolist() for rows in torch.split(order, min(size, self._largest or size))],
            collate_fn=self._collate,
            num_workers=self._workers,
            generator=torch.Generator(),  # without it the loader draws from the user's random numbers
        )


class BatchedImages(ForeignImages):
    """An iterable of batches, which must yield the same images whenever a detector reads them again."""

    by_index = False

    def __init__(self, batches: Iterable[Any], *values: Any) -> None:
        super().__init__(*values)
        self._batches, self.again = batches, not isinstance(batches, Iterator)
        self._sums: list[float] = []

    def __len__(self) -> int:
        if not self._sums:
            for _ in self.batches(None, 2**20):
                pass
        return len(self._sums)

    def raw_batches(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """Yield the batches of the iterable."""
        if indices is not None or (self._sums and not self.again):
            raise BadInput(
                f"{self.name} is an iterable of batches, without images by index, and an iterator yields "
                "them once: give a Dataset, a DataLoader over a Dataset, or an array"
            )
        yield from self._batches

    def batches(self, indices: Tensor | None, size: int) -> Iterator[Pair]:
        """Yield float32 images and labels; refuse images that differ from those of the first pass."""
        sums: list[float] = []
        for images, labels in super().batches(indices, size):
            sums += as_float64(images).flatten(1).sum(dim=1).tolist()
            yield images, labels
        if self._sums not in ([], sums):
            raise BadInput(
                f"{self.name} gave other images, or the same in another order, when it was read again: "
                "use shuffle=False and no random augmentation"
            )
        self._sums = sums


def serve_images(
    images: Any, name: str, device: torch.device | None, batch_size: int = 512, *, labelled: bool = True
) -> "Images | Tensor | ForeignImages":
    """Return an image set or a tensor as it is, and anything else as ``ForeignImages``.

    ``device`` is the model's device, None if it is unknown. ``labelled``: read labels that come with the
    images.
    """
    values = (name, device or torch.device("cpu"), labelled)
    if isinstance(images, (Images, ForeignImages)):
        return images
    if isinstance(images, Tensor):
        images = dense(images, f"images of {name}")
        return images if device in (None, images.device) else ArrayImages(images, *values)
    if isinstance(images, np.ndarray):
        return ArrayImages(images, *values)
    if isinstance(images, IterableDataset):
        images = DataLoader(images, batch_size=batch_size)
    if isinstance(images, DataLoader):
        indexed = images.batch_sampler is not None and not isinstance(images.dataset, IterableDataset)
        return DatasetImages(images.dataset, images, *values) if indexed else BatchedImages(images, *values)
    indexed = hasattr(images, "__getitem__") and hasattr(images, "__len__")
    if isinstance(images, (str, bytes, Mapping, type)) or not (indexed or hasattr(images, "__iter__")):
        raise BadInput(
            f"{name} is a {type(images).__name__}: images are a tensor or array [N, channels, H, W], an "
            "image set, a Dataset, a DataLoader or another iterable of batches"
        )
    if not indexed:
        return BatchedImages(images, *values)
    if not len(images):
        raise _no_images(name)
    first, _ = _split_pair(images[0], name, labelled=False)
    return DatasetImages(images, None, *values) if first.ndim == 3 else BatchedImages(images, *values)


def _no_images(name: str) -> BadInput:
    return BadInput(f"{name} has no images: at least one is needed")


def _check_images(images: "np.ndarray[Any, Any] | Tensor", usable: bool, what: str) -> None:
    if images.ndim != 4 or not usable:
        raise BadInput(
            f"{what} are {images.dtype} {list(images.shape)}: normalised floating-point images [N, channels, "
            "H, W] are needed, at least one, or an ImageSet of bytes with a transform"
        )


def _split_pair(item: Any, name: str, labelled: bool) -> Pair:
    """Return images and labels of a batch or of an item."""
    images, labels = item, None
    if isinstance(item, Mapping):
        images = next((item[key] for key in IMAGE_KEYS if key in item), None)
        labels = next((item[key] for key in LABEL_KEYS if key in item), None)
        if images is None:
            raise BadInput(
                f"{name} has mappings with {', '.join(map(str, item)) or 'nothing'}: images are looked for "
                f"under {', '.join(IMAGE_KEYS)}"
            )
    elif isinstance(item, (tuple, list)) and item:
        images, labels = item[0], item[1] if len(item) > 1 else None
    if not isinstance(images, (Tensor, np.ndarray)):
        raise BadInput(
            f"{name} gives a {type(images).__name__} as image: a tensor or an array is needed, normalised as "
            "the model wants it; a dataset's transform makes it (torchvision: ToTensor, then Normalize)"
        )
    found = dense(images, f"images of {name}")
    return found, read_labels(labels, name) if labelled and labels is not None else None


def read_labels(labels: Any, name: str) -> Tensor:
    """Return labels of images as int64 [N]."""
    try:
        found = dense(torch.as_tensor(tensor_of(labels)), f"labels of {name}")
        if found.ndim == 1 and not found.is_floating_point() and found.dtype != torch.bool:
            return found.long()
        wrong = f"{found.dtype} {list(found.shape)}"
    except (TypeError, ValueError, RuntimeError, OverflowError):
        wrong = "no numbers"
    raise BadInput(f"{name} has labels that are {wrong}: whole numbers [B] are needed, one for each image")
