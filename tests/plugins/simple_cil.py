"""SimpleCIL: a cosine head of class means; after the first step nothing is trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import opencil
from opencil.cil.learner import Setting
from opencil.engine.forward import forward
from opencil.nets.model import Head


class CosineHead(Head):
    """σ cos(f, w) for each class's w."""

    def forward(self, features: Tensor) -> Tensor:
        return 16 * F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))


@opencil.register_learner(
    "simplecil",
    paper=opencil.Paper("Revisiting Class-Incremental Learning with Pre-Trained Models", 2024, "2303.07338"),
)
@dataclass(frozen=True)
class SimpleCIL(opencil.Learner):
    """The first step trains all that is not frozen; then a class's row is the mean of its features."""

    first: opencil.Schedule = opencil.Schedule(epochs=200, lr=0.01, decay="cosine", weight_decay=5e-4)

    remembers: ClassVar[bool] = False
    revisits: ClassVar[bool] = False

    def blank(self, setting: Setting, step: opencil.Step) -> opencil.Model:
        model = opencil.Model(setting.new_backbone(), step.seen)
        model.head = CosineHead(model.backbone.width, step.seen)
        return model

    def stages(self, task: opencil.Task) -> Iterator[opencil.Stage]:
        model = task.model
        if task.step.number == 1:
            yield opencil.Stage(
                "train", model, lambda x, y: F.cross_entropy(model(x), y), self.first, task.train_plus
            )
        outputs = forward(model, task.setting.images, task.setting.transform, task.step.train)
        with torch.no_grad():
            for label in range(task.step.old, task.step.seen):
                model.head.weight[label] = outputs.features[outputs.labels == label].mean(dim=0)
