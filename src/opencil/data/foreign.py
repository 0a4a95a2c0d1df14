"""Normalised images from the user: arrays, Datasets, DataLoaders and other iterables of batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
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


class ForeignImages:
    """Serve normalised images in batches, always in the same order.

    ``count`` is their number; without it they are read in order only. ``name`` is for errors, ``device`` is
    the device of the batches, ``labelled``: read their labels too. ``again``: they can be read a second time.
    """

    def __init__(
        self,
        read: Reader,
        count: int | None,
        name: str,
        device: torch.device,
        labelled: bool,
        again: bool = True,
    ) -> None:
        self.name, self.by_index, self.again = name, count is not None, again
        self._read, self._count, self.device, self._labelled = read, count, device, labelled
        self._sums: list[float] = []  # of each image, where only the order identifies it

    def __len__(self) -> int:
        if self._count is None and not self._sums:
            for _ in self.batches(None, 2**20):
                pass
        return self._count or len(self._sums)

    def batches(self, indices: Tensor | None, size: int) -> Iterator[Pair]:
        """Yield float32 images [≤ size, C, H, W] and int64 labels, if there are any, on the device.

        Images without indices are refused if they differ from those of the first pass.
        """
        if not self.by_index and (indices is not None or (self._sums and not self.again)):
            raise BadInput(
                f"{self.name} is an iterable of batches, without images by index, and an iterator yields "
                "them once: give a Dataset, a DataLoader over a Dataset, or an array"
            )
        seen, sums = 0, list[float]()
        for batch in self._read(indices, size):
            images, labels = _split_pair(batch, self.name, self._labelled)
            _check_images(images, images.is_floating_point(), f"batches of {self.name}")
            if labels is not None and len(labels) != len(images):
                raise BadInput(f"{self.name} has a batch of {len(images)} images and {len(labels)} labels")
            if not torch.isfinite(images).all():
                bad = int((~torch.isfinite(images)).flatten(1).any(dim=1).nonzero()[0])
                raise BadInput(f"image {seen + bad} of {self.name} is not finite: a model cannot read it")
            seen += len(images)
            if not self.by_index:
                sums += as_float64(images).flatten(1).sum(dim=1).tolist()
            for start in range(0, len(images), size):
                part = slice(start, start + size)
                of_part = None if labels is None else labels[part].to(self.device)
                yield images[part].float().to(self.device), of_part
        if not seen and indices is None:
            raise _no_images(self.name)
        if self._sums not in ([], sums):
            raise BadInput(
                f"{self.name} gave other images, or the same in another order, when it was read again: "
                "use shuffle=False and no random augmentation"
            )
        self._sums = sums


def _serve_array(array: "np.ndarray[Any, Any] | Tensor", name: str, *values: Any) -> ForeignImages:
    """Serve an array, such as a memory map, or a tensor [N, C, H, W], of any device."""
    floating = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
    _check_images(array, floating and len(array) > 0, f"images of {name}")

    def read(indices: Tensor | None, size: int) -> Iterator[Any]:
        for rows in torch.split(torch.arange(len(array)) if indices is None else indices.cpu(), size):
            yield array[rows.numpy() if isinstance(array, np.ndarray) else rows]

    return ForeignImages(read, len(array), name, *values)


def _serve_loader(loader: "DataLoader[Any]", name: str, *values: Any) -> ForeignImages:
    """Serve a DataLoader over a map-style Dataset, whose order is drawn once."""
    drawn = [list(batch) for batch in loader.batch_sampler or ()]
    if not drawn:
        raise _no_images(name)
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
        raise BadInput(
            f"{name} is a {type(images).__name__}: images are a tensor or array [N, channels, H, W], an "
            "image set, a Dataset, a DataLoader or another iterable of batches"
        )
    elif indexed and not len(images):
        raise _no_images(name)
    elif indexed and _split_pair(images[0], name, labelled=False)[0].ndim == 3:
        return _serve_loader(DataLoader(images, batch_size), *values)
    return ForeignImages(lambda *_: images, None, *values, again=not isinstance(images, Iterator))


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
        images, labels = (*item, None)[:2]
    if not isinstance(images, (Tensor, np.ndarray)):
        raise BadInput(
            f"{name} gives a {type(images).__name__} as image: a tensor or an array is needed, normalised as "
            "the model wants it; a dataset's transform makes it (torchvision: ToTensor, then Normalize)"
        )
    found = dense(images, f"images of {name}")
    return found, whole_numbers(labels, f"labels of {name}") if labelled and labels is not None else None
