"""What images of each task score: what scores by task are compared with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil.data.precision import reachable, widened
from opencil.errors import BadInput


@dataclass(frozen=True)
class TaskStandards:
    """Mean and spread [C] of what images score that are of the task which each class came with."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, tasks: Tensor) -> "TaskStandards":
        """Of scores, labels [N] and the task of each class [C]; spreads are standard deviations (n − 1).

        A task without images has the mean of all. One of fewer than two images, or whose images score alike,
        has the spread within all tasks together; where there is none, that of all scores; else 1.
        """
        if (high := int(labels.max())) >= len(tasks):
            raise BadInput(f"labels reach {high}: tasks are of the classes 0 to {len(tasks) - 1}")
        values = widened(scores)
        labels, tasks = labels.to(values.device), tasks.to(values.device)
        # What rounding alone may make of scores that are alike.
        least = 1e-6 * float(values.abs().max())
        of_sample, known = tasks[labels], torch.unique(tasks)
        parts = [values[of_sample == task] for task in known]
        inner = torch.cat([part - part.mean() for part in parts if len(part)])
        freedom = len(values) - sum(len(part) > 0 for part in parts)
        within = float(inner.square().sum() / max(freedom, 1)) ** 0.5
        overall = float(values.std()) if len(values) > 1 else 0.0
        fallback = next((spread for spread in (within, overall) if spread > least), 1.0)
        mean, spread = values.new_empty(len(tasks)), values.new_empty(len(tasks))
        for task, part in zip(known, parts, strict=True):
            own = float(part.std()) if len(part) > 1 else 0.0
            mean[tasks == task] = part.mean() if len(part) else values.mean()
            spread[tasks == task] = own if own > least else fallback
        return cls(mean, spread)

    def standardised(self, scores: Tensor, logits: Tensor) -> Tensor:
        """(score − mean) / spread, both of the task that the largest logit is of, [N]."""
        predicted, wide = reachable(logits).argmax(dim=1), widened(scores)
        mean, spread = self.mean.to(wide.device), self.spread.to(wide.device)
        return ((wide - mean[predicted]) / spread[predicted]).float().to(scores.device)
