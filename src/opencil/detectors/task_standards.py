"""Standardise scores by the mean and spread of the scores of each task's images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil.data.precision import as_float64, to_float64_device
from opencil.detectors.moments import check_labels


@dataclass(frozen=True)
class TaskStandards:
    """Mean and spread [C] of the scores of images from each class's task."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, tasks: Tensor) -> "TaskStandards":
        """Compute from scores and labels [N] and the task of each class [C]; spreads are standard deviations.

        A task without images has the mean of all. A task of fewer than two images, or of equal scores, has
        the spread within all tasks; if that is 0, the spread of all scores; if that is 0, 1.
        """
        values = as_float64(scores)
        labels, tasks = check_labels(labels, len(tasks)).to(values.device), tasks.to(values.device)
        # Equal scores up to rounding have a smaller spread.
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

    def standardise(self, scores: Tensor, logits: Tensor) -> Tensor:
        """Return (score − mean) / spread by the task of the class with the largest logit, [N]."""
        predicted, wide = to_float64_device(logits).argmax(dim=1), as_float64(scores)
        mean, spread = self.mean.to(wide.device), self.spread.to(wide.device)
        return ((wide - mean[predicted]) / spread[predicted]).float().to(scores.device)
