"""The forward pass that everything reads."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opencil.cil.bic import CorrectedModel
from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.errors import BadInput
from opencil.nets.model import Model
from opencil.nets.resnet import resnet8


def test_outputs_are_the_models(images: ImageSet, model: Model, plain: Transform) -> None:
    outputs = forward(model, images, plain)
    with torch.no_grad():
        features = model.eval().features(plain.test(images.images))
    assert len(outputs) == 10
    assert torch.equal(outputs.features, features)
    assert torch.equal(outputs.logits, model.classify(features))
    assert torch.equal(outputs.labels, images.labels)


def test_chosen_images_come_in_their_order(images: ImageSet, model: Model, plain: Transform) -> None:
    chosen = torch.tensor([7, 2, 2, 9])
    everything, some = forward(model, images, plain), forward(model, images, plain, chosen)
    torch.testing.assert_close(some.features, everything.features[chosen], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(some.logits, everything.logits[chosen], rtol=1e-5, atol=1e-6)
    assert some.labels.tolist() == images.labels[chosen].tolist()


def test_outputs_of_some_of_the_images(images: ImageSet, model: Model, plain: Transform) -> None:
    computed = forward(model, images, plain, torch.tensor([7, 2, 9, 4]))
    some = computed.of(images, torch.tensor([4, 7, 7]))
    assert some is not None
    assert torch.equal(some.features, computed.features[[3, 0, 0]])
    assert torch.equal(some.logits, computed.logits[[3, 0, 0]])
    assert some.labels is not None
    assert some.labels.tolist() == images.labels[[4, 7, 7]].tolist()
    assert some.inputs is not None
    assert some.inputs.labels is not None
    assert torch.equal(some.inputs.labels, some.labels)
    assert computed.of(images, torch.tensor([4, 3])) is None, "3 has not been computed"
    assert computed.of(images, torch.tensor([10])) is None
    other = ImageSet(images.name, images.images, images.labels)
    assert computed.of(other, torch.tensor([4])) is None


@pytest.mark.parametrize(("side", "most"), [(8, 300), (32, 128), (64, 128)])
def test_a_cpu_has_no_more_images_at_once_than_stay_in_its_cache(model: Model, side: int, most: int) -> None:
    images = torch.rand(300, 3, side, side)
    labels = torch.arange(300)
    inputs = Inputs(model, [(images, labels)], batch_size=512)
    parts = list(inputs.labelled_batches())
    assert max(len(part) for part, _ in parts) == most
    torch.testing.assert_close(torch.cat([part for part, _ in parts]), images, rtol=0, atol=0)
    assert torch.equal(torch.cat([known for _, known in parts if known is not None]), labels)


@pytest.mark.parametrize("batch_size", [1, 3, 10, 512])
def test_the_batch_size_does_not_matter(
    images: ImageSet, model: Model, plain: Transform, batch_size: int
) -> None:
    expected, outputs = forward(model, images, plain), forward(model, images, plain, batch_size=batch_size)
    torch.testing.assert_close(outputs.features, expected.features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(outputs.logits, expected.logits, rtol=1e-5, atol=1e-6)


def test_the_test_transform_is_used(images: ImageSet, model: Model) -> None:
    cropped = Transform((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), crop=6, padding=1, flip=True)
    expected = model.eval()(cropped.test(images.images))
    assert torch.equal(forward(model, images, cropped).logits, expected)


def test_the_model_is_only_read(images: ImageSet, model: Model, plain: Transform) -> None:
    model.train()
    model.head.eval()  # modes are the user's own, module by module
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outputs = forward(model, images, plain)
    assert model.training
    assert not model.head.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not outputs.logits.requires_grad
    assert not outputs.features.requires_grad


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"batch_size": 0}, "batch_size = 0 is not allowed"),
        ({"batch_size": True}, "batch_size = True is not allowed"),
        ({"indices": torch.tensor([True, False])}, r"indices are torch.bool \[2\]"),
        ({"indices": [0, 1]}, "indices are a list: a tensor"),
    ],
)
def test_what_chooses_no_batches_is_refused(
    given: dict[str, Any], sentence: str, images: ImageSet, model: Model, plain: Transform
) -> None:
    with pytest.raises(BadInput, match=sentence):
        forward(model, images, plain, **given)


def test_a_callers_autocast_does_not_reach_in(images: ImageSet, model: Model, plain: Transform) -> None:
    outside = forward(model, images, plain)
    with torch.autocast("cpu", torch.bfloat16):
        inside = forward(model, images, plain)
    assert torch.equal(inside.features, outside.features)
    assert torch.equal(inside.logits, outside.logits)


class Means:
    """A classifier that is no module: features are channel means, logits twice that."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def features(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3)).to(self.dtype)

    def classify(self, features: Tensor) -> Tensor:
        return 2 * features


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_outputs_are_float32_whatever_the_model_computes_in(
    images: ImageSet, plain: Transform, dtype: torch.dtype
) -> None:
    outputs = forward(Means(dtype), images, plain)
    assert outputs.features.dtype == outputs.logits.dtype == torch.float32
    assert torch.equal(outputs.logits, 2 * outputs.features)


