"""LwF and EWC: their losses, EWC's importance, and no old images."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.ewc import EWC
from opencil.cil.learner import Learner, Setting, Task
from opencil.cil.lwf import LwF
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.feed import ImageFeed, augmented_loss
from tests.cil.common import batch_of, begun


@pytest.mark.parametrize("learner", [LwF(epochs=1), EWC(epochs=1)], ids=["lwf", "ewc"])
def test_old_images_are_neither_seen_nor_kept(learner: Learner, setting: Setting, stream: Stream) -> None:
    task = begun(learner, setting, stream, 2)
    (stage,) = learner.stages(task)  # type: ignore[misc]
    assert stage.indices.tolist() == stream[1].train.tolist()
    assert len(learner.remember(task).indices) == 0
    assert not learner.remembers
    assert not learner.revisits


def test_lwfs_loss_equals_its_definition(setting: Setting, stream: Stream) -> None:
    learner = LwF(epochs=1)
    task = begun(learner, setting, stream, 2)
    (images, labels), model = batch_of(task), task.model.eval()
    logits, before = model(images).detach().double(), task.previous.eval()(images).detach().double()
    total = 0.0
    for z, old, label in zip(logits, before, labels.tolist(), strict=True):
        total -= float(torch.log_softmax(z[2:], 0)[label - 2])
        total -= 3 * float((torch.softmax(old / 2, 0) * torch.log_softmax(z[:2] / 2, 0)).sum())
    assert next(learner.stages(task)).loss(images, labels).item() == pytest.approx(
        total / len(labels), rel=1e-5
    )


def naive_importance(task: Task, most: float) -> dict[str, Tensor]:
    """Squared gradients by parameter's name, batch after batch."""
    setting, probe = task.setting, copy.deepcopy(task.model).train()
    seed = (setting.data_seed, "step", task.step.number, "importance")
    feed = ImageFeed(setting.images, setting.transform, task.step.train, setting.batch_size, seed)
    loss = augmented_loss(lambda x, y: F.cross_entropy(probe(x), y), setting.transform)
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
    """Clipped, and averaged with the importance of the step before, except for new classes."""
    learner = EWC(epochs=1)
    first = begun(learner, setting, stream, 1)
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


def test_ewcs_loss_equals_its_definition(setting: Setting, stream: Stream) -> None:
    learner = EWC(epochs=1, weight=1e5)
    task = begun(learner, setting, stream, 2)
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
