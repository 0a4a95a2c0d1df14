"""WA: the alignment, the weights of its loss."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from opencil.cil.learner import Setting, Task, distillation
from opencil.cil.wa import WA, align
from opencil.data.stream import Stream
from opencil.engine.schedule import Schedule
from opencil.nets.model import Head


def test_alignment_scales_the_new_rows_to_the_old_ones_mean_norm() -> None:
    head = Head(4, 5)
    weight, bias = torch.randn(5, 4), torch.randn(5)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
    align(head, old=3)
    norms = [float(sum(w * w for w in row) ** 0.5) for row in weight.double()]
    ratio = (sum(norms[:3]) / 3) / (sum(norms[3:]) / 2)
    assert torch.equal(head.weight[:3], weight[:3])
    assert torch.equal(head.bias, bias)
    torch.testing.assert_close(head.weight[3:].detach(), weight[3:] * ratio)


def test_loss_weighs_distillation_by_the_share_of_old_classes(second: Task) -> None:
    stage = next(WA().stages(second))
    assert stage.schedule == Schedule(epochs=170, lr=0.1, milestones=(60, 100, 140), weight_decay=2e-4)
    second.model.eval()
    indices = second.train_plus
    images = second.setting.transform.test(second.setting.images.images[indices])
    labels = second.setting.images.labels[indices]
    logits = second.model(images)
    share = 2 / 4
    expected = (1 - share) * F.cross_entropy(logits, labels) + share * distillation(
        logits, second.teacher(images), 2
    )
    torch.testing.assert_close(stage.loss(images, labels), expected)


def test_only_steps_after_the_first_are_aligned(setting: Setting, stream: Stream, second: Task) -> None:
    """Norms are equal after a step ≥ 2, and are left as trained after step 1."""
    short = Schedule(epochs=1, lr=0.05)
    learner = WA(first=short, later=short)
    list(learner.learn(second))
    norms = second.model.head.weight.detach().norm(dim=1)
    assert float(norms[:2].mean()) == pytest.approx(float(norms[2:].mean()), rel=1e-5)
    wide = replace(stream[0])
    task = learner.begin(setting, wide, second.memory, None)
    before = task.model.head.weight.detach().clone()
    for stage in learner.stages(task):  # advanced without training
        assert stage.schedule == short
    assert torch.equal(task.model.head.weight, before)
