"""Labelled images, and the interface of datasets."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from opencil.errors import BadInput
from opencil.validation import Values

Split = Literal["train", "test"]
Store = Literal["auto", "resident", "streamed"]
#: Called with the numbers of processed images and of all images.
Progress = Callable[[int, int], None]


def move_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for earlier work on it."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Images(ABC):
    """Labelled RGB images of one size, served in batches; subclasses are dataclasses.

    ``labels``: int64 [N], on the device of the batches. ``classes``: the names of labels 0, 1, … if they are
    known. ``side``: height and width in pixels. ``fingerprint``: a digest of the pixels, or of their files.
    """

    #: Whether serving an image costs more than a copy.
    decodes: ClassVar[bool] = False

    name: str
    labels: Tensor
    classes: tuple[str, ...]
    side: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {len(self)} images of {self.side} × {self.side})"

    @property
    def bytes_of_each(self) -> int:
        """Return the bytes that a kept image takes."""
        return 3 * self.side**2

    @property
    def device(self) -> torch.device:
        """Return the device of the batches."""
        return self.labels.device

    @abstractmethod
    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images at ``indices`` in their order: uint8 batches [≤ size, 3, H, W] on the device."""

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """Return the same images, served on a device."""

    def relabel(self, order: list[int]) -> Self:
        """Replace each label by its position in a class order: a step's classes become consecutive.

        Classes without names are called by their labels from now on.
        """
        position = torch.empty(len(order), dtype=torch.int64)
        position[torch.tensor(order)] = torch.arange(len(order))
        names = tuple(self.classes[c] if self.classes else str(c) for c in order)
        return self._with(labels=position.to(self.labels.device)[self.labels], classes=names)

    def order_classes(self, names: tuple[str, ...]) -> Self:
        """Return the images with labels as positions in ``names``; unchanged if their classes are others."""
        own = self.classes or tuple(map(str, range(len(names))))
        return self if own == names or {*own} != {*names} else self.relabel([own.index(n) for n in names])

    def _with(self, **values: Any) -> Self:
        return cast(Self, replace(cast(Any, self), **values))


@dataclass(frozen=True, repr=False)
class ImageSet(Images):
    """Images resident on one device as bytes, uint8 [N, 3, H, W]."""

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()
    side: int = field(init=False)

    def __post_init__(self) -> None:
        shape = list(self.images.shape)
        if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3] or self.images.dtype != torch.uint8:
            raise BadInput(f"images of {self.name!r} are {self.images.dtype} {shape}, not uint8 [N, 3, H, H]")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            given = f"{self.labels.dtype} {list(self.labels.shape)}"
            raise BadInput(f"labels of {self.name!r} are {given}, not int64 [{len(self.images)}]")
        object.__setattr__(self, "side", shape[-1])

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]  # a value, computed when it is first read
        """Return the SHA-256 of the pixels."""
        digest = hashlib.sha256(str(list(self.images.shape)).encode())
        digest.update(self.images.cpu().contiguous().flatten().numpy().data)
        return digest.hexdigest()

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the images at ``indices`` in their order: uint8 batches [≤ size, 3, H, W] on the device."""
        for rows in torch.split(move_to(indices, self.device), size):
            yield self.images[rows]

    def to(self, device: torch.device) -> Self:
        """Return the same images on a device."""
        return self._with(images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, repr=False)
class FeatureImages(Images):
    """Features of a frozen network [N, D] that stand for its images: float32 batches [≤ size, D, 1, 1].

    ``Untransformed`` and ``StoredFeatures`` pass them on unchanged, to the head of a model.
    """

    name: str
    features: Tensor
    labels: Tensor
    fingerprint: str  #: of the images
    classes: tuple[str, ...] = ()
    side: int = field(default=1, init=False)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}: {self.features.shape[1]} features of {len(self)} images)"
        )

    @property
    def bytes_of_each(self) -> int:
        """Return the bytes that the features of a kept image take."""
        return self.features.element_size() * self.features.shape[1]

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Yield the features at ``indices`` in their order, as images of one pixel."""
        for rows in torch.split(move_to(indices, self.device), size):
            yield self.features[rows][:, :, None, None]

    def to(self, device: torch.device) -> Self:
        """Return the same features on a device."""
        return self._with(features=self.features.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Access:
    """Where a dataset's files are and how its images are served, with the same pixels for any values.

    ``auto`` keeps a split of at most ``resident_mb`` MiB on the device and streams larger splits from disk.
    ``workers``: threads that read and decode; None: one per processor.
    """

    root: Path | None = None
    cache: str | None = None
    store: Store = "auto"
    resident_mb: int = 1024
    workers: int | None = None

    def streams(self, count: int, side: int) -> bool:
        """Return whether ``count`` images of a size are streamed."""
        if self.store != "auto":
            return self.store == "streamed"
        return count * 3 * side * side > self.resident_mb * 2**20


@dataclass(frozen=True)
class Dataset(Values, ABC):
    """A source of images. A subclass registers itself and loads a split."""

    #: Number of classes if it is known before the images are loaded.
    classes: ClassVar[int | None] = None

    @abstractmethod
    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Return a split at ``size`` × ``size`` pixels, labels 0 … C−1; ``root``: the folder of downloads."""

    def serve(self, name: str, split: Split, size: int, access: Access) -> Images:
        """Return the images of a split, called ``name`` in a benchmark."""
        return self.load(split, size, access.root)