@pytest.mark.parametrize(
    ("method", "given", "sentence"),
    [
        ("features", None, "features of Model gives a NoneType: a tensor with a row for each of 10 images"),
        (
            "features",
            torch.zeros(9, 4),
            r"features of Model gives torch.float32 \[9, 4\]: a tensor with a row",
        ),
        (
            "classify",
            (torch.zeros(10, 3), 1),
            "classify of Model gives a tuple: a tensor with a row for each",
        ),
        ("classify", torch.zeros(10), r"classify of Model gives torch.float32 \[10\]: a tensor with a row"),
    ],
)
def test_what_a_model_gives_is_checked(
    method: str,
    given: Any,
    sentence: str,
    images: ImageSet,
    model: Model,
    plain: Transform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, method, lambda _: given)
    with pytest.raises(BadInput, match=sentence):
        forward(model, images, plain)


def test_maps_that_are_no_list_of_maps_are_refused(
    images: ImageSet, model: Model, plain: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Inputs(model, images, plain)
    for given in (torch.zeros(5, 2, 3, 3), [torch.zeros(5, 2)]):
        monkeypatch.setattr(model, "maps", lambda _, given=given: given)
        with pytest.raises(BadInput, match=r"maps of Model should be a list of tensors \[B, C, H, W\]"):
            next(inputs.maps())


def test_maps_come_batch_by_batch_as_the_model_gives_them(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    """In eval mode, whatever mode the model is in, which stays; and only as far as they are asked for."""
    rows = torch.tensor([4, 2, 0, 3, 1])
    expected = model.eval().maps(plain.test(images.images[rows]))
    model.train()
    outputs = replace(forward(model, images, plain, rows), inputs=Inputs(model, images, plain, rows, 2))
    found = list(outputs.layers())
    assert [len(maps[0]) for maps in found] == [2, 2, 1]
    for stage, whole in enumerate(expected):
        torch.testing.assert_close(torch.cat([maps[stage] for maps in found]), whole)
        assert not found[0][stage].requires_grad
    batches = outputs.layers()
    next(batches)
    assert all(module.training for module in model.modules())


def test_the_last_stage_runs_on_maps_of_others(images: ImageSet, model: Model, plain: Transform) -> None:
    """In eval mode, whatever mode the model is in, which stays; of its own maps it gives the features."""
    outputs = forward(model.train(), images, plain)
    (maps,) = outputs.layers()
    found = outputs.last_stage(maps[-2])
    assert torch.equal(found, outputs.features)
    assert not found.requires_grad
    assert all(module.training for module in model.modules())
    assert not torch.allclose(outputs.last_stage(maps[-2].flip(0)), found)


def test_a_last_stage_that_gives_no_features_is_refused(
    images: ImageSet, model: Model, plain: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "last_stage", lambda maps: maps[:-1])
    with pytest.raises(BadInput, match=r"last_stage of Model gives .*: a tensor with a row for each of 5"):
        Inputs(model, images, plain).last_stage(torch.zeros(5, 32, 4, 4))


def test_a_linear_head_is_found_by_probing(model: Model) -> None:
    nn.init.normal_(model.head.bias)
    features = torch.rand(5, 64, generator=torch.Generator().manual_seed(0))
    weight, bias = Outputs(features, model.classify(features), classify=model.classify).linear()
    torch.testing.assert_close(weight, model.head.weight.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(bias, model.head.bias.detach())


def test_corrections_of_the_logits_fold_into_w_and_b() -> None:
    """BiC's α z + β on the logits of each step's classes."""
    bic = CorrectedModel(resnet8(), [2, 3])
    with torch.no_grad():
        bic.corrections[1].alpha.fill_(0.5)
        bic.corrections[1].beta.fill_(-2.0)
    weight, bias = Outputs(torch.rand(1, 64), torch.rand(1, 5), classify=bic.classify).linear()
    scale = torch.tensor([1, 1, 0.5, 0.5, 0.5])
    torch.testing.assert_close(weight, scale[:, None] * bic.head.weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, scale * bic.head.bias.detach() - torch.tensor([0, 0, 2.0, 2, 2]))


def test_what_cannot_be_read_is_refused_in_a_sentence() -> None:
    features = torch.rand(2, 4)
    bare = Outputs(features, features)
    with pytest.raises(BadInput, match="images: missing here"):
        bare.layers()
    with pytest.raises(BadInput, match="model that comes with images: missing here"):
        bare.last_stage(torch.zeros(2, 3, 4, 4))
    with pytest.raises(BadInput, match="classify is missing here"):
        bare.linear()
    with pytest.raises(BadInput, match="the head is not linear"):
        replace(bare, classify=lambda f: nn.functional.normalize(f, dim=1)).linear()
