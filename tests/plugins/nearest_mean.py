"""A method in closed form: nothing is trained, at no step."""

from dataclasses import dataclass
from typing import Any

import torch

import opencil
from opencil.engine.forward import forward


@opencil.register_learner("nearest-mean")
@dataclass(frozen=True)
class NearestMean(opencil.Learner):
    """A class's logit is f·m − ‖m‖²/2, m its mean feature: the largest is that of the nearest mean."""

    @torch.no_grad()
    def stages(self, task: opencil.Task) -> Any:
        images, head = task.setting.images, task.model.head
        outputs = forward(task.model, images, task.setting.transform, task.step.train)
        assert outputs.labels is not None
        for label in range(task.step.old, task.step.seen):
            mean = outputs.features[outputs.labels == label].mean(dim=0)
            head.weight[label], head.bias[label] = mean, -mean.square().sum() / 2
