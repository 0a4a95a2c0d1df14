"""SS-IL and ER-ACE: which classes an image competes with."""

import pytest
import torch
from torch import Tensor

from opencil.cil.er_ace import ERACE
from opencil.cil.learner import Learner, Task
from opencil.cil.ss_il import SSIL
from opencil.data.stream import Stream
from tests.cil.common import batch_of


@pytest.fixture
def third(second: Task, stream: Stream) -> Task:
    """Step 3 after two trained ones, so that there are two earlier tasks; one class is new."""
    learner = SSIL(epochs=1)
    list(learner.learn(second))
    return learner.begin(second.setting, stream[2], learner.remember(second), second.model)


def loss_of(learner: Learner, task: Task, images: Tensor, labels: Tensor) -> Tensor:
    (stage,) = learner.stages(task)  # type: ignore[misc]
    return stage.loss(images, labels, labels < task.step.old)


def ce(logits: Tensor, label: int) -> float:
    return -float(torch.log_softmax(logits.double(), 0)[label])


def test_ssils_loss_equals_its_definition(third: Task) -> None:
    """Tasks of 2 and 2 classes before one of 1; 12 images of the memory, 8 new ones."""
    (images, labels), model = batch_of(third), third.model.eval()
    with torch.no_grad():  # as long as it answers as the teacher does, nothing is distilled
        model.head.weight.mul_(1.5)
    logits, before = model(images).detach(), third.previous.eval()(images).detach().double()
    assert labels.bincount().tolist() == [3, 3, 3, 3, 8]
    total = distilled = 0.0
    for z, old, label in zip(logits, before, labels.tolist(), strict=True):
        each = ce(z[:4], label) if label < 4 else ce(z[4:], label - 4)
        share = 0.2 / 12 if label < 4 else 0.8 / 8
        for task in (slice(0, 2), slice(2, 4)):
            p, q = torch.softmax(old[task] / 3, 0), torch.softmax(z[task].double() / 3, 0)
            apart = 9 * float((p * (p / q).log()).sum())
            each, distilled = each + apart, distilled + share * apart
        # A fifth of the loss is the memory's, as if 4 new images had come with each of its own.
        total += each * share
    found = loss_of(SSIL(temperature=3.0), third, images, labels)
    assert found.item() == pytest.approx(total, rel=1e-4)
    assert distilled > 0.02 * total, "enough of it to see its weight"


def test_eraces_loss_equals_its_definition(second: Task) -> None:
    (images, labels), model = batch_of(second), second.model.eval()
    logits = model(images).detach()
    among_new = [ce(z[2:], int(y) - 2) for z, y in zip(logits, labels, strict=True) if y >= 2]
    by_class: list[list[float]] = [[] for _ in range(4)]
    for z, y in zip(logits, labels.tolist(), strict=True):
        by_class[y].append(ce(z, y))
    expected = sum(among_new) / 16 + sum(sum(each) / len(each) for each in by_class) / 4
    assert loss_of(ERACE(), second, images, labels).item() == pytest.approx(expected, rel=1e-4)
