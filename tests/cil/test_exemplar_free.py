"""LwF and EWC: their losses, what EWC measures, and that neither sees an old image."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.ewc import EWC
from opencil.cil.learner import Learner, Setting, Task, distillation
from opencil.cil.lwf import LwF
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.checkpoint import Checkpoint
from opencil.engine.feed import ImageFeed, augmented
from opencil.engine.turns import taking_turns

Batch = Callable[[Task], tuple[Tensor, Tensor]]


def step(learner: Learner, setting: Setting, stream: Stream, number: int, previous: Any = None) -> Task:
    """A step that is not trained yet, after those that are."""
    for earlier in stream[: number - 1]:
        task = learner.begin(setting, earlier, Memory(12), previous)
        list(learner.learn(task))
        previous = task.model
    return learner.begin(setting, stream[number - 1], Memory(12), previous)


@pytest.mark.parametrize("learner", [LwF(epochs=1), EWC(epochs=1)], ids=["lwf", "ewc"])
def test_old_images_are_neither_seen_nor_kept(learner: Learner, setting: Setting, stream: Stream) -> None:
    task = step(learner, setting, stream, 2)
    (stage,) = learner.stages(task)  # type: ignore[misc]
    assert stage.indices.tolist() == stream[1].train.tolist()
    assert len(learner.remember(task).indices) == 0
    assert not learner.remembers
    assert not learner.revisits


def test_lwfs_loss_equals_its_definition(setting: Setting, stream: Stream, batch_of: Batch) -> None:
    learner = LwF(epochs=1)
    task = step(learner, setting, stream, 2)
    (images, labels), model = batch_of(task), task.model.eval()
    logits, before = model(images).detach().double(), task.previous.eval()(images).detach().double()
    total = 0.0
    for z, old, label in zip(logits, before, labels.tolist(), strict=True):
        total -= float(torch.log_softmax(z[2:], 0)[label - 2])
        total -= 3 * float((torch.softmax(old / 2, 0) * torch.log_softmax(z[:2] / 2, 0)).sum())
    assert next(learner.stages(task)).loss(images, labels).item() == pytest.approx(
        total / len(labels), rel=1e-5
    )


def test_lwf_forgets_less_the_more_it_distils(setting: Setting, stream: Stream) -> None:
    """Measured by what it holds on to: the previous model's answers on the new images."""

    def apart(weight: float) -> float:
        learner = LwF(epochs=8, weight=weight)
        task = step(learner, setting, stream, 2)
        list(learner.learn(task))
        images = setting.transform.test(stream.train.images[stream[1].train])
        before = task.teacher(images)
        found = distillation(task.model.eval()(images), before, 2.0)
        return (found - distillation(before, before, 2.0)).item()

    assert apart(3.0) < 0.5 * apart(0.0)


def naive_importance(task: Task, most: float) -> dict[str, Tensor]:
    """Squared gradients by parameter's name, batch after batch."""
    setting, probe = task.setting, copy.deepcopy(task.model).train()
    seed = (setting.data_seed, "step", task.step.number, "importance")
    feed = ImageFeed(setting.images, setting.transform, task.step.train, setting.batch_size, seed)
    loss = augmented(lambda x, y: F.cross_entropy(probe(x), y), setting.transform)
    found = {name: torch.zeros_like(p) for name, p in probe.named_parameters()}
    for batch in feed.epoch(0):
        probe.zero_grad()
        loss(*batch).backward()
        for name, p in probe.named_parameters():
            found[name] += p.grad.square()
    return {name: (total / feed.iterations).clamp(max=most) for name, total in found.items()}


def named(row: Tensor, task: Task, classes: int) -> dict[str, Tensor]:
    """A buffer of EWC's, cut into the parameters that it is of."""
    found, start = {}, 0
    for name, p in task.model.backbone.named_parameters():
        found[f"backbone.{name}"] = row[start : start + p.numel()].view_as(p)
        start += p.numel()
    of_head = row[start:].view(classes, 65)
    return found | {"head.weight": of_head[:, :64], "head.bias": of_head[:, 64]}


