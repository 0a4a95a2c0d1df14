"""LUCIR: its losses, what trains in which stage, the balanced images."""

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import Setting, Task
from opencil.cil.lucir import LUCIR, margins
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.registry import LEARNERS


def begun(name: str, setting: Setting, stream: Stream) -> tuple[LUCIR, Task]:
    """Step 2, not trained yet, after a short step 1."""
    learner = LEARNERS.create(name, epochs=2)
    first = learner.begin(setting, stream[0], Memory(12), None)
    list(learner.learn(first))
    return learner, learner.begin(setting, stream[1], learner.remember(first), first.model)


def batch_of(task: Task) -> tuple[Tensor, Tensor]:
    images = task.setting.images
    return task.setting.transform.test(images.images[task.train_plus]), images.labels[task.train_plus]


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
    assert float(margins(cosines, torch.tensor(labels), 2, 0.5, 2)) == pytest.approx(expected)
    assert (expected > 0) == (min(labels) < 2)


def test_margins_pull_exemplars_to_their_class_and_from_new_ones() -> None:
    cosines = torch.tensor([[0.2, 0.1, 0.3, 0.0]], requires_grad=True)
    margins(cosines, torch.tensor([0]), 2, 0.5, 1).backward()
    assert cosines.grad is not None
    assert cosines.grad.tolist() == [[-1, 0, 1, 0]]


def test_the_loss_of_later_steps_equals_its_definition(setting: Setting, stream: Stream) -> None:
    learner, task = begun("lucir", setting, stream)
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


@pytest.mark.parametrize(("old", "new"), [(1, 4), (8, 2)])
def test_features_are_held_the_more_the_more_classes_are_old(
    old: int, new: int, setting: Setting, stream: Stream
) -> None:
    learner, task = begun("lucir", setting, stream)
    images, _ = batch_of(task)
    task.model.backbone.stem[0].weight.data.add_(0.01)
    task.model.eval()
    _, plain = learner.retention(task, images)
    task.step = replace(task.step, sizes=(old, new))
    _, cost = learner.retention(task, images)
    assert (cost / plain).item() == pytest.approx(math.sqrt(old / new), rel=1e-5)


@pytest.mark.parametrize("name", ["lucir", "podnet"])
def test_old_rows_stay_in_the_training_and_all_rows_alone_are_tuned(
    name: str, setting: Setting, stream: Stream
) -> None:
    learner, task = begun(name, setting, stream)
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
    learner, task = begun(name, setting, stream)
    train, balance = list(learner.stages(task))
    assert train.indices.tolist() == task.train_plus.tolist()
    counts = setting.images.labels[balance.indices].bincount().tolist()
    assert counts == [3, 3, 3, 3]  # of a memory of 12
    old = set(balance.indices.tolist()) - set(task.step.train.tolist())
    assert old <= set(task.memory.indices.tolist())
    assert balance.indices.tolist() == learner.remember(task).indices.tolist()


@pytest.mark.parametrize("name", ["lucir", "podnet"])
def test_new_rows_are_imprinted_before_they_train(name: str, setting: Setting, stream: Stream) -> None:
    learner, task = begun(name, setting, stream)
    drawn = task.model.head.rows[1].clone()
    next(iter(learner.stages(task)))
    assert not torch.equal(task.model.head.rows[1], drawn)
    outputs = task.outputs(stream[1].train)
    right = outputs.logits.argmax(dim=1) == setting.images.labels[stream[1].train]
    assert float(right.float().mean()) > 0.8


def test_everything_can_be_tuned_but_old_rows(setting: Setting, stream: Stream) -> None:
    learner, task = begun("podnet@pycil", setting, stream)
    assert learner.tunes == "all"
    before = {key: tensor.clone() for key, tensor in task.model.state_dict().items()}
    stages = learner.stages(task)
    next(stages)
    balance = next(stages)
    assert balance.module is task.model
    list(learner.learn(task))
    after = task.model.state_dict()
    assert torch.equal(after["head.rows.0"], before["head.rows.0"])


@pytest.mark.parametrize("new", [1, 3])
def test_an_old_class_has_as_many_rivals_as_there_are_and_no_more_than_asked(new: int) -> None:
    cosines, labels = torch.linspace(-1, 1, 4 * (2 + new)).view(4, -1).sin(), torch.tensor([0, 1, 0, 2])
    task = SimpleNamespace(
        first=False, model=Mock(head=Mock(scale=3.0)), step=SimpleNamespace(new=new, old=2)
    )
    found = LUCIR().classification(task, cosines, labels)  # type: ignore[arg-type]
    expected = F.cross_entropy(3 * cosines, labels) + naive_margins(cosines, labels, 2, 0.5, min(2, new))
    torch.testing.assert_close(found, expected)
