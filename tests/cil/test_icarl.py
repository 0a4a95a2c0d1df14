"""iCaRL: its values, its loss, its frozen teacher."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from opencil.cil.icarl import ICaRL
from opencil.cil.learner import Setting, Task
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.forward import forward
from opencil.engine.loop import Diverged, Stage
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.registry import LEARNERS


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


def batch_of(task: Task) -> tuple[Tensor, Tensor]:
    images = task.setting.images
    return task.setting.transform.test(images.images[task.train_plus]), images.labels[task.train_plus]


@pytest.mark.parametrize(
    ("values", "first", "later"),
    [
        ({"epochs": 20}, (20, (6, 12, 17)), (20, (9, 14))),
        ({"epochs_scale": 0.1}, (20, (6, 12, 17)), (17, (8, 12))),
        ({"epochs_scale": 1.0}, (200, (60, 120, 170)), (170, (80, 120))),
    ],
)
def test_epochs_can_be_set_in_one_word(
    values: dict[str, Any], first: tuple[int, tuple[int, ...]], later: tuple[int, tuple[int, ...]]
) -> None:
    for learner in (ICaRL(**values), LEARNERS.create("icarl", **values)):
        assert (learner.first.epochs, learner.first.milestones) == first
        assert (learner.later.epochs, learner.later.milestones) == later
        assert (learner.first.lr, learner.first.weight_decay, learner.later.weight_decay) == (0.1, 5e-4, 2e-4)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epochs": 0}, r"icarl\.epochs = 0 is not allowed"),
        ({"temperature": -1.0}, r"icarl\.temperature = -1.0 is not allowed"),
        ({"temprature": 1.0}, r"icarl\.temprature = 1.0 is unknown.*did you mean 'temperature'"),
        ({"first": {"epochs": 5, "milestones": [7]}}, r"icarl\.first\.milestones = \[7\]"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        LEARNERS.create("icarl", **values)


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


def test_the_temperature_is_used(second: Task) -> None:
    images, labels = batch_of(second)
    second.model.eval()
    (warm,), (cold,) = (list(ICaRL(temperature=t).stages(second)) for t in (2.0, 0.5))
    assert warm.loss(images, labels).item() != pytest.approx(cold.loss(images, labels).item(), rel=1e-3)


def test_the_loss_gives_the_teacher_no_gradient(second: Task) -> None:
    assert second.teacher is not None
    second.teacher.requires_grad_(True).zero_grad()
    only_stage(second).loss(*batch_of(second)).backward()
    assert all(p.grad is None for p in second.teacher.parameters())
    assert all(p.grad is not None for p in second.model.parameters())


def test_the_teacher_does_not_change_while_the_model_learns(second: Task) -> None:
    assert second.teacher is not None
    teacher, model = (
        {name: tensor.clone() for name, tensor in m.state_dict().items()}
        for m in (second.teacher, second.model)
    )
    for _ in ICaRL(epochs=2).learn(second):
        assert not second.teacher.training
    for name, tensor in second.teacher.state_dict().items():  # batch-norm statistics among them
        assert torch.equal(tensor, teacher[name]), name
    assert not torch.equal(
        second.model.state_dict()["backbone.stem.0.weight"], model["backbone.stem.0.weight"]
    )
    assert not torch.equal(
        second.model.state_dict()["backbone.stem.1.running_mean"], model["backbone.stem.1.running_mean"]
    )


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


def test_a_schedule_that_diverges_is_named(first: Task) -> None:
    with pytest.raises(Diverged, match=r"^ICaRL, step 1: the loss is .* stage 'train'.*learning rate 1e\+30"):
        list(ICaRL(first=Schedule(epochs=20, lr=1e30)).learn(first))


def test_it_learns_and_distillation_keeps_the_old_classes(setting: Setting, stream: Stream) -> None:
    """Not luck: after three steps every class, old ones too, is told apart well above chance (.2)."""
    learner, memory, model = ICaRL(epochs=12), Memory(15), None
    for step in stream:
        task = learner.begin(setting, step, memory, model)
        list(learner.learn(task))
        memory, model = learner.remember(task), task.model
    with torch.no_grad():
        predicted = task.model(setting.transform.test(stream.test.images)).argmax(dim=1)
    correct = predicted == stream.test.labels
    old = stream.test.labels < 4
    assert float(correct[old].float().mean()) > 0.6
