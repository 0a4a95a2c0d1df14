"""FOSTER: feature boosting and compression."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Learner, Memory, Outputs, Paper, Schedule, Setting, Stage, Step, Task, register_learner
from opencil.cil.learner import distillation, soft_cross_entropy, soften
from opencil.engine.forward import forward
from opencil.nets.growing import SideBySide
from opencil.nets.model import Backbone, Head, Model
from opencil.validation import BelowOne, Positive


@register_learner(
    "foster",
    paper=Paper(
        "FOSTER: Feature Boosting and Compression for Class-Incremental Learning", 2022, "2204.04662"
    ),
)
@dataclass(frozen=True)
class FOSTER(Learner):
    """A second backbone is boosted beside the frozen first one; both are then compressed into one."""

    family = "expansion"
    beside = 4.8  #: the frozen model; compression beside two is as much work as the others
    equation = (
        r"L_{\text{boost}} = \text{CE}(z / w, y) + \text{CE}(z_{\text{aux}}, y) "
        r"+ \text{KD}(z_{1:\text{old}}, z') \\ "
        r"L_{\text{compress}} = -\sum_c q_c \log \, \text{softmax}(z_{\text{student}} / T)_c \\ "
        r"q_c \propto w_c \, \text{softmax}(z / T)_c \\ w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}"
    )
    differs = (
        "The paper does not state the decay of boosting: here it is the first step's. As in its code, the "
        "boosted model is evaluated and the compressed one begins the next step; `evaluate: compressed` "
        "evaluates the compressed one."
    )

    first: Schedule = Schedule(epochs=200, lr=0.1, decay="cosine", weight_decay=5e-4)
    boost: Schedule = Schedule(epochs=170, lr=0.1, decay="cosine", weight_decay=5e-4)
    compress: Schedule = Schedule(epochs=130, lr=0.1, decay="cosine", weight_decay=0.0)
    boost_beta: BelowOne = 0.96
    compress_beta: BelowOne = 0.97
    temperature: Positive = 2.0
    evaluate: Literal["boosted", "compressed"] = "boosted"

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a plain model at step 1, then a boosted one with its student."""
        if step.number == 1:
            return Model(setting.new_backbone(), step.seen)
        return BoostedModel(Model(setting.new_backbone(), step.old), step.seen, self.evaluate)

    def successor(self, setting: Setting, step: Step, previous: Model) -> Model:
        """Return a boosted model over the previous student, or over the model of step 1."""
        base = previous.student if isinstance(previous, BoostedModel) else previous
        return BoostedModel(copy.deepcopy(base), step.seen, self.evaluate)

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE at step 1; after it boost, then compress."""
        model, temperature = task.model, self.temperature
        if task.first:
            yield Stage(
                "train", model, lambda x, y: F.cross_entropy(model(x), y), self.first, task.train_plus
            )
            return
        # Old classes count with the memory's quota.
        counts = torch.bincount(task.setting.images.labels[task.step.train].cpu(), minlength=task.step.seen)
        counts[: task.step.old] = task.memory.quota(task.step.old)
        betas, device = (self.boost_beta, self.compress_beta), task.setting.images.device
        boosting, compressing = (class_weights(counts, beta).to(device) for beta in betas)

        def boost(images: Tensor, labels: Tensor) -> Tensor:
            logits, auxiliary, before = model.boosted(images)
            classification = F.cross_entropy(logits / boosting, labels) + F.cross_entropy(auxiliary, labels)
            return classification + distillation(logits, before, temperature)

        def compress(images: Tensor, _: Tensor) -> Tensor:
            with torch.no_grad():
                target = F.softmax(soften(model.boosted(images)[0], temperature), dim=1) * compressing
            student = soften(model.student(images), temperature)
            return soft_cross_entropy(student, F.normalize(target, p=1, dim=1))

        model.base.requires_grad_(False)
        model.student.requires_grad_(False)
        yield Stage("boost", model, boost, self.boost, task.train_plus)
        model.requires_grad_(False)
        model.student.requires_grad_(True)
        yield Stage("compress", model.student, compress, self.compress, task.train_plus)

    def other_predictions(self, task: Task, memory: Memory, test: Outputs) -> dict[str, Tensor]:
        """Return the predictions of the model, boosted or compressed, that is not evaluated."""
        name = "compressed" if self.evaluate == "boosted" else "boosted"
        if task.first:  # both are the same model
            return {f"accuracy_{name}": test.logits.argmax(dim=1)}
        other = copy.copy(task.model)
        other.evaluate = name
        outputs = forward(other, task.setting.test_images, task.setting.transform, task.step.test)
        return {f"accuracy_{name}": outputs.logits.argmax(dim=1)}


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Return (1−β)/(1−β^n) for each class's number of images n, scaled to mean 1; float32."""
    weights = (1 - beta) / (1 - beta ** counts.double())
    return (weights / weights.mean()).float()


class BoostedModel(SideBySide):
    """A frozen model (``base``), a second backbone, a head over both, and a ``student`` of the pair.

    ``evaluate`` chooses the boosted pair or the student for ``features``, ``maps`` and ``classify``.
    """

    def __init__(self, base: Model, classes: int, evaluate: Literal["boosted", "compressed"]) -> None:
        super().__init__(copy.deepcopy(base.backbone), classes)
        self.evaluate = evaluate
        self.base = base
        self.head = base.head.grow(classes, width=2 * base.backbone.width)
        self.auxiliary = Head(base.backbone.width, classes)
        self.student = copy.deepcopy(base)
        self.student.grow(classes)
        base.backbone.freeze()

    def backbones(self) -> list[Backbone]:
        """Return the backbones of the frozen model and the second, or the student's."""
        pair = [self.base.backbone, self.backbone]
        return [self.student.backbone] if self.evaluate == "compressed" else pair

    def classify(self, features: Tensor) -> Tensor:
        """Return logits of the head over both backbones, or of the student."""
        return self.student.classify(features) if self.evaluate == "compressed" else self.head(features)

    def extra_head(self) -> nn.Module:
        """Return a copy of the head over both backbones, or of the student's."""
        return self.student.extra_head() if self.evaluate == "compressed" else super().extra_head()

    def boosted(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the pair, of the second backbone's auxiliary head, and of the frozen model."""
        old, new = self.base.backbone(images), self.backbone(images)
        with torch.no_grad():
            before = self.base.classify(old)
        return self.head(torch.cat([old, new], dim=1)), self.auxiliary(new), before
