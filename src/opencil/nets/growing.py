"""Several backbones under one head: the models of methods that grow."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from opencil.nets.model import Backbone, Head, Model


class SideBySide(Model):
    """A model whose features are those of several backbones; ``backbone`` is the newest of them.

    All have the same stages. ``shared`` are those that they have in common, all but the last one, where there
    are any: they read its last map.
    """

    def __init__(self, newest: Backbone, classes: int, shared: Backbone | None = None) -> None:
        super().__init__(newest, classes)
        self.shared = shared

    @abstractmethod
    def backbones(self) -> list[Backbone]:
        """All of them, the newest last."""

    def parts(self, images: Tensor) -> list[Tensor]:
        """Features of each backbone, [B, width] each."""
        given = images if self.shared is None else self.shared.maps(images)[-1]
        return [backbone(given) for backbone in self.backbones()]

    def features(self, images: Tensor) -> Tensor:
        """Features of all backbones side by side."""
        return torch.cat(self.parts(images), dim=1)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Maps in common, then those of all backbones side by side, stage by stage."""
        shared = [] if self.shared is None else self.shared.maps(images)
        given = shared[-1] if shared else images
        stages = zip(*(backbone.maps(given) for backbone in self.backbones()), strict=True)
        return [*shared, *(torch.cat(stage, dim=1) for stage in stages)]

    def last_stage(self, maps: Tensor) -> Tensor:
        """Features of all backbones side by side, of maps that take the place of those before the last stage.

        What is in common ends there: each backbone reads all of these maps, else those of its own.
        """
        if self.shared is not None:
            return torch.cat([backbone(maps) for backbone in self.backbones()], dim=1)
        lasts = [backbone.split()[1] for backbone in self.backbones()]
        own = maps.chunk(len(lasts), dim=1)
        return torch.cat([last(part) for last, part in zip(lasts, own, strict=True)], dim=1)


class GrownModel(SideBySide):
    """Frozen backbones (``older``) beside the newest, which also has an ``auxiliary`` head of its own.

    That one tells ``new`` classes from each other and from all others, which are its first output. ``head``
    is what the head of all backbones begins with.
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
        self.head = (head or self.head).grown(classes, width)
        self.auxiliary = Head(newest.width, 1 + new)

    def backbones(self) -> list[Backbone]:
        """The older ones, then the newest."""
        return [*cast(list[Backbone], list(self.older)), self.backbone]
