"""DER and MEMO: growth, frozen parts, loss."""

import pytest
import torch
from torch import nn

from opencil.cil.der import DER
from opencil.cil.learner import Learner, Setting
from opencil.cil.memo import MEMO
from opencil.data.stream import Stream
from opencil.nets.growing import GrownModel
from tests.cil.common import batch_of, begun, same, state, trained_tasks

BOTH = pytest.mark.parametrize("learner", [DER(epochs=1), MEMO(epochs=1)], ids=["der", "memo"])


@BOTH
def test_a_step_begins_with_what_there_was(learner: Learner, setting: Setting, stream: Stream) -> None:
    task = begun(learner, setting, stream)
    before, model = task.previous, task.model
    assert isinstance(model, GrownModel)
    assert same(state(model.backbone), state(before.backbone)), "the new one is a copy of the newest"
    assert same(state(model.older[0]), state(before.backbone))
    assert model.head.weight.shape == (4, 128)
    assert torch.equal(model.head.weight[:2, :64], before.head.weight)
    assert torch.equal(model.head.bias[:2], before.head.bias)
    assert float(model.head.weight[:2, 64:].detach().abs().min()) > 0, "drawn, for old classes too"
    assert model.auxiliary.weight.shape == (3, 64), "two new classes and all old ones"


@BOTH
def test_the_loss_equals_its_definition(learner: Learner, setting: Setting, stream: Stream) -> None:
    task = begun(learner, setting, stream, 3)  # one new class, three networks
    (images, labels), model = batch_of(task), task.model.eval()
    with torch.no_grad():
        read = images if model.shared is None else model.shared.maps(images)[-1]
        features = [backbone(read) for backbone in (*model.older, model.backbone)]
        logits = torch.cat(features, 1) @ model.head.weight.T + model.head.bias
        auxiliary = features[-1] @ model.auxiliary.weight.T + model.auxiliary.bias
    total = 0.0
    for z, a, label in zip(logits.double(), auxiliary.double(), labels.tolist(), strict=True):
        target = 0 if label < 4 else label - 4 + 1
        total += float(-torch.log_softmax(z, 0)[label] - torch.log_softmax(a, 0)[target])
    stage = next(iter(learner.stages(task)))
    assert stage.loss(images, labels).item() == pytest.approx(total / len(labels), rel=1e-5)
    assert stage.schedule is learner.later  # type: ignore[attr-defined]


@BOTH
def test_older_networks_stay_as_they_were(learner: Learner, setting: Setting, stream: Stream) -> None:
    task = begun(learner, setting, stream, 3)
    model, begin = task.model, state(task.model)
    for _ in learner.learn(task):
        assert not any(
            module.training for module in model.older.modules() if isinstance(module, nn.BatchNorm2d)
        )
        assert all(module.training for module in model.backbone.modules())
        assert model.shared is None or all(module.training for module in model.shared.modules())
    changed = {
        name.split(".")[0]
        for name, tensor in model.state_dict().items()
        if not torch.equal(tensor, begin[name])
    }
    assert changed == {"backbone", "head", "auxiliary"} | ({"shared"} if model.shared is not None else set())
    assert [len(model.older), model.head.in_features] == [2, 192]


@BOTH
def test_the_new_rows_are_aligned_after_a_later_step(
    learner: Learner, setting: Setting, stream: Stream
) -> None:
    norms = trained_tasks(learner, setting, stream, 2)[-1].model.head.weight.detach().norm(dim=1)
    assert float(norms[:2].mean()) == pytest.approx(float(norms[2:].mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("learner", "channels"), [(DER(epochs=1), [32, 64, 128]), (MEMO(epochs=1), [16, 32, 128])]
)
def test_maps_are_side_by_side(
    learner: Learner, channels: list[int], setting: Setting, stream: Stream
) -> None:
    """Pooled, the last are the features."""
    task = begun(learner, setting, stream)
    images, model = batch_of(task)[0], task.model.eval()
    maps = model.maps(images)
    assert [m.shape[1] for m in maps] == channels
    torch.testing.assert_close(maps[-1].mean(dim=(2, 3)), model.features(images))
