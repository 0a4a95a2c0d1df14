"""Images and their labels, and the contract of a dataset that delivers them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from opencil.errors import BadInput
from opencil.validation import Values

Split = Literal["train", "test"]


@dataclass(frozen=True)
class ImageSet:
    """Labelled RGB images of one size, resident as bytes on one device.

    ``images``: uint8 [N, 3, H, W]; ``labels``: int64 [N].
    """

    name: str
    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[1] != 3 or self.images.dtype != torch.uint8:
            raise BadInput(
                f"images of {self.name!r} are {self.images.dtype} {list(self.images.shape)}: "
                "uint8 [N, 3, H, W] is needed"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise BadInput(
                f"labels of {self.name!r} are {self.labels.dtype} {list(self.labels.shape)}: "
                f"int64 [{len(self.images)}] is needed, one for each image"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        """Where batches are served."""
        return self.labels.device

    @property
    def side(self) -> int:
        """Height and width of the images in pixels."""
        return self.images.shape[-1]

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """The images at ``indices``, in that order, as uint8 batches [≤ size, 3, H, W] on the device."""
        for rows in torch.split(indices.to(self.device), size):
            yield self.images[rows]

    def to(self, device: torch.device) -> "ImageSet":
        """The same set on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def relabelled(self, order: list[int]) -> "ImageSet":
        """Labels replaced by their position in a class order, so that step t's classes are consecutive."""
        position = torch.empty(len(order), dtype=torch.int64)
        position[torch.tensor(order)] = torch.arange(len(order))
        return replace(self, labels=position.to(self.labels.device)[self.labels])


@dataclass(frozen=True)
class Dataset(Values, ABC):
    """A source of images. Subclasses register themselves and say how to load a split."""

    #: Number of classes where it is known before loading; None: it comes from the data.
    classes: ClassVar[int | None] = None

    @abstractmethod
    def load(self, split: Split, size: int, root: Path | None) -> ImageSet:
        """Images of a split at ``size`` × ``size`` pixels, labels 0 … C−1; ``root`` holds the downloads."""
