"""LUCIR: its losses, the parameters that train in each stage, the balanced images."""

import math

import pytest
import torch
from torch import Tensor

from opencil.cil.learner import Setting, Task
from opencil.cil.lucir import LUCIR, margin_loss
from opencil.data.stream import Stream
from opencil.registry import LEARNERS
from tests.cil.common import batch_of, begun


def started(name: str, setting: Setting, stream: Stream) -> tuple[LUCIR, Task]:
    """Step 2, not trained yet, after a short step 1."""
    learner = LEARNERS.create(name, epochs=2)
    return learner, begun(learner, setting, stream)


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a.double() @ b.double()) / a.double().norm() / b.double().norm())


def naive_margins(cosines: Tensor, labels: Tensor, old: int, margin: float, nearest: int) -> float:
    losses = []
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        if label < old:
            losses += [max(0.0, margin - row[label] + s) for s in sorted(row[old:], reverse=True)[:nearest]]
    return sum(losses) / len(losses) if losses else 0.0


@pytest.mark.parametrize("labels", [[0, 3, 1, 2, 4], [3, 4, 2, 2, 3]])
def test_margins_are_those_of_images_of_old_classes(labels: list[int]) -> None:
    cosines = 2 * torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) - 1
    expected = naive_margins(cosines, torch.tensor(labels), 2, 0.5, 2)
    assert float(margin_loss(cosines, torch.tensor(labels), 2, 0.5, 2)) == pytest.approx(expected)
    assert (expected > 0) == (min(labels) < 2)


def test_the_loss_of_later_steps_equals_its_definition(setting: Setting, stream: Stream) -> None:
    learner, task = started("lucir", setting, stream)
    stage = next(iter(learner.stages(task)))
    images, labels = batch_of(task)
    model, teacher = task.model.eval(), task.teacher
    model.head.scale.data.fill_(3.0)
    model.backbone.stem[0].weight.data.add_(0.01)
    now, before = model.features(images).detach(), teacher.features(images)
    rows = torch.cat(list(model.head.rows)).detach()
    cosines = torch.tensor([[cosine(f, row) for row in rows] for f in now])
    ce = sum(
        math.log(sum(math.exp(3 * c) for c in row)) - 3 * row[label]
        for row, label in zip(cosines.tolist(), labels.tolist(), strict=True)
    ) / len(labels)
    forgotten = sum(1 - cosine(f, g) for f, g in zip(now, before, strict=True)) / len(labels)
    expected = ce + 5 * math.sqrt(2 / 2) * forgotten + naive_margins(cosines, labels, 2, 0.5, 2)
    assert forgotten > 1e-4
    assert stage.loss(images, labels).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["lucir", "podnet"])
def test_old_rows_are_frozen_in_training_and_only_rows_are_tuned(
    name: str, setting: Setting, stream: Stream
) -> None:
    learner, task = started(name, setting, stream)
    states: dict[str, dict[str, Tensor]] = {}
    at_first = {key: tensor.clone() for key, tensor in task.model.state_dict().items()}
    for progress in learner.learn(task):
        states[progress.stage] = {key: tensor.clone() for key, tensor in task.model.state_dict().items()}
    assert list(states) == ["train", "balance"]
    trained, tuned = states["train"], states["balance"]
    assert torch.equal(trained["head.rows.0"], at_first["head.rows.0"])
    for key in ("head.rows.1", "head.scale", "backbone.stem.0.weight", "backbone.stem.1.running_mean"):
        assert not torch.equal(trained[key], at_first[key]), key
    changed = {key for key in tuned if not torch.equal(tuned[key], trained[key])}
    assert changed == {"head.rows.0", "head.rows.1"}


@pytest.mark.parametrize("name", ["lucir", "podnet"])
def test_the_tuning_sees_as_many_images_of_every_class(name: str, setting: Setting, stream: Stream) -> None:
    learner, task = started(name, setting, stream)
    train, balance = list(learner.stages(task))
    assert train.indices.tolist() == task.train_plus.tolist()
    counts = setting.images.labels[balance.indices].bincount().tolist()
    assert counts == [3, 3, 3, 3]  # of a memory of 12
    old = set(balance.indices.tolist()) - set(task.step.train.tolist())
    assert old <= set(task.memory.indices.tolist())
    assert balance.indices.tolist() == learner.remember(task).indices.tolist()
