"""The forward pass that everything reads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.errors import BadInput
from opencil.nets.model import Model


@pytest.mark.parametrize("batch_size", [1, 3, 512])
def test_outputs_of_chosen_images_in_batches(
    images: ImageSet, model: Model, plain: Transform, batch_size: int
) -> None:
    chosen = torch.tensor([7, 2, 2, 9])
    everything = forward(model, images, plain)
    assert torch.equal(everything.labels, images.labels)
    some = forward(model, images, plain, chosen, batch_size)
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
    "values",
    [
        {"indices": torch.tensor([True, False])},
        {"indices": torch.tensor([10])},
        {"indices": [0, 1]},
    ],
)
def test_wrong_indices_are_refused(
    values: dict[str, Any], images: ImageSet, model: Model, plain: Transform
) -> None:
    with pytest.raises(BadInput, match=next(iter(values))):
        forward(model, images, plain, **values)


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
    ("method", "value"),
    [
        ("features", None),
        ("features", torch.zeros(9, 4)),
        ("classify", (torch.zeros(10, 3), 1)),
        ("classify", torch.zeros(10)),
        ("maps", torch.zeros(5, 2, 3, 3)),
        ("maps", [torch.zeros(5, 2)]),
        ("last_stage", torch.zeros(9, 4)),
    ],
)
def test_wrong_values_of_a_models_methods_are_refused(
    method: str,
    value: Any,
    images: ImageSet,
    model: Model,
    plain: Transform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = forward(model, images, plain)
    calls: dict[str, Callable[[], object]] = {
        "maps": lambda: next(outputs.layers()),
        "last_stage": lambda: outputs.last_stage(torch.zeros(10, 32, 4, 4)),
    }
    monkeypatch.setattr(model, method, lambda _: value)
    with pytest.raises(BadInput, match=f"{method} of Model"):
        calls.get(method, lambda: forward(model, images, plain))()


def test_maps_come_batch_by_batch_as_the_model_gives_them(
    images: ImageSet, model: Model, plain: Transform
) -> None:
    """They are computed lazily, in eval mode; the model's own mode stays."""
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
    last = next(batches)[-2]
    assert torch.equal(outputs.last_stage(last), outputs.features[:2]), "from its own maps"
    assert not torch.allclose(outputs.last_stage(last.flip(0)), outputs.features[:2])
    assert all(module.training for module in model.modules())


def test_a_linear_head_is_found_by_probing(model: Model) -> None:
    nn.init.normal_(model.head.bias)
    features = torch.rand(5, 64, generator=torch.Generator().manual_seed(0))
    weight, bias = Outputs(features, model.classify(features), classify=model.classify).linear()
    torch.testing.assert_close(weight, model.head.weight.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(bias, model.head.bias.detach())


def test_reading_what_outputs_lack_is_refused() -> None:
    features = torch.rand(2, 4)
    bare = Outputs(features, features)
    with pytest.raises(BadInput, match="images"):
        next(bare.layers())
    with pytest.raises(BadInput, match="classify"):
        bare.linear()
    with pytest.raises(BadInput, match="not linear"):
        replace(bare, classify=lambda f: nn.functional.normalize(f, dim=1)).linear()


@pytest.mark.parametrize("ending", [SystemExit, GeneratorExit])
def test_an_exit_of_a_model_is_an_error(ending: type[BaseException]) -> None:
    def leave(_: Tensor) -> Tensor:
        raise ending

    with pytest.raises(RuntimeError, match=ending.__name__):
        forward(leave, torch.zeros(2, 3, 8, 8))
