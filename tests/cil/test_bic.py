"""BiC: the correction, the held-out images, the parameters that train in each stage."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opencil
from opencil.cil.bic import BiC, CorrectedModel
from opencil.cil.learner import Setting, Task, distillation
from opencil.data.images import ImageSet
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.feed import epoch_order
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import generator
from opencil.errors import BadInput
from opencil.nets.resnet import resnet8
from tests.cil.common import begun, state

SHORT = BiC(train=Schedule(epochs=1, lr=0.05), correct=Schedule(epochs=2, lr=0.05), held_out=0.4)


@pytest.fixture
def corrected(setting: Setting, stream: Stream) -> Task:
    """Step 2 after a trained step 1."""
    return begun(SHORT, setting, stream)


def test_every_steps_logits_are_scaled_and_shifted() -> None:
    model = CorrectedModel(resnet8(), [2, 3])
    with torch.no_grad():
        for correction, alpha, beta in zip(model.corrections, (2.0, 0.5), (1.0, -3.0), strict=True):
            correction.alpha.fill_(alpha)
            correction.beta.fill_(beta)
    features = torch.rand(4, 64)
    raw = features @ model.head.weight.T + model.head.bias
    raw, corrected = raw.detach(), model.classify(features).detach()
    for i in range(4):
        for c in range(5):
            alpha, beta = (2.0, 1.0) if c < 2 else (0.5, -3.0)
            assert float(corrected[i, c]) == pytest.approx(
                float(raw[i, c]) * alpha + beta, rel=1e-4, abs=1e-5
            )


def task_of(labels: Tensor, memory: Memory, old: int, *, number: int = 2, seed: int = 0) -> Task:
    """Return a task of all images with these labels, with the attributes that ``split`` reads."""

    class Numbers:
        data_seed = seed
        images = ImageSet("labels", torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), labels)

    Numbers.number, Numbers.old, Numbers.seen = number, old, int(labels.max()) + 1  # type: ignore[attr-defined]
    return Task(Numbers, Numbers, memory, None, None, torch.arange(len(labels)))  # type: ignore[arg-type]


def test_held_out_images_depend_on_the_step_and_the_seed() -> None:
    """Of the same images: else an exemplar that was held out once would be so at every step."""
    labels = torch.arange(4).repeat_interleave(20)

    def held_out(number: int, seed: int) -> tuple[int, ...]:
        return tuple(BiC().split(task_of(labels, Memory(40), 2, number=number, seed=seed))[1].tolist())

    drawn = [held_out(*at) for at in [(2, 0), (3, 0), (2, 1)]]
    assert [len(chosen) for chosen in drawn] == [8] * 3, "a tenth of 40 / 2, of each of 4 classes"
    assert len(set(drawn)) == 3
    _, of_fixed = BiC().split(task_of(labels, Memory(0, fixed=20), 2))
    assert len(of_fixed) == 8, "a tenth of 20, of each class"
    assert drawn[0] == held_out(2, 0) == (7, 8, 20, 36, 47, 49, 72, 76), "as stored runs have it"


def test_a_class_needs_two_images_of_which_one_is_held_out() -> None:
    labels = torch.tensor([0, 1]).repeat_interleave(torch.tensor([2, 30]))
    _, held_out = BiC(held_out=0.9).split(task_of(labels, Memory(30), 1))
    assert labels[held_out].tolist() == [0, 1]
    with pytest.raises(BadInput, match=r"^memory = 30"):
        BiC().split(task_of(labels[1:], Memory(30), 1))
    with pytest.raises(BadInput, match=r"^memory_per_class = 1 "):
        BiC().split(task_of(labels[1:], Memory(30, fixed=1), 1))


def test_stage_one_distils_and_changes_no_correction(corrected: Task) -> None:
    stages = SHORT.stages(corrected)
    stage = next(stages)
    trained = {name for name, p in corrected.model.named_parameters() if p.requires_grad}
    assert not any("corrections" in name for name in trained)
    assert {"head.weight", "head.bias", "backbone.stem.0.weight"} <= trained
    corrected.model.eval()
    images = corrected.setting.transform.test(corrected.setting.images.images[stage.indices])
    labels = corrected.setting.images.labels[stage.indices]
    logits = corrected.model(images)
    expected = 0.5 * F.cross_entropy(logits, labels) + 0.5 * distillation(
        logits, corrected.teacher(images), 2
    )
    torch.testing.assert_close(stage.loss(images, labels), expected)


def test_stage_two_moves_the_newest_correction_and_nothing_else(corrected: Task) -> None:
    model, seen = corrected.model, {}
    for progress in SHORT.learn(corrected):
        if progress.stage == "train":
            seen["before"] = state(model)
        else:
            assert [m for m in model.modules() if m.training] == [model.corrections[-1]]
    after = state(model)
    changed = {name for name in after if not torch.equal(after[name], seen["before"][name])}
    assert changed == {"corrections.1.alpha", "corrections.1.beta"}


def test_as_released_the_correction_is_fitted_as_a_naive_loop_does(setting: Setting, stream: Stream) -> None:
    """CE of softmax outputs, batch norm in training mode, decay of α and β, and a ragged last batch."""
    learner = opencil.create_learner(
        "bic@released",
        train={"epochs": 1, "milestones": ()},
        correct={"epochs": 3, "lr": 0.05, "milestones": ()},
        held_out=0.4,
    )
    setting = replace(setting, batch_size=5)
    task = begun(learner, setting, stream)
    for progress in learner.learn(task):
        if progress.stage == "train" and progress.epoch_ends:
            naive = copy.deepcopy(task.model)
    _, held_out = learner.split(task)
    size, transform = setting.batch_size, setting.transform
    assert len(held_out) % size, "the last batch is smaller"
    newest = naive.requires_grad_(False).corrections[-1].requires_grad_(True)
    optimiser = torch.optim.SGD(newest.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-4)
    naive.train()
    seed = (setting.data_seed, "step", task.step.number, "correct")
    for epoch in range(3):
        order = held_out[epoch_order(len(held_out), len(held_out), epoch, seed)]
        drawn = transform.draw(len(order), setting.images.side, generator(*seed, "augment", epoch))
        for start in range(0, len(order), size):
            rows = slice(start, start + size)
            images = transform.train(setting.images.images[order[rows]], [part[rows] for part in drawn])
            chances = F.softmax(naive(images), dim=1)
            optimiser.zero_grad()
            F.cross_entropy(chances, setting.images.labels[order[rows]]).backward()
            optimiser.step()
    for name, tensor in task.model.state_dict().items():
        torch.testing.assert_close(tensor, naive.state_dict()[name], msg=name)
