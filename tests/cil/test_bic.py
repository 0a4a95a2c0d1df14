"""BiC: the correction, the held-out images, what trains when."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.bic import BiC, CorrectedModel, Correction
from opencil.cil.learner import Setting, Task, distillation
from opencil.data.images import ImageSet
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.nets.resnet import resnet8
from opencil.registry import LEARNERS

SHORT = BiC(train=Schedule(epochs=1, lr=0.05), correct=Schedule(epochs=2, lr=0.05), held_out=0.4)


@pytest.fixture
def corrected(setting: Setting, stream: Stream) -> Task:
    """Step 2 after a trained step 1."""
    task = SHORT.begin(setting, stream[0], Memory(12), None)
    list(SHORT.learn(task))
    return SHORT.begin(setting, stream[1], SHORT.remember(task), task.model)


def state(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


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


def test_a_correction_is_not_rounded_to_bfloat16() -> None:
    """10.03 lies between the bfloat16 numbers 10 and 10.0625; 1.003 between 1 and 1.0078."""
    correction = Correction(1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        correction.alpha.fill_(1.003)
        correction.beta.fill_(0.001)
        corrected = correction(torch.tensor([[10.0]], dtype=torch.bfloat16))
    assert float(corrected) == pytest.approx(10.031, rel=1e-6)


def test_growing_adds_a_correction_that_does_nothing() -> None:
    model = CorrectedModel(resnet8(), [2])
    with torch.no_grad():
        model.corrections[0].alpha.fill_(3.0)
    before = state(model)
    model.grow(5)
    after = state(model)
    assert [c.classes for c in model.corrections] == [2, 3]
    assert (float(after["corrections.1.alpha"]), float(after["corrections.1.beta"])) == (1.0, 0.0)
    assert float(after["corrections.0.alpha"]) == 3.0
    assert torch.equal(after["head.weight"][:2], before["head.weight"])


def task_of(labels: Tensor, memory: Memory, old: int, *, number: int = 2, seed: int = 0) -> Task:
    """One of all images that have these labels, with what ``split`` reads of a step and a setting."""

    class Numbers:
        data_seed = seed
        images = ImageSet("labels", torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), labels)

    Numbers.number, Numbers.old, Numbers.seen = number, old, int(labels.max()) + 1  # type: ignore[attr-defined]
    return Task(Numbers, Numbers, memory, None, None, torch.arange(len(labels)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "count"), list(zip(range(10, 100, 10), (20, 10, 6, 5, 4, 3, 2, 2, 2), strict=True))
)
def test_held_out_images_per_class_at_k_10(old: int, count: int) -> None:
    """CIFAR-100's sizes: 500 images of each new class, floor(2000/old) of each old one."""
    quota = 2000 // old
    labels = torch.cat(
        [torch.arange(old).repeat_interleave(quota), torch.arange(old, old + 10).repeat_interleave(500)]
    )
    kept, held_out = BiC().split(task_of(labels, Memory(2000), old))
    assert labels[held_out].bincount().tolist() == [count] * (old + 10)
    assert sorted(torch.cat([kept, held_out]).tolist()) == list(range(len(labels)))


def test_what_is_held_out_depends_on_the_step_and_the_seed() -> None:
    """Of the same images: else an exemplar that was held out once would be so at every step."""
    labels = torch.arange(4).repeat_interleave(20)

    def held_out(number: int, seed: int) -> tuple[int, ...]:
        return tuple(BiC().split(task_of(labels, Memory(40), 2, number=number, seed=seed))[1].tolist())

    drawn = [held_out(*at) for at in [(2, 0), (3, 0), (2, 1)]]
    assert [len(chosen) for chosen in drawn] == [8] * 3, "a tenth of 40 / 2, of each of 4 classes"
    assert len(set(drawn)) == 3
    assert drawn[0] == held_out(2, 0) == (7, 8, 20, 36, 47, 49, 72, 76), "as stored runs have it"


def test_a_class_of_two_images_has_one_of_them_held_out_and_one_alone_is_refused() -> None:
    labels = torch.tensor([0, 1]).repeat_interleave(torch.tensor([2, 30]))
    _, held_out = BiC(held_out=0.9).split(task_of(labels, Memory(30), 1))
    assert labels[held_out].tolist() == [0, 1]
    with pytest.raises(BadInput, match=r"^memory = 30 is too small for BiC: 2 images of every class"):
        BiC().split(task_of(labels[1:], Memory(30), 1))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_none_or_all_cannot_be_held_out(share: float) -> None:
    with pytest.raises(BadInput, match="held_out"):
        LEARNERS.create("bic", held_out=share)


def test_stage_one_distils_and_leaves_all_corrections_alone(corrected: Task) -> None:
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


def test_no_correction_is_fitted_at_step_one(setting: Setting, stream: Stream) -> None:
    task = SHORT.begin(setting, stream[0], Memory(12), None)
    assert {p.stage for p in SHORT.learn(task)} == {"train"}
    assert float(task.model.corrections[0].alpha) == 1.0


def test_the_teacher_keeps_its_corrections(corrected: Task, setting: Setting, stream: Stream) -> None:
    list(SHORT.learn(corrected))
    third = SHORT.begin(setting, stream[2], SHORT.remember(corrected), corrected.model)
    assert third.teacher.corrections[1].alpha.item() == corrected.model.corrections[1].alpha.item() != 1.0
    assert len(third.model.corrections) == 3
    before = state(third.teacher)
    for progress in SHORT.learn(third):
        if progress.stage == "correct":
            trained = {name for name, p in third.model.named_parameters() if p.requires_grad}
            assert trained == {"corrections.2.alpha", "corrections.2.beta"}, "nobody uses other gradients"
    assert all(torch.equal(t, before[name]) for name, t in third.teacher.state_dict().items())


def test_an_extra_head_has_corrections_that_are_not_trained() -> None:
    model = CorrectedModel(resnet8(), [2, 3])
    with torch.no_grad():
        for correction, alpha, beta in zip(model.corrections, (2.0, 0.5), (1.0, -3.0), strict=True):
            correction.alpha.fill_(alpha)
            correction.beta.fill_(beta)
    features, before = torch.rand(4, 64), state(model)
    extra = model.extra_head()
    assert torch.equal(extra(features), model.classify(features))
    trained = [p for p in extra.parameters() if p.requires_grad]
    assert sorted(tuple(p.shape) for p in trained) == [(5,), (5, 64)]
    with torch.no_grad():
        for p in extra.parameters():  # the copies of α and β too
            p.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
