"""ER-ACE: experience replay with asymmetric cross-entropy."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Stage, Task, register_learner
from opencil.cil.learner import masked_mean, weights_by_share
from opencil.cil.replay import Replay


@register_learner(
    "er-ace",
    paper=Paper(
        "New Insights on Reducing Abrupt Representation Change in Online Continual Learning",
        2022,
        "2104.05025",
    ),
)
@dataclass(frozen=True)
class ERACE(Replay):
    """New images compete among the new classes, a balanced memory among all: old ones are not pushed away."""

    title = "ER-ACE"
    equation = (
        r"L = \text{CE}(z_{\text{old}:}, y) \text{ on new images} + \text{CE}(z, y) "
        r"\text{ on all classes alike}"
    )
    differs = (
        "Made for a stream that is seen once, with a cosine head times 10. Its memory fills as it goes, so "
        "new classes are replayed too: no other term separates them from old ones. Here it has replay's "
        "epochs and a linear head; batches are drawn from new images and memory together, and weights make "
        "the second term that of a memory balanced over all classes seen."
    )

    def stages(self, task: Task) -> Iterator[Stage]:
        """Train by CE at step 1, then by both terms."""
        model, old = task.model, task.step.old
        weights = weights_by_share(task, old / task.step.seen)

        def loss(images: Tensor, labels: Tensor, from_memory: Tensor) -> Tensor:
            logits = model(images)
            if task.first:
                return F.cross_entropy(logits, labels)
            among_new = F.cross_entropy(logits[:, old:], (labels - old).clamp(min=0), reduction="none")
            among_all = F.cross_entropy(logits, labels, reduction="none")
            replayed = (torch.where(from_memory, *weights) * among_all).mean()
            return masked_mean(among_new, ~from_memory) + replayed

        yield Stage("train", model, loss, self.first if task.first else self.later, task.train_plus)
