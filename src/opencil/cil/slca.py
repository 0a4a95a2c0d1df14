"""SLCA: slow learner with classifier alignment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Backbone, Learner, Model, Paper, Schedule, Setting, Stage, Step, Task, register_learner
from opencil.data.precision import as_float64, copy_to_device
from opencil.engine.seeding import generator
from opencil.nets.class_statistics import ByStep
from opencil.nets.distances import covariance
from opencil.nets.model import Head
from opencil.validation import Count, NonNegative, Positive

#: Added to variances, so that every covariance has a Cholesky factor.
_RIDGE = 1e-4


@register_learner(
    "slca",
    paper=Paper(
        "SLCA: Slow Learner with Classifier Alignment for Continual Learning on a Pre-trained Model",
        2023,
        "2303.05118",
    ),
)
@dataclass(frozen=True)
class SLCA(Learner):
    """CE among the new classes, the backbone learning slowly; then the head, on features drawn by class."""

    family = "distillation"
    equation = (
        r"L = \text{CE}(z_{\text{old}:}, y), \text{ then } "
        r"L = \text{CE}(z / (\tau \bar{n}), y), \quad z = h(\varphi), \; \varphi \sim N(a_y \mu_y, \Sigma_y) "
        r"\\ \bar{n} = \text{mean}_t \, \|z_t\|, \quad a_y = 0.9 + 0.1 \, t_y / t"
    )
    differs = (
        "As in PILOT's copy, the means of earlier tasks are scaled by $`a_y`$, and a step begins with the "
        "head as it was before its alignment. The features of a class are drawn once a step, not anew in "
        "every epoch. Batches have the benchmark's size; theirs are of 64, and of 256 drawn features."
    )

    remembers = False
    revisits = False

    tune: Schedule = Schedule(epochs=20, lr=0.01, milestones=(18,), weight_decay=5e-4)
    align: Schedule = Schedule(epochs=3, lr=0.01, decay="cosine", weight_decay=5e-4)
    slowdown: NonNegative = 0.01  #: of the backbone's learning rate
    drawn: Count = 256  #: features of each class
    norm: Positive = 0.1  #: τ

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with a mean and a covariance for each class."""
        return ModelWithGaussians(setting.new_backbone(), step.sizes)

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train backbone and new rows; after step 1, align the head on features drawn by class."""
        model, old, number = task.model, task.step.old, task.step.number

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model.trained[-1](model.features(images)), labels - old)

        for head in (model.head, *model.trained[:-1]):
            head.requires_grad_(False)
        rates = ((model.backbone, self.slowdown),)
        yield Stage("tune", model, loss, self.tune, task.step.train, rates=rates)
        model.add_classes(task.new_features())
        if task.first:
            return
        of_task = F.one_hot(torch.tensor(task.step.task_of_class) - 1).float().to(model.means.device)

        def aligning(features: Tensor, labels: Tensor) -> Tensor:
            z = model.head(features).float()
            norms = (z.square() @ of_task + 1e-12).sqrt().mean(dim=1, keepdim=True)
            return F.cross_entropy(z / (self.norm * norms), labels)

        numbers = generator(task.setting.data_seed, "drawn features", number)
        drawn = []
        for mean, factor, of in zip(model.means, model.factors, task.step.task_of_class, strict=True):
            noise = torch.randn(self.drawn, len(mean), generator=numbers).to(mean.device)
            drawn.append((0.9 + 0.1 * of / number) * mean + noise @ factor.T)
        labels = torch.arange(len(drawn)).repeat_interleave(self.drawn).to(model.means.device)
        model.head.requires_grad_(True)
        yield Stage("align", model.head, aligning, self.align, task.step.train, (torch.cat(drawn), labels))


class ModelWithGaussians(Model):
    """A model with a mean and the Cholesky factor of a covariance for each class.

    ``trained`` are the rows of each step as they were trained, before the head's alignment.
    """

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, sum(sizes))
        width = backbone.width
        self.trained = nn.ModuleList(Head(width, size) for size in sizes)
        self.means: Tensor = nn.Buffer(torch.zeros(sum(sizes), width))
        self.factors = ByStep(sizes, torch.zeros(width, width))

    def grow(self, classes: int) -> None:
        """Add new classes."""
        super().grow(classes)
        new, width = classes - len(self.means), self.backbone.width
        self.trained.append(Head(width, new).to(self.means.device))
        self.means = F.pad(self.means, (0, 0, 0, new))
        self.factors.add(new, torch.zeros(width, width, device=self.means.device))

    @torch.no_grad()
    def add_classes(self, features: Sequence[Tensor]) -> None:
        """Set the new classes' Gaussians from features [n, D] of each, and the head from all trained rows."""
        for row, rows in enumerate(map(as_float64, features)):
            spread = covariance(rows) + _RIDGE * torch.eye(rows.shape[1]).to(rows)
            self.means[row - len(features)] = copy_to_device(rows.mean(dim=0), self.means.device)
            self.factors.newest[row] = copy_to_device(torch.linalg.cholesky(spread), self.means.device)
        parts = zip(*(head.parameters() for head in self.trained), strict=True)
        for own, rows in zip(self.head.parameters(), map(torch.cat, parts), strict=True):
            own.copy_(rows)
