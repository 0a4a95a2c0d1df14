"""SLCA: slow learner with classifier alignment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Backbone, Learner, Model, Paper, Schedule, Setting, Stage, Step, Task, register_learner
from opencil.data.precision import as_float64, copy_to_device
from opencil.engine.seeding import generator
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
        """Train backbone and new rows; after step 1, align the head on features drawn from Gaussians."""
        model, old = task.model, task.step.old
        newest = model.newest

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(newest(model.features(images)), labels - old)

        slow = ((model.backbone, self.slowdown),)
        model.head.requires_grad_(False)
        yield Stage("tune", model, loss, self.tune, task.step.train, rates=slow)
        model.add_classes(task.new_features())
        model.head.requires_grad_(True)
        if not task.first:
            features, labels = draw_features(task, self.drawn)
            groups = torch.tensor(task.step.task_of_class) - 1
            of_task = F.one_hot(groups).float().to(features.device)

            def aligning(f: Tensor, y: Tensor) -> Tensor:
                z = model.head(f).float()
                norms = (z.square() @ of_task + 1e-12).sqrt().mean(dim=1, keepdim=True)
                return F.cross_entropy(z / (self.norm * norms), y)

            yield Stage("align", model.head, aligning, self.align, task.step.train, (features, labels))


def draw_features(task: Task, count: int) -> tuple[Tensor, Tensor]:
    """Return features [C · count, D] drawn from each class's Gaussian, means moved, and their labels."""
    model, step, found = task.model, task.step, list[Tensor]()
    numbers = generator(task.setting.data_seed, "drawn features", step.number)
    for label, (mean, factor) in enumerate(zip(model.means, model.factors(), strict=True)):
        noise = torch.randn(count, len(mean), generator=numbers).to(mean.device)
        share = 0.9 + 0.1 * step.task_of_class[label] / step.number
        found.append(share * mean + noise @ factor.T)
    return torch.cat(found), torch.arange(step.seen).repeat_interleave(count).to(found[0].device)


class ModelWithGaussians(Model):
    """A model with a mean and the Cholesky factor of a covariance for each class.

    ``newest`` are the head's rows of the new classes while they are trained; ``aside`` are all rows as they
    were trained, before the head's alignment. The factors of each step are a tensor of their own, so that
    its file alone has them.
    """

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, sum(sizes))
        self.newest, self.aside = Head(backbone.width, sizes[-1]), Head(backbone.width, sum(sizes))
        self.aside.requires_grad_(False)
        self.means: Tensor = nn.Buffer(torch.zeros(sum(sizes), backbone.width))
        self.steps = 0
        for size in sizes:
            self._add_step(size)

    def _add_step(self, size: int) -> None:
        width = self.backbone.width
        zeros = torch.zeros(size, width, width, device=self.means.device)
        self.register_buffer(f"factors{self.steps}", zeros)
        self.steps += 1

    def factors(self) -> Iterator[Tensor]:
        """Yield the factor [D, D] of each class."""
        return (factor for number in range(self.steps) for factor in getattr(self, f"factors{number}"))

    def grow(self, classes: int) -> None:
        """Add new classes to a head as it was before its alignment."""
        new = classes - len(self.means)
        self.newest, self.head = (
            Head(self.backbone.width, new).to(self.means.device),
            self.aside.grow(classes),
        )
        self.aside = self.aside.grow(classes)
        self.means = F.pad(self.means, (0, 0, 0, new))
        self._add_step(new)

    @torch.no_grad()
    def add_classes(self, features: Sequence[Tensor]) -> None:
        """Set the new classes' Gaussians from features [n, D] of each, and the head from trained rows."""
        new, factors = len(features), getattr(self, f"factors{self.steps - 1}")
        for row, rows in enumerate(map(as_float64, features)):
            spread = covariance(rows) + _RIDGE * torch.eye(rows.shape[1]).to(rows)
            self.means[row - new] = copy_to_device(rows.mean(dim=0), self.means.device)
            factors[row] = copy_to_device(torch.linalg.cholesky(spread), factors.device)
        for own, rows in zip(self.aside.parameters(), self.newest.parameters(), strict=True):
            own[-new:] = rows
        self.head.load_state_dict(self.aside.state_dict())
