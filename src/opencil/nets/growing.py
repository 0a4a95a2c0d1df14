"""Models of several backbones under one head, for methods with a further backbone per step."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from opencil.nets.model import Backbone, Head, Model


class SideBySide(Model):
    """A model with the features of several backbones of one kind; ``backbone`` is the newest of them.

    If they share all stages but the last, ``shared`` is the backbone of these stages; they read its last map.
    """

    def __init__(self, newest: Backbone, classes: int, shared: Backbone | None = None) -> None:
        super().__init__(newest, classes)
        self.shared = shared

    @abstractmethod
    def backbones(self) -> list[Backbone]:
        """Return all backbones, the newest last."""

    def parts(self, images: Tensor) -> list[Tensor]:
        """Return features of each backbone, [B, width] each."""
        inputs = images if self.shared is None else self.shared.maps(images)[-1]
        return [backbone(inputs) for backbone in self.backbones()]

    def features(self, images: Tensor) -> Tensor:
        """Return features of all backbones side by side."""
        return torch.cat(self.parts(images), dim=1)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return shared maps, then maps of all backbones side by side, stage by stage."""
        shared = [] if self.shared is None else self.shared.maps(images)
        inputs = shared[-1] if shared else images
        stages = zip(*(backbone.maps(inputs) for backbone in self.backbones()), strict=True)
        return [*shared, *(torch.cat(stage, dim=1) for stage in stages)]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Return features of all backbones side by side, each of its part of the maps or of shared ones."""
        if self.shared is not None:
            return torch.cat([backbone(maps) for backbone in self.backbones()], dim=1)
        lasts = [backbone.split()[1] for backbone in self.backbones()]
        own = maps.chunk(len(lasts), dim=1)
        return torch.cat([last(part) for last, part in zip(lasts, own, strict=True)], dim=1)


class GrownModel(SideBySide):
    """Frozen backbones (``older``) beside the newest, and an ``auxiliary`` head of the newest.

    The auxiliary head separates the ``new`` classes from each other and from all others, its first output.
    ``head`` initialises the head of all backbones.
    """

    def __init__(
        self,
        older: Sequence[Backbone],
        newest: Backbone,
        classes: int,
        new: int,
        head: Head | None = None,
        shared: Backbone | None = None,
    ) -> None:
        super().__init__(newest, classes, shared)
        self.older = nn.ModuleList(backbone.freeze() for backbone in older)
        width = sum(backbone.width for backbone in self.backbones())
        self.head = (head or self.head).grow(classes, width)
        self.auxiliary = Head(newest.width, 1 + new)

    def backbones(self) -> list[Backbone]:
        """Return the older backbones, then the newest."""
        return [*cast(list[Backbone], list(self.older)), self.backbone]
