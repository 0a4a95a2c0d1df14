"""Images from elsewhere, normalised already: arrays, Datasets, DataLoaders and other iterables of batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from opencil.arrays import dense, tensor_of
from opencil.data.images import Images
from opencil.data.precision import widened
from opencil.errors import BadInput

#: Under which of these names a batch that is a mapping has its images, and its labels.
IMAGE_KEYS = ("images", "image", "pixel_values", "data", "img", "x")
LABEL_KEYS = ("labels", "label", "targets", "target", "y")

Pair = tuple[Tensor, Tensor | None]


class ForeignImages(ABC):
    """Normalised images that are served in batches and never all in memory, in one order that stays.

    ``name`` is what errors call them, ``device`` where batches come to, ``labelled`` whether labels that come
    with them are read.
    """

    def __init__(self, name: str, device: torch.device, labelled: bool = True) -> None:
        self.name, self.device, self.labelled = name, device, labelled

    #: Whether images can be had by their indices, and whether they can be read a second time.
    by_index: bool = True
    again: bool = True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def given(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """What they are given as, batch by batch: the images at ``indices``, or all in order."""

    def batches(self, indices: Tensor | None, size: int) -> Iterator[Pair]:
        """Float32 images [≤ size, C, H, W] and, where they come with them, int64 labels, on the device."""
        seen = 0
        for batch in self.given(indices, size):
            images, labels = _pair(batch, self.name, self.labelled)
            if images.ndim != 4 or not images.is_floating_point():
                raise BadInput(
                    f"images of {self.name} are {images.dtype} {list(images.shape)} a batch: normalised "
                    "floating-point [B, channels, H, W] are needed"
                )
            if labels is not None and len(labels) != len(images):
                raise BadInput(f"{self.name} has a batch of {len(images)} images and {len(labels)} labels")
            if not torch.isfinite(images).all():
                bad = int((~torch.isfinite(images)).flatten(1).any(dim=1).nonzero()[0])
                raise BadInput(f"image {seen + bad} of {self.name} is not finite: a model cannot read it")
            seen += len(images)
            for start in range(0, len(images), size):
                part = slice(start, start + size)
                yield (
                    images[part].float().to(self.device),
                    None if labels is None else labels[part].to(self.device),
                )
        if not seen and indices is None:
            raise BadInput(f"{self.name} has no images: at least one is needed")


class ArrayImages(ForeignImages):
    """An array or a tensor [N, C, H, W] that lies elsewhere than the model: a memory map, say."""

    def __init__(self, array: "np.ndarray[Any, Any] | Tensor", *values: Any) -> None:
        super().__init__(*values)
        if array.ndim != 4 or not len(array) or not _floating(array):
            raise BadInput(
                f"images of {self.name} are {array.dtype} {list(array.shape)}: floating-point "
                "[N, channels, H, W] with at least one image is needed, normalised as the model wants it, or "
                "an ImageSet of bytes with a transform"
            )
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def given(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """Rows of the array."""
        for rows in torch.split(torch.arange(len(self)) if indices is None else indices.cpu(), size):
            yield self._array[rows.numpy() if isinstance(self._array, np.ndarray) else rows]


class DatasetImages(ForeignImages):
    """A map-style Dataset, or a DataLoader over one, whose order is drawn once."""

    def __init__(self, dataset: Any, loader: "DataLoader[Any] | None", *values: Any) -> None:
        super().__init__(*values)
        self._dataset = dataset
        self._collate: Callable[[list[Any]], Any] | None = None
        self._workers = 0
        self._largest: int | None = None  #: images that the loader puts together at a time
        if loader is None:
            self._order = torch.arange(len(dataset))
        else:
            drawn = [list(batch) for batch in loader.batch_sampler or ()]
            self._order = torch.tensor([index for batch in drawn for index in batch], dtype=torch.int64)
            self._collate, self._workers = loader.collate_fn, loader.num_workers
            self._largest = max(map(len, drawn), default=1)
        if not len(self._order):
            raise BadInput(f"{self.name} has no images: at least one is needed")
        if self._collate in (None, default_collate):
            # What torch cannot put together, an image that is no tensor, is told before anything runs.
            _pair(dataset[int(self._order[0])], self.name, labelled=False)

    def __len__(self) -> int:
        return len(self._order)

    def given(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """Batches of items, put together by the loader's own function, or by torch's."""
        chosen = self._order if indices is None else self._order[indices.cpu()]
        batches = [rows.tolist() for rows in torch.split(chosen, min(size, self._largest or size))]
        # A generator of its own: a loader that starts would else draw from the user's random numbers.
        numbers = torch.Generator()
        yield from DataLoader(
            self._dataset,
            batch_sampler=batches,
            collate_fn=self._collate,
            num_workers=self._workers,
            generator=numbers,
        )


class BatchedImages(ForeignImages):
    """An iterable of batches: what it gives first must come again, where a detector reads images twice."""

    by_index = False

    def __init__(self, batches: Iterable[Any], *values: Any) -> None:
        super().__init__(*values)
        self._batches = batches
        self.again = not isinstance(batches, Iterator)
        self._sums: list[float] | None = None

    def __len__(self) -> int:
        if self._sums is None:
            for _ in self.batches(None, 2**20):
                pass
        assert self._sums is not None
        return len(self._sums)

    def given(self, indices: Tensor | None, size: int) -> Iterator[Any]:
        """The batches as they come."""
        if indices is not None:
            raise BadInput(f"{self.name} is an iterable of batches: its images cannot be had by {_BY_INDEX}")
        if self._sums is not None and not self.again:
            raise BadInput(f"{self.name} is an iterator, which gives its images once: {_AGAIN}")
        yield from self._batches

    def batches(self, indices: Tensor | None, size: int) -> Iterator[Pair]:
        """Float32 images and labels; images that differ from those of the first time are refused."""
        sums: list[float] = []
        for images, labels in super().batches(indices, size):
            start = len(sums)
            sums += widened(images).flatten(1).sum(dim=1).tolist()
            if self._sums is not None and self._sums[start : len(sums)] != sums[start:]:
                raise BadInput(
                    f"{self.name} gave other images, or the same in another order, when it was read again: "
                    "shuffle=False, and no random augmentation, keep them"
                )
            yield images, labels
        if self._sums is not None and len(self._sums) != len(sums):
            raise BadInput(f"{self.name} gave {len(self._sums)} images, and {len(sums)} when read again")
        self._sums = sums


_BY_INDEX = "their index, as a training on them needs; give a Dataset, a DataLoader over one, or an array"
_AGAIN = "give a list of batches, a DataLoader or a Dataset, which can be read again"


def served(
    images: Any, name: str, device: torch.device | None, batch_size: int = 512, *, labelled: bool = True
) -> "Images | Tensor | ForeignImages":
    """What a user gives as images: an image set or a tensor as it is, all else as ``ForeignImages``.

    ``device`` is where the model computes, None where that is not known. Labels are read unless ``labelled``
    says no.
    """
    values = (name, device or torch.device("cpu"), labelled)
    if isinstance(images, (Images, ForeignImages)):
        return images
    if isinstance(images, Tensor):
        images = dense(images, f"images of {name}")
        return images if device in (None, images.device) else ArrayImages(images, *values)
    if isinstance(images, np.ndarray):
        return ArrayImages(images, *values)
    if isinstance(images, DataLoader):
        indexed = images.batch_sampler is not None and not isinstance(images.dataset, IterableDataset)
        return DatasetImages(images.dataset, images, *values) if indexed else BatchedImages(images, *values)
    if isinstance(images, IterableDataset):
        return BatchedImages(DataLoader(images, batch_size=batch_size), *values)
    if isinstance(images, (str, bytes, Mapping, type)) or not _holds_items(images):
        raise BadInput(
            f"{name} is a {type(images).__name__}: images are a tensor or array [N, channels, H, W], an "
            "image set, a Dataset, a DataLoader or another iterable of batches"
        )
    if not (hasattr(images, "__getitem__") and hasattr(images, "__len__")):
        return BatchedImages(images, *values)
    if not len(images):
        raise BadInput(f"{name} has no images: at least one is needed")
    try:
        item = images[0]
    except KeyError:  # a table whose columns have names, say
        raise BadInput(f"{name} is a {type(images).__name__} without an item 0: images are counted") from None
    first, _ = _pair(item, name, labelled=False)
    if first.ndim == 3:
        return DatasetImages(images, None, *values)
    return BatchedImages(images, *values)


def _holds_items(images: Any) -> bool:
    return hasattr(images, "__iter__") or (hasattr(images, "__getitem__") and hasattr(images, "__len__"))


def _pair(item: Any, name: str, labelled: bool) -> Pair:
    """Images and labels of a batch, or of one item, in whatever form they come."""
    images, labels = item, None
    if isinstance(item, Mapping):
        images = next((item[key] for key in IMAGE_KEYS if key in item), None)
        labels = next((item[key] for key in LABEL_KEYS if key in item), None)
        if images is None:
            raise BadInput(
                f"{name} gives mappings with {', '.join(map(str, item)) or 'nothing'}: images are looked for "
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
    return found, _labels(labels, name) if labelled and labels is not None else None


def _labels(labels: Any, name: str) -> Tensor:
    try:
        found = torch.as_tensor(tensor_of(labels))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise BadInput(f"{name} has labels that are no numbers: {_WHOLE}") from None
    found = dense(found, f"labels of {name}")
    if found.ndim != 1 or found.is_floating_point() or found.dtype == torch.bool:
        raise BadInput(f"{name} has labels that are {found.dtype} {list(found.shape)}: {_WHOLE}")
    return found.long()


_WHOLE = "whole numbers [B] are needed, one for each image"


def _floating(array: "np.ndarray[Any, Any] | Tensor") -> bool:
    return array.is_floating_point() if isinstance(array, Tensor) else np.issubdtype(array.dtype, np.floating)
