"""LUCIR: a unified classifier by rebalancing."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Task, register_learner
from opencil.cil.learner import masked_mean
from opencil.cil.rebalanced import Rebalanced, cosine_distance
from opencil.validation import Count, NonNegative


@register_learner(
    "lucir",
    paper=Paper(
        "Learning a Unified Classifier Incrementally via Rebalancing",
        2019,
        url="https://hshustc.github.io/CVPR19_Incremental_Learning/",
    ),
)
@dataclass(frozen=True)
class LUCIR(Rebalanced):
    """Cosine head; features keep their direction, exemplars a margin to new classes; a balanced tuning."""

    equation = (
        r"L = \text{CE}(\sigma \cos(\varphi, w), y) + \lambda \sqrt{\frac{\text{old}}{\text{new}}} "
        r"(1 - \cos(\varphi, \varphi')) \\ + \frac{1}{K} \sum_{k = 1}^{K} \max(0, \text{margin} - "
        r"\cos(\varphi_m, w_y) + \cos(\varphi_m, w_{(k)})) \\ "
        r"w_{(k)} = \text{the row of a new class, } k\text{-th nearest}"
    )
    differs = (
        "The paper's backbone has no ReLU at its end; here the benchmark's has one unless "
        "`benchmark.backbone` sets `signed: true`. Its code tunes the head in ImageNet experiments only; "
        "here in all, the backbone in eval mode. Loss, weights and schedules are those of the code."
    )

    retain: NonNegative = 5.0  #: λ
    ranking: NonNegative = 1.0  #: weight of the margins
    margin: NonNegative = 0.5
    nearest: Count = 2  #: K

    def classification(self, task: Task, cosines: Tensor, labels: Tensor) -> Tensor:
        """Return CE, plus from step 2 on the margin loss of exemplars."""
        loss = F.cross_entropy(task.model.head.scale * cosines, labels)
        if task.first:
            return loss
        rivals = min(self.nearest, task.step.new)
        return loss + self.ranking * margin_loss(cosines, labels, task.step.old, self.margin, rivals)

    def retention(self, task: Task, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features, and λ √(old / new) (1 − cos)."""
        features = task.model.features(images)
        with torch.no_grad():
            before = task.teacher.features(images)
        cost = cosine_distance(features, before)
        return features, self.retain * math.sqrt(task.step.old / task.step.new) * cost


def margin_loss(cosines: Tensor, labels: Tensor, old: int, margin: float, nearest: int) -> Tensor:
    """Return the mean over images of old classes of max(0, margin − cos_y + cos of a nearest new class)."""
    own = cosines.gather(1, labels[:, None])
    hinges = F.relu(margin - own + cosines[:, old:].topk(nearest, dim=1).values).mean(dim=1)
    return masked_mean(hinges, labels < old)