def test_ewc_measures_squared_gradients_of_batches(setting: Setting, stream: Stream) -> None:
    """Clipped; of old classes and of all that is no class's, merged with what mattered before."""
    learner = EWC(epochs=1)
    first = step(learner, setting, stream, 1)
    list(learner.learn(first))
    before = named(first.model.importance, first, 2)
    for name, expected in naive_importance(first, 1e-4).items():
        torch.testing.assert_close(before[name], expected, rtol=1e-4, atol=1e-9)
    assert float(first.model.importance.max()) == pytest.approx(1e-4), "some are clipped"
    assert float(first.model.importance.min()) < 1e-5

    second = learner.begin(setting, stream[1], Memory(12), first.model)
    list(learner.learn(second))
    found, anchor = (named(row, second, 4) for row in (second.model.importance, second.model.anchor))
    for name, new in naive_importance(second, 1e-4).items():
        rows = slice(2) if name.startswith("head") else slice(None)
        new[rows] = 2 / 4 * before[name] + (1 - 2 / 4) * new[rows]
        torch.testing.assert_close(found[name], new, rtol=1e-4, atol=1e-9)
    for name, p in second.model.named_parameters():
        assert torch.equal(anchor[name], p)


def test_ewcs_loss_equals_its_definition(setting: Setting, stream: Stream, batch_of: Batch) -> None:
    learner = EWC(epochs=1, weight=1e5)
    task = step(learner, setting, stream, 2)
    (images, labels), model = batch_of(task), task.model.eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.003
    importance, anchor = (named(row, task, 2) for row in (model.importance, model.anchor))
    penalty = 0.0
    for name, p in model.named_parameters():
        kept = p[: len(anchor[name])].detach().double()
        penalty += float((importance[name].double() * (kept - anchor[name].double()) ** 2).sum()) / 2
    expected = F.cross_entropy(model(images)[:, 2:], labels - 2).item() + 1e5 * penalty
    assert 1e5 * penalty > 0.1 * expected
    assert next(learner.stages(task)).loss(images, labels).item() == pytest.approx(expected, rel=1e-4)


def test_ewc_holds_what_matters_where_it_was(setting: Setting, stream: Stream) -> None:
    def moved(weight: float) -> float:
        learner = EWC(epochs=6, weight=weight)
        task = step(learner, setting, stream, 2)
        importance, anchor = task.model.importance, task.model.anchor
        list(learner.learn(task))
        now = task.model.anchor[: len(anchor)]  # where it is after the step
        return float((importance * (now - anchor).square()).sum())

    assert moved(1e5) < 0.3 * moved(0.0)


def test_measuring_leaves_the_model_as_it_was_trained(setting: Setting, stream: Stream) -> None:
    """Its batch norm too, though measuring is done in training mode."""
    learner, turns = EWC(epochs=1), list[int]()
    task = step(learner, setting, stream, 1)
    for _ in learner.learn(task):
        before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    with taking_turns(lambda: turns.append(1)):
        learner.measured(task)
    assert len(turns) == 2, "others go on after each batch"
    kept = ("anchor", "importance")
    assert all(torch.equal(t, before[n]) for n, t in task.model.state_dict().items() if n not in kept)
    assert not any(torch.equal(task.model.state_dict()[n], before[n]) for n in kept)
    assert not task.model.training


def test_ewc_goes_on_as_if_it_had_not_been_stopped(setting: Setting, stream: Stream) -> None:
    """Also where what matters was still to be measured: the step after it is the same."""
    learner = EWC(epochs=2)
    whole, stored = step(learner, setting, stream, 2), []
    previous = copy.deepcopy(whole.previous)
    for progress in learner.learn(whole):
        if progress.epoch_ends:
            taken = Checkpoint.take(whole.model, progress, whole.ended).tensors()
            stored.append({key: tensor.clone() for key, tensor in taken.items()})

    def third(model: Any) -> dict[str, Tensor]:
        task = learner.begin(setting, stream[2], Memory(12), model)
        list(learner.learn(task))
        return task.model.state_dict()

    expected = third(whole.model)
    assert len(stored) == 2
    for tensors in stored:
        task = learner.begin(setting, stream[1], Memory(12), previous)
        list(learner.learn(task, Checkpoint.from_tensors(tensors)))
        found = third(task.model)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
