"""DER: a new backbone at every step beside the older ones, which stay as they are."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opencil
from opencil import Backbone, Model, Paper, Schedule, Stage, Step, Task
from opencil.cil.learner import Setting
from opencil.cil.wa import align
from opencil.nets.model import Head


class Expanded(Model):
    """Backbones side by side, all but the newest frozen, under one head; the newest has one of its own."""

    def __init__(self, backbones: list[Backbone], step: Step) -> None:
        super().__init__(backbones[-1], step.seen)
        self.older = nn.ModuleList(backbones[:-1])
        self.head = Head(len(backbones) * self.backbone.width, step.seen)
        self.auxiliary = Head(self.backbone.width, 1 + step.new)

    def features(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            older = [backbone(images) for backbone in self.older]
        return torch.cat([*older, self.backbone(images)], dim=1)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.older.eval()
        return self


PAPER = Paper("DER: Dynamically Expandable Representation for Class Incremental Learning", 2021, "2103.16788")


@opencil.register_learner("der", paper=PAPER)
@dataclass(frozen=True)
class DER(opencil.Learner):
    """CE over all backbones, and of the newest alone: which new class, or an old one; then WA's alignment."""

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=170, lr=0.1, milestones=(80, 120, 150), weight_decay=2e-4)

    def blank(self, setting: Setting, step: Step) -> Model:
        return Expanded([setting.new_backbone() for _ in range(step.number)], step)

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        """The newest backbone begins as a copy of the one before it."""
        kept = [*previous.older, previous.backbone]
        model = Expanded([copy.deepcopy(backbone) for backbone in (*kept, kept[-1])], step)
        model.head = previous.head.grown(step.seen, width=model.head.in_features)
        return model

    def stages(self, task: Task) -> Iterator[Stage]:
        model, old = task.model, task.step.old
        model.older.requires_grad_(False)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = model.features(images)
            total = F.cross_entropy(model.classify(features), labels)
            if task.first:
                return total
            newest = features[:, -model.backbone.width :]
            return total + F.cross_entropy(model.auxiliary(newest), (labels - old + 1).clamp(min=0))

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
        if not task.first:
            align(model.head, old)
