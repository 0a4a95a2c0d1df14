"""EWC: elastic weight consolidation."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Backbone, Learner, Model, Paper, Schedule, Setting, Stage, Step, Task, register_learner
from opencil.engine.arithmetic import FULL
from opencil.engine.feed import ImageFeed, augmented_loss
from opencil.validation import NonNegative, Positive


@register_learner(
    "ewc", paper=Paper("Overcoming Catastrophic Forgetting in Neural Networks", 2017, "1612.00796")
)
@dataclass(frozen=True)
class EWC(Learner):
    """Cross-entropy among the new classes; important parameters stay close to their old values."""

    family = "regularisation"
    equation = (
        r"L = \text{CE}(z_{\text{old}:}, y) + \frac{\lambda}{2} \sum_i F_i (\theta_i - \theta'_i)^2 "
        r"\text{ on new classes} \\ F \leftarrow \alpha F + (1 - \alpha) \min(\text{mean} \, g^2, c), \quad "
        r"\alpha = \frac{\text{old}}{\text{seen}}"
    )
    differs = (
        "As in PyCIL, g is a batch's gradient of CE, network in training mode, and no F is above c = 1e-4: "
        "not the Fisher information, which is of single images and drawn labels. There is one F for all "
        "steps, by shares of classes, where the paper adds a penalty a task. Here every batch is full. In "
        "PyCIL the rest of an epoch is a batch too, 8 of CIFAR-100's 5,000 images, and on its four GPUs "
        "batch norm sees a quarter of each batch: there gradients are larger in the mean, and so is F. A "
        "higher `weight` comes nearer to that."
    )

    remembers = False
    revisits = False

    first: Schedule = Schedule(epochs=200, lr=0.1, milestones=(60, 120, 170), weight_decay=5e-4)
    later: Schedule = Schedule(epochs=180, lr=0.1, milestones=(70, 120, 150), weight_decay=2e-4)
    weight: NonNegative = 1000.0
    most: Positive = 1e-4

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with its parameters' old values and importance."""
        return AnchoredModel(setting.new_backbone(), step.seen)

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE and the penalty, 0 at step 1; then update the importance."""
        model, old = task.model, task.step.old

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            moved = flatten(model.anchored)[: len(model.anchor)] - model.anchor
            penalty: Tensor = self.weight / 2 * (model.importance * moved.square()).sum()
            return penalty + F.cross_entropy(model(images)[:, old:], labels - old)

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
        before, share = model.importance, old / task.step.seen
        importance = self.measure_importance(task)
        importance[: len(before)] = share * before + (1 - share) * importance[: len(before)]
        model.importance, model.anchor = importance, flatten(model.anchored).detach()

    def measure_importance(self, task: Task) -> Tensor:
        """Return the mean of squared gradients of an epoch's batches, each at most ``most``."""
        setting, seed = task.setting, (task.setting.data_seed, "step", task.step.number, "importance")
        probe = copy.deepcopy(task.model).train()  # a copy, since batch norm changes
        feed = ImageFeed(setting.images, setting.transform, task.step.train, setting.batch_size, seed)
        loss = augmented_loss(lambda x, y: F.cross_entropy(probe(x), y), setting.transform)
        total = torch.zeros((), device=feed.device)
        for batch in feed.epoch(0):
            with FULL.active():
                gradients = torch.autograd.grad(loss(*batch), probe.anchored)
            total = total + flatten(gradients).square()
        return (total / feed.iterations).clamp(max=self.most)


class AnchoredModel(Model):
    """A model with its parameters' values after the last step (``anchor``), and their importance."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone, classes)
        self.anchor: Tensor = nn.Buffer(flatten(self.anchored).detach())
        self.importance: Tensor = nn.Buffer(torch.zeros_like(self.anchor))

    @property
    def anchored(self) -> list[Tensor]:
        """Return the parameters, the head's last."""
        return [*self.backbone.parameters(), self.head.weight, self.head.bias]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers of a model's parameters; the head's class by class, so that new ones come last."""
    *others, weight, bias = tensors
    return torch.cat([*(t.flatten() for t in others), torch.cat([weight, bias[:, None]], dim=1).flatten()])
