"""MORE: an output for all other tasks in each task's head."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from opencil import Outputs, Paper, Tuner, register_detector
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.detectors.finetune.views import ViewSource, head_size
from opencil.detectors.moments import compute_by_parts


@register_detector(
    "more",
    paper=Paper(
        "A Multi-Head Model for Continual Learning via Out-of-Distribution Replay", 2022, "2208.09734"
    ),
)
@dataclass
class MORE(Tuner):
    """The smallest probability, over tasks, of an output "other" trained on images of other tasks."""

    equation = (
        r"L = \frac{1}{T} \sum_t \overline{\text{CE}(z^t, y^t)}_{y \in t} + "
        r"\overline{\text{CE}(z^t, y^t)}_{y \notin t} \\ "
        r"z^t = \text{logits of the classes of task } t \text{ and of other}, \quad "
        r"y^t = y \text{ in task } t, \text{ else other} \\ "
        r"S(x) = \max_t \log \frac{1 - p^t_{\text{other}}}{p^t_{\text{other}}}"
    )
    differs = (
        "Adapted: the authors of MORE, and of its successor ROW, train a backbone with masks for every "
        "task; here all tasks share the model's backbone and the batches. They score by the largest "
        "probability of a class, `@class`, times a coefficient of Mahalanobis distances."
    )

    scored: Literal["task", "class"] = "task"  #: by 1 − p of "other", or by p of a class

    family = "continual"
    named = {**Tuner.named, "class": {"scored": "class"}}

    def head(self, source: ViewSource) -> nn.Module:
        """Return the model's head with an additional output for each task, initially 0."""
        return TaskHead(source.extra_head(), source.tasks)

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return the mean over tasks of CE(z^t, y^t): its mean over the task's images plus over others."""
        head = extra.head
        assert isinstance(head, TaskHead)
        features = torch.cat([views.features for views in batch.parts])
        labels = torch.cat([views.labels for views in batch.parts])
        z, other, known = head.by_task(features)
        own = head.member[labels]
        wrong = torch.logaddexp(known, other) - torch.where(own, z.gather(1, labels[:, None]), other)
        ours, others = (
            ((wrong * side).sum(dim=0) / side.sum(dim=0).clamp(min=1)).mean() for side in (own, ~own)
        )
        return ours + others

    def scores(self, outputs: Outputs) -> Tensor:
        """Return max_t log((1 − p_other) / p_other), or the largest log p of a class, [N]."""
        head = self._extra.head
        assert isinstance(head, TaskHead)
        numbers = 3 * head.member.numel()
        return compute_by_parts(lambda part: self._score(head, part), numbers, outputs.features)

    def _score(self, head: "TaskHead", features: Tensor) -> Tensor:
        z, other, known = head.by_task(features)
        if self.scored == "task":
            return (known - other).amax(dim=1)
        within = z[:, :, None] - torch.logaddexp(known, other)[:, None]
        return within.masked_fill(~head.member, -torch.inf).amax(dim=(1, 2))


class TaskHead(nn.Module):
    """Logits of the classes, and of "other" for each task; ``member`` [C, T] marks each class's task."""

    def __init__(self, head: nn.Module, tasks: Tensor | None) -> None:
        super().__init__()
        classes, width = head_size(head)
        tasks = torch.ones(classes) if tasks is None else tasks.cpu()
        self.classes = head
        member = tasks[:, None] == torch.unique(tasks)
        self.other = nn.Linear(width, member.shape[1], device="meta").to_empty(device="cpu")  # draws nothing
        nn.init.zeros_(self.other.weight)
        nn.init.zeros_(self.other.bias)
        self.register_buffer("member", member, persistent=False)
        self.member: Tensor

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of the classes, [B, C]."""
        logits: Tensor = self.classes(features)
        return logits

    def by_task(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return class logits [B, C], and each task's logit of "other" and logsumexp of classes, [B, T]."""
        z = self(features)
        known = z[:, :, None].masked_fill(~self.member, -torch.inf).logsumexp(dim=1)
        return z, self.other(features), known
