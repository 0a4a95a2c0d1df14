"""FeTrIL: features of new classes, translated to the means of old classes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Backbone, Model, Paper, Schedule, Setting, Stage, Step, Task, register_learner
from opencil.cil.trained_once import TrainedOnce


@register_learner(
    "fetril",
    paper=Paper(
        "FeTrIL: Feature Translation for Exemplar-Free Class-Incremental Learning", 2023, "2211.13131"
    ),
)
@dataclass(frozen=True)
class FeTrIL(TrainedOnce):
    """A linear head trained on new features, and on translated ones in place of old features."""

    equation = (
        r"L = \text{CE}(h(\varphi), y) + \text{CE}(h(\tilde{\varphi}_c), c) \\ "
        r"\tilde{\varphi}_c = \varphi_n - \mu_n + \mu_c \\ n = \text{argmax}_n \cos(\mu_n, \mu_c)"
    )
    differs = (
        "Its authors augment images more strongly at step 1 (AutoAugment, Cutout), and use a linear SVM; "
        "here it is the benchmark's own transform, and the linear layer of PyCIL's copy."
    )

    later: Schedule = Schedule(epochs=50, lr=0.05, decay="cosine", weight_decay=5e-4)

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with the mean feature of every class."""
        return ModelWithMeans(setting.new_backbone(), step.seen)

    def fit(self, task: Task) -> Iterator[Stage]:
        """Set the new means; train the head on new features and copies of them moved to old means."""
        model, old, features = task.model, task.step.old, task.new_features()
        model.means[old:] = torch.stack([each.mean(dim=0) for each in features])
        if task.first and not model.backbone.frozen:
            return  # the head was trained with the backbone
        unit = F.normalize(model.means, dim=1)
        nearest = old + (unit[:old] @ unit[old:].T).argmax(dim=1)
        donors = torch.cat([nearest, torch.arange(old, task.step.seen).to(nearest)])
        moves = model.means - model.means[donors]
        counts = [len(each) for each in features]
        pool, rows = torch.cat(features), torch.split(torch.arange(sum(counts)), counts)
        chosen = [rows[donor - old] for donor in donors.tolist()]
        labels = torch.cat([torch.full_like(part, label) for label, part in enumerate(chosen)])

        def loss(row: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(model.head(pool[row] + moves[label]), label)

        tensors = (torch.cat(chosen).to(pool.device), labels.to(pool.device))
        yield Stage("head", model.head, loss, self.later, task.step.train, tensors)


class ModelWithMeans(Model):
    """A model with the mean feature of every class, [classes, D]."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone, classes)
        self.means: Tensor = nn.Buffer(torch.zeros(classes, backbone.width))

    def grow(self, classes: int) -> None:
        """Widen the head; the means of new classes are 0."""
        super().grow(classes)
        self.means = F.pad(self.means, (0, 0, 0, classes - len(self.means)))
