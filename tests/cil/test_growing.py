"""DER and MEMO: what grows, what stays as it was, their loss."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opencil
from opencil.cil.der import DER
from opencil.cil.learner import Learner, Setting, Task
from opencil.cil.memo import MEMO
from opencil.cil.replay import Replay
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.errors import BadInput
from opencil.nets.growing import GrownModel
from opencil.runs.advance import bytes_kept

Batch = Callable[[Task], tuple[Tensor, Tensor]]
BOTH = pytest.mark.parametrize("learner", [DER(epochs=1), MEMO(epochs=1)], ids=["der", "memo"])


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def trained(learner: Learner, setting: Setting, stream: Stream, steps: int) -> Task:
    """The task after so many steps; the next is not begun."""
    memory, previous = Memory(12), None
    for step in stream[:steps]:
        task = learner.begin(setting, step, memory, previous)
        list(learner.learn(task))
        memory, previous = learner.remember(task), task.model
    return task


def begun(learner: Learner, setting: Setting, stream: Stream, number: int = 2) -> Task:
    """A step that is not trained yet, after those that are."""
    before = trained(learner, setting, stream, number - 1)
    return learner.begin(setting, stream[number - 1], learner.remember(before), before.model)


@BOTH
def test_step_one_is_plain_training(learner: Learner, setting: Setting, stream: Stream) -> None:
    """The same start and the same loss as replay's, to the last bit."""
    one, other = (trained(method, setting, stream, 1).model for method in (learner, Replay(epochs=1)))
    images = setting.transform.test(stream.test.images)
    assert torch.equal(one.eval()(images), other.eval()(images))


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
def test_the_loss_equals_its_definition(
    learner: Learner, setting: Setting, stream: Stream, batch_of: Batch
) -> None:
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
    norms = trained(learner, setting, stream, 2).model.head.weight.detach().norm(dim=1)
    assert float(norms[:2].mean()) == pytest.approx(float(norms[2:].mean()), rel=1e-5)


@BOTH
def test_gradients_of_images_pass_through_all_networks(
    learner: Learner, setting: Setting, stream: Stream, batch_of: Batch
) -> None:
    """As ODIN needs them: those of the older ones alone are not 0."""
    task = begun(learner, setting, stream)
    images = batch_of(task)[0].requires_grad_()
    with torch.no_grad():
        task.model.head.weight[:, 64:] = 0
    (gradient,) = torch.autograd.grad(task.model.eval()(images).square().sum(), images)
    assert float(gradient.abs().sum()) > 0


def test_memos_shared_stages_learn_through_the_frozen_ones_too(
    setting: Setting, stream: Stream, batch_of: Batch
) -> None:
    model = begun(MEMO(epochs=1), setting, stream).model.train()
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.head.weight[:, 64:] = 0
    weight = model.shared.stem[0].weight
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(images), torch.zeros(4).long()), weight)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize(
    ("learner", "channels"), [(DER(epochs=1), [32, 64, 128]), (MEMO(epochs=1), [16, 32, 128])]
)
def test_maps_are_side_by_side(
    learner: Learner, channels: list[int], setting: Setting, stream: Stream, batch_of: Batch
) -> None:
    """Pooled, the last are the features."""
    task = begun(learner, setting, stream)
    images, model = batch_of(task)[0], task.model.eval()
    maps = model.maps(images)
    assert [m.shape[1] for m in maps] == channels
    torch.testing.assert_close(maps[-1].mean(dim=(2, 3)), model.features(images))


def test_what_grows_is_counted(setting: Setting, stream: Stream) -> None:
    """DER by a network a step, MEMO by a third of the layers; replay by rows of its head."""

    def added(learner: Learner) -> list[int]:
        models = [learner.blank(setting, step) for step in stream]
        sizes = [int(bytes_kept(model, 0, stream.train)[0].value) for model in models]
        return [after - before for before, after in pairwise(sizes)]

    whole = sum(t.numel() * t.element_size() for t in setting.new_backbone().state_dict().values())
    last = sum(t.numel() * t.element_size() for t in setting.new_backbone().split()[1].state_dict().values())
    heads = (
        4 * (4 * 129 - 2 * 65),
        4 * (5 * 193 - 4 * 129 - 65),
    )  # the auxiliary one has an output less at last
    assert added(Replay()) == [4 * 2 * 65, 4 * 65]
    assert added(DER()) == [whole + rows for rows in heads]
    assert added(MEMO()) == [last + rows for rows in heads]


def test_memo_refuses_a_network_that_cannot_be_split(setting: Setting, stream: Stream) -> None:
    @opencil.register_backbone("one-piece")
    class OnePiece(opencil.AdaptedBackbone):
        """One convolution."""

        def __init__(self) -> None:
            super().__init__(nn.Conv2d(3, 4, 3), 4)

    with pytest.raises(
        BadInput, match=r"OnePiece cannot be split: a method split\(\) gives all of its stages"
    ):
        MEMO().begin(replace(setting, backbone="one-piece"), stream[0], Memory(12), None)


@BOTH
def test_a_frozen_network_stays_frozen_in_all_copies(
    learner: Learner, setting: Setting, stream: Stream
) -> None:
    setting = replace(setting, backbone={"name": "resnet8", "freeze": True})
    start = trained(learner, setting, stream, 1).model
    model = trained(learner, setting, stream, 3).model
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"head", "auxiliary"}
    for network in model.backbones():
        assert same(state(network), state(start.backbone))
    assert start.shared is None or same(state(model.shared), state(start.shared))
