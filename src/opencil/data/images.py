"""Images and their labels, and the contract of a dataset that delivers them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from opencil.errors import BadInput
from opencil.validation import Values

if TYPE_CHECKING:
    from opencil.data.kept_pixels import KeptPixels

Split = Literal["train", "test"]
Store = Literal["auto", "resident", "streamed"]


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Copied without making the host wait for what the device has been given before."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Images(ABC):
    """Labelled RGB images of one size that are served in batches, wherever they are kept: a dataclass.

    ``labels``: int64 [N], on the device that batches come to. ``classes`` are the names of labels 0, 1, …
    where they are known.
    """

    #: Whether an image costs more than a copy when it is served.
    decodes: ClassVar[bool] = False

    name: str
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}: {len(self)} images of {self.side} × {self.side})"

    @property
    def device(self) -> torch.device:
        """Where batches are served."""
        return self.labels.device

    @property
    @abstractmethod
    def side(self) -> int:
        """Height and width of the images in pixels."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The same for the same pixels: a checksum of them, or of the files they are decoded from."""

    @abstractmethod
    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """The images at ``indices``, in that order, as uint8 batches [≤ size, 3, H, W] on the device."""

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """The same images, served on a device."""

    def relabelled(self, order: list[int]) -> Self:
        """Labels replaced by their position in a class order, so that step t's classes are consecutive."""
        position = torch.empty(len(order), dtype=torch.int64)
        position[torch.tensor(order)] = torch.arange(len(order))
        names = tuple(self.classes[c] for c in order) if self.classes else ()
        return self._with(labels=position.to(self.labels.device)[self.labels], classes=names)

    def labelled_as(self, other: "Images") -> Self:
        """The same images with the labels and class names of others, which are as many and in their order."""
        return self._with(labels=other.labels, classes=other.classes)

    def _with(self, **values: Any) -> Self:
        """The same images with some of their fields replaced."""
        return cast(Self, replace(cast(Any, self), **values))


@dataclass(frozen=True, repr=False)
class ImageSet(Images):
    """Images that are resident as bytes on one device: uint8 [N, 3, H, W]."""

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = list(self.images.shape)
        if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3] or self.images.dtype != torch.uint8:
            raise BadInput(
                f"images of {self.name!r} are {self.images.dtype} {shape}: uint8 [N, 3, H, H] is needed"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise BadInput(
                f"labels of {self.name!r} are {self.labels.dtype} {list(self.labels.shape)}: "
                f"int64 [{len(self.images)}] is needed, one for each image"
            )

    @property
    def side(self) -> int:
        """Height and width of the images in pixels."""
        return self.images.shape[-1]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the pixels."""
        digest = hashlib.sha256(str(list(self.images.shape)).encode())
        digest.update(self.images.cpu().contiguous().flatten().numpy().data)
        return digest.hexdigest()

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """The images at ``indices``, in that order, as uint8 batches [≤ size, 3, H, W] on the device."""
        for rows in torch.split(moved(indices, self.device), size):
            yield self.images[rows]

    def to(self, device: torch.device) -> Self:
        """The same set on a device."""
        return self._with(images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Access:
    """Where a dataset's files are and how its images are to be served: it never changes their pixels.

    ``auto`` keeps a split on the device if it takes at most ``resident_mb`` MiB there, and streams it from
    disk otherwise. ``workers``: threads that decode; None: one per processor. ``decoded_mb``: MiB of memory
    for decoded images of splits that are streamed; None: a quarter of what is free.
    """

    root: Path | None = None
    cache: str | None = None
    store: Store = "auto"
    resident_mb: int = 1024
    workers: int | None = None
    decoded_mb: int | None = None

    @cached_property
    def kept(self) -> "KeptPixels":
        """Where decoded images stay, of all splits that are read by this access."""
        from opencil.data.kept_pixels import KeptPixels, room_here

        return KeptPixels(room_here() if self.decoded_mb is None else self.decoded_mb * 2**20)

    def streams(self, count: int, side: int) -> bool:
        """Whether so many images of a size are to be streamed."""
        if self.store != "auto":
            return self.store == "streamed"
        return count * 3 * side * side > self.resident_mb * 2**20


@dataclass(frozen=True)
class Dataset(Values, ABC):
    """A source of images. Subclasses register themselves and say how to load a split."""

    #: Number of classes where it is known before loading; None: it comes from the data.
    classes: ClassVar[int | None] = None

    @abstractmethod
    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Images of a split at ``size`` × ``size`` pixels, labels 0 … C−1; ``root`` holds the downloads."""

    def serve(self, name: str, split: Split, size: int, access: Access) -> Images:
        """Images of a split, under the name that the benchmark gives the dataset."""
        return self.load(split, size, access.root)
