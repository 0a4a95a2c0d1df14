"""iCaRL: its values, its loss, its frozen teacher."""

import math
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from opencil.cil.icarl import ICaRL
from opencil.cil.learner import Task
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.forward import Outputs, forward
from opencil.engine.loop import Stage
from tests.cil.common import batch_of


def only_stage(task: Task) -> Stage:
    (stage,) = list(ICaRL().stages(task))
    return stage


def log_softmax(row: list[float], temperature: float = 1.0) -> list[float]:
    total = math.log(sum(math.exp(v / temperature) for v in row))
    return [v / temperature - total for v in row]


def naive_loss(logits: Tensor, labels: Tensor, teacher: Tensor | None) -> float:
    """CE, plus from step 2 on −Σ softmax(z_old/2)·log softmax(z[:old]/2), sample by sample in float64."""
    losses = []
    for i, (row, label) in enumerate(zip(logits.double().tolist(), labels.tolist(), strict=True)):
        loss = -log_softmax(row)[label]
        if teacher is not None:
            before = log_softmax(teacher[i].double().tolist(), 2.0)
            now = log_softmax(row[: len(before)], 2.0)
            loss -= sum(math.exp(p) * q for p, q in zip(before, now, strict=True))
        losses.append(loss)
    return sum(losses) / len(losses)


def test_the_first_step_is_cross_entropy(first: Task) -> None:
    stage = only_stage(first)
    assert stage.schedule == ICaRL().first
    assert stage.module is first.model
    assert stage.indices.tolist() == first.step.train.tolist()
    images, labels = batch_of(first)
    first.model.eval()
    expected = naive_loss(first.model(images), labels, None)
    assert stage.loss(images, labels).item() == pytest.approx(expected, rel=1e-5)


def test_later_steps_add_distillation(second: Task) -> None:
    stage = only_stage(second)
    assert stage.schedule == ICaRL().later
    assert stage.indices.tolist() == second.train_plus.tolist()
    images, labels = batch_of(second)
    second.model.eval()
    assert second.teacher is not None
    expected = naive_loss(second.model(images), labels, second.teacher(images))
    assert stage.loss(images, labels).item() == pytest.approx(expected, rel=1e-5)


def test_the_nearest_mean_is_that_of_the_exemplars(second: Task, stream: Stream) -> None:
    memory = ICaRL().remember(second)
    assert [len(indices) for indices in memory.per_class] == [3] * 4
    setting = second.setting
    test = forward(second.model, stream.test, setting.transform, stream[1].test)
    means = []
    for indices in memory.per_class:
        features = forward(second.model, stream.train, setting.transform, indices).features.double()
        units = [feature / feature.norm() for feature in features]
        mean = sum(units[1:], units[0]) / len(units)
        means.append(mean / mean.norm())
    expected = []
    for feature in test.features.double():
        away = [float((feature / feature.norm() - mean).norm()) for mean in means]
        expected.append(away.index(min(away)))
    (found,) = ICaRL().other_predictions(second, memory, test).items()
    assert found[0] == "accuracy_nearest_mean"
    assert found[1].tolist() == expected
    assert len(set(expected)) > 1


def test_every_exemplar_counts_the_same_in_its_mean() -> None:
    """However long its feature is: the first exemplar would draw its class's mean away from the image."""
    features = torch.tensor([[10.0, 0.0], [0.0, 1.0], [9.0, 4.3]])
    task, memory = Mock(), Memory(4, (torch.arange(2), torch.tensor([2])))
    task.outputs = lambda indices: Outputs(features[indices], torch.zeros(len(indices), 2))
    test = Outputs(torch.tensor([[0.0, 3.0]]), torch.zeros(1, 2))
    (nearest,) = ICaRL().other_predictions(task, memory, test).values()
    assert nearest.tolist() == [0]
