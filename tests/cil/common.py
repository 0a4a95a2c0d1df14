"""Tasks of a few steps, and comparisons of models, for tests of several methods."""

import numpy as np
import torch
from torch import Tensor, nn

from opencil.cil.learner import Learner, Setting, Task
from opencil.data.memory import Memory
from opencil.data.stream import Stream


def trained_tasks(learner: Learner, setting: Setting, stream: Stream, steps: int = 3) -> list[Task]:
    """The tasks of the first steps, each trained."""
    tasks: list[Task] = []
    for number in range(1, steps + 1):
        task = next_task(learner, setting, stream, number, tasks)
        list(learner.learn(task))
        tasks.append(task)
    return tasks


def begun(learner: Learner, setting: Setting, stream: Stream, number: int = 2) -> Task:
    """A step that is not trained yet, after trained ones."""
    return next_task(learner, setting, stream, number, trained_tasks(learner, setting, stream, number - 1))


def next_task(learner: Learner, setting: Setting, stream: Stream, number: int, before: list[Task]) -> Task:
    memory = learner.remember(before[-1]) if before else Memory(12)
    return learner.begin(setting, stream[number - 1], memory, before[-1].model if before else None)


def batch_of(task: Task) -> tuple[Tensor, Tensor]:
    """All images that a task's step learns from, as one batch, and their labels."""
    images = task.setting.images
    return task.setting.transform.test(images.images[task.train_plus]), images.labels[task.train_plus]


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the tensors that are not the same."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def naive_fecam(features: list[Tensor], query: np.ndarray) -> list[float]:
    """Squared distances of one image's features to each class, step by step in numpy."""
    found = []
    for of_class in features:
        raw = of_class.numpy()
        spread = np.cov(np.sqrt(raw).T)
        for _ in range(2):
            off = spread - np.diag(np.diag(spread))
            mean = off[off != 0].mean()
            eye = np.eye(len(spread))
            spread = spread + np.diag(spread).mean() * eye + mean * (1 - eye)
        deviations = np.sqrt(np.diag(spread))
        inverse = np.linalg.pinv(spread / np.outer(deviations, deviations))
        mean = np.sqrt(raw.mean(axis=0))
        apart = np.sqrt(query) / np.linalg.norm(np.sqrt(query)) - mean / np.linalg.norm(mean)
        found.append(float(apart @ inverse @ apart))
    return found
