"""FOSTER: class weights, the parameters that train in each stage, both models."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from opencil.cil.foster import FOSTER, BoostedModel, class_weights
from opencil.cil.learner import Setting, Task, distillation
from opencil.data.stream import Stream
from opencil.engine.forward import forward
from opencil.engine.schedule import Schedule
from tests.cil.common import batch_of, begun, same, state

_ONE = Schedule(epochs=1, lr=0.05, decay="cosine")
SHORT = FOSTER(first=_ONE, boost=_ONE, compress=_ONE)


@pytest.fixture
def boosted(setting: Setting, stream: Stream) -> Task:
    """Step 2 after a trained step 1, not trained yet."""
    return begun(SHORT, setting, stream)


def parts(names: set[str]) -> set[str]:
    """The submodules that parameters belong to."""
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("beta", [0.96, 0.97])
def test_class_weights_equal_the_naive_formula(beta: float) -> None:
    counts = [20, 20, 500, 37]
    raw = [(1 - beta) / (1 - beta**n) for n in counts]
    expected = [w / (sum(raw) / len(raw)) for w in raw]
    found = class_weights(torch.tensor(counts), beta)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert float(found.mean()) == pytest.approx(1, rel=1e-6)


def test_the_boosted_model_starts_as_the_old_one(boosted: Task) -> None:
    model, old = boosted.model, boosted.teacher
    assert isinstance(model, BoostedModel)
    assert model.head.weight.shape == (4, 128)
    assert torch.equal(model.head.weight[:2, :64], old.head.weight)
    assert torch.equal(model.head.bias[:2], old.head.bias)
    for copy in (model.backbone, model.base.backbone, model.student.backbone):
        assert same(state(copy), state(old.backbone))
    assert torch.equal(model.student.head.weight[:2], old.head.weight)
    assert model.student.head.out_features == 4


def test_boosting_loss_equals_its_definition(boosted: Task) -> None:
    stage = next(SHORT.stages(boosted))
    model = boosted.model.eval()
    images, labels = batch_of(boosted)
    old = model.base.features(images)
    new = model.backbone(images)
    logits = torch.cat([old, new], 1) @ model.head.weight.T + model.head.bias
    auxiliary = new @ model.auxiliary.weight.T + model.auxiliary.bias
    weights = class_weights(
        torch.tensor([6, 6, 8, 8]), 0.96
    )  # floor(12 / 2) for old classes, 8 images of new ones
    expected = (
        F.cross_entropy(logits / weights, labels)
        + F.cross_entropy(auxiliary, labels)
        + distillation(logits, boosted.teacher(images), 2.0)
    )
    torch.testing.assert_close(stage.loss(images, labels), expected)


def test_compression_loss_equals_its_definition(boosted: Task) -> None:
    stages = SHORT.stages(boosted)
    next(stages)
    stage = next(stages)
    model = boosted.model.eval()
    images, labels = batch_of(boosted)
    weights = class_weights(torch.tensor([6, 6, 8, 8]), 0.97)
    with torch.no_grad():
        teacher, student = model(images).double(), model.student(images).double()
    total = 0.0
    for z, s in zip(teacher, student, strict=True):
        p = [float(torch.exp(v / 2)) * float(w) for v, w in zip(z, weights, strict=True)]
        q = [float(torch.exp(v / 2)) for v in s]
        total -= sum(
            a / sum(p) * torch.log(torch.tensor(b / sum(q))).item() for a, b in zip(p, q, strict=True)
        )
    assert stage.loss(images, labels).item() == pytest.approx(total / len(images), rel=1e-4)


def test_each_stage_changes_its_own_parts_only(boosted: Task) -> None:
    model, moments = boosted.model, {"begin": state(boosted.model)}
    for progress in SHORT.learn(boosted):
        assert not model.base.backbone.training
        trained = parts({name for name, p in model.named_parameters() if p.requires_grad})
        if progress.stage == "boost":
            assert trained == {"backbone", "head", "auxiliary"}
            assert model.backbone.training
        else:
            assert trained == {"student"}, "no gradient is computed without need"
            assert model.student.training
            assert not any(m.training for m in (model, model.backbone, model.head))
        moments[progress.stage] = state(model)

    def changed(one: str, other: str) -> set[str]:
        a, b = moments[one], moments[other]
        return {name for name in a if not torch.equal(a[name], b[name])}

    assert parts(changed("begin", "boost")) == {"backbone", "head", "auxiliary"}
    assert parts(changed("boost", "compress")) == {"student"}


def test_the_next_step_starts_from_the_compressed_model(
    boosted: Task, setting: Setting, stream: Stream
) -> None:
    list(SHORT.learn(boosted))
    third = SHORT.begin(setting, stream[2], SHORT.remember(boosted), boosted.model)
    student = boosted.model.student
    assert torch.equal(third.model.base.head.weight, student.head.weight)
    assert torch.equal(third.model.backbone.stem[0].weight, student.backbone.stem[0].weight)
    assert third.model.head.weight.shape == (5, 128)


def test_both_models_can_be_evaluated(boosted: Task, setting: Setting, stream: Stream) -> None:
    list(SHORT.learn(boosted))
    images = setting.transform.test(stream.test.images)
    model = boosted.model.eval()
    assert model.features(images).shape[1] == 128
    torch.testing.assert_close(model(images), model.boosted(images)[0])
    model.evaluate = "compressed"
    assert model.features(images).shape[1] == 64
    assert torch.equal(model(images), model.student(images))
    model.evaluate = "boosted"
    test = forward(model, stream.test, setting.transform, stream[1].test)
    for learner, name, of in (
        (SHORT, "accuracy_compressed", model.student),
        (replace(SHORT, evaluate="compressed"), "accuracy_boosted", model),
    ):
        (found,) = learner.other_predictions(boosted, boosted.memory, test).items()
        expected = forward(of, stream.test, setting.transform, stream[1].test).logits.argmax(dim=1)
        assert found[0] == name
        assert torch.equal(found[1], expected)
