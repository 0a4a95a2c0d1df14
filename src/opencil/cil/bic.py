"""BiC: bias correction."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Backbone, BadInput, Learner, Model, Paper, Schedule, Stage, Step, Task, register_learner
from opencil.cil.learner import Setting, classify_and_distil
from opencil.engine.seeding import generator
from opencil.validation import Positive, ProperFraction


@register_learner("bic", paper=Paper("Large Scale Incremental Learning", 2019, "1905.13260"))
@dataclass(frozen=True)
class BiC(Learner):
    """Distillation weighted by the share of old classes; then a scale and a shift for the newest logits."""

    family = "distillation"
    equation = (
        r"L = (1 - \lambda) \text{CE}(z, y) + \lambda \text{KD}(z_{1:\text{old}}, z') \\ "
        r"\lambda = \frac{\text{old}}{\text{seen}} \\ z_c \leftarrow \alpha_t z_c + \beta_t"
    )
    differs = (
        "OpenCIL's released code fits the correction by CE on softmax outputs, with batch norm in training "
        "mode, a decay of 2e-4 and a ragged last batch, `@released`: it is unstable. Here it is fitted by CE "
        "on logits, in eval mode, without decay, as in BiC's paper. At least one image of each class is held "
        "out."
    )
    named = {"released": {"correct": {"weight_decay": 2e-4}, "correct_as": "released"}}

    train: Schedule = Schedule(epochs=170, lr=0.1, milestones=(60, 100, 140), weight_decay=2e-4)
    correct: Schedule = Schedule(epochs=170, lr=0.1, milestones=(60, 100, 140), weight_decay=0.0)
    held_out: ProperFraction = 0.1
    temperature: Positive = 2.0
    #: ``released``: CE of softmax outputs, batch norm in training mode, and a ragged last batch.
    correct_as: Literal["stated", "released"] = "stated"

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with a correction for each step so far."""
        return CorrectedModel(setting.new_backbone(), [len(labels) for labels in step.tasks])

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train the model with fixed corrections; then the newest correction, on held-out images."""
        share = task.step.old / task.step.seen
        loss = classify_and_distil(task, self.temperature, ce=1 - share, kd=share)
        model = task.model.requires_grad_(True)
        model.corrections.requires_grad_(False)
        if task.first:
            yield Stage("train", model, loss, self.train, task.train_plus)
            return
        kept, held_out = self.split(task)
        yield Stage("train", model, loss, self.train, kept)

        # By itself a stage puts only its own module, the correction, in training mode.
        model.requires_grad_(False)
        newest = model.corrections[-1].requires_grad_(True)
        released = self.correct_as == "released"

        def correction_loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x).softmax(dim=1) if released else model(x), y)

        model.train(released)
        yield Stage("correct", newest, correction_loss, self.correct, held_out, ragged=released)
        model.eval()

    def split(self, task: Task) -> tuple[Tensor, Tensor]:
        """Return the indices to train on, and floor(share · M / old) ≥ 1 held-out ones of every class."""
        labels = task.setting.images.labels.cpu()[task.train_plus]
        fewest = int(labels.bincount().min())
        count = min(max(1, int(self.held_out * task.memory.share(task.step.old))), fewest - 1)
        if count < 1:
            size, fixed = task.memory.size, task.memory.fixed
            kept = f"memory_per_class = {fixed}" if fixed else f"memory = {size}"
            raise BadInput(f"{kept} is too small: BiC needs 2 images of every class")
        numbers = generator(task.setting.data_seed, "held out", task.step.number)
        order = torch.randperm(len(labels), generator=numbers)
        held_out = torch.zeros(len(order), dtype=torch.bool)
        for label in range(task.step.seen):
            held_out[order[labels[order] == label][:count]] = True
        return task.train_plus[~held_out], task.train_plus[held_out]


class Correction(nn.Module):
    """α·z + β on the logits of one step's classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.alpha = nn.Parameter(torch.ones(()))
        self.beta = nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        """Return corrected logits of the step's classes."""
        # In float32: α and β, without dimensions, would be rounded to bfloat16.
        return self.alpha * logits.float() + self.beta


class Corrections(nn.ModuleList):
    """Each step's correction on the logits of its classes."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return corrected logits [B, classes]."""
        parts = torch.split(logits, [c.classes for c in self], dim=1)  # type: ignore[misc]
        return torch.cat([correct(z) for correct, z in zip(self, parts, strict=True)], dim=1)


class CorrectedModel(Model):
    """A model whose logits pass through each step's correction."""

    def __init__(self, backbone: Backbone, sizes: list[int]) -> None:
        super().__init__(backbone, sum(sizes))
        self.corrections = Corrections(Correction(size) for size in sizes)

    def classify(self, features: Tensor) -> Tensor:
        """Return corrected logits [B, classes]."""
        logits: Tensor = self.corrections(self.head(features))
        return logits

    def extra_head(self) -> nn.Module:
        """Return a trainable copy of h, followed by the frozen corrections."""
        return nn.Sequential(super().extra_head(), copy.deepcopy(self.corrections).requires_grad_(False))

    def grow(self, classes: int) -> None:
        """Widen the head, with an identity correction for the new classes."""
        new = Correction(classes - self.head.out_features).to(self.head.weight.device)
        super().grow(classes)
        self.corrections.append(new)
