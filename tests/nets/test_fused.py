"""Networks in our own kernels: which fit, and results on a GPU; and compiled backbones."""

import copy
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.engine.iteration import Iteration
from opencil.engine.schedule import Schedule
from opencil.nets import fused, resnet
from opencil.nets import model as models
from opencil.nets.model import Backbone, Model, fused_backbones

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels need a CUDA device")


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU that Triton works on."""
    monkeypatch.setattr(fused, "works_on", lambda _: True)


IMAGES = torch.zeros(2, 3, 8, 8)


@pytest.mark.usefixtures("works")
def test_narrow_networks_have_kernels_and_wide_ones_have_none() -> None:
    assert resnet.resnet8().has_kernels_for(IMAGES)
    assert resnet.resnet32().has_kernels_for(IMAGES)
    assert not resnet.resnet18().has_kernels_for(IMAGES)
    network = resnet.resnet8()
    for images in (IMAGES[:0], IMAGES.double(), IMAGES.bfloat16(), IMAGES[:, :1]):
        assert not network.has_kernels_for(images)
    for name, value in (("works_on", lambda _: False), ("MOST_NUMBERS", 2 * 8 * 8 * 64 - 1)):
        with mock.patch.object(fused, name, value):
            assert not network.has_kernels_for(IMAGES)


@pytest.mark.usefixtures("works")
def test_a_network_that_is_not_as_it_was_made_is_torchs() -> None:
    def fits(change: Callable[[Any, Any], object]) -> bool:
        network = resnet.resnet8()
        change(network, network.blocks[0])
        return network.has_kernels_for(IMAGES)

    def convolution(**values: Any) -> Callable[[Any, Any], None]:
        new = nn.Conv2d(
            **{"in_channels": 16, "bias": False, "padding": 1} | values, out_channels=16, kernel_size=3
        )
        return lambda _, block: setattr(block, "conv1", new)

    assert fits(lambda _, block: None)
    assert fits(convolution())
    assert not fits(convolution(bias=True))
    assert not fits(convolution(in_channels=32))
    assert not fits(convolution(padding_mode="circular"))
    assert not fits(lambda _, block: setattr(block.norm2, "momentum", None))
    for norm in (nn.GroupNorm(4, 16), nn.Identity(), nn.SyncBatchNorm(16)):
        assert not fits(lambda _, block, norm=norm: setattr(block, "norm1", norm))
    assert not fits(lambda _, block: block.norm1.eval())
    assert not fits(lambda _, block: block.conv1.weight.requires_grad_(False))
    assert not fits(lambda _, block: block.register_forward_hook(print))
    assert not fits(lambda _, block: block.norm1.register_full_backward_hook(print))
    assert not fits(lambda network, _: network.stem[2].register_forward_hook(print))
    assert not fits(lambda network, _: network.double())
    assert not fits(lambda network, _: network.eval()), "no gradients of weights in evaluation"
    assert fits(lambda network, _: network.eval().requires_grad_(False))


def test_where_triton_does_not_work_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_out(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    broken = types.ModuleType("opencil.kernels.residual")
    broken.try_out = try_out  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    monkeypatch.setattr(fused, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    fused.works_on.cache_clear()
    try:
        with pytest.warns(UserWarning, match="training is slower .*Failed to find C compiler"):
            assert not fused.works_on(torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        fused.works_on.cache_clear()
        assert not fused.works_on(torch.device("cuda"))
    finally:
        fused.works_on.cache_clear()


def features_and_gradients(
    network: nn.Module, images: Tensor, arithmetic: Arithmetic, training: bool
) -> list[Tensor]:
    """Return features, gradients of images and weights, and batch norm statistics."""
    network = copy.deepcopy(network).train(training).requires_grad_(training)
    images = images.detach().to(next(network.parameters()).dtype).requires_grad_()
    with arithmetic.active():
        with arithmetic.autocast(images.device):
            features = network(images)
        towards = torch.linspace(-1, 1, features.numel(), device=images.device).view_as(features)
        features.backward(towards.to(features.dtype))
    found = [features.detach(), images.grad, *(p.grad for p in network.parameters()), *network.buffers()]
    return [one.detach().double() for one in found if one is not None]


@on_a_gpu
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize(("count", "side"), [(128, 32), (3, 28), (1, 9)])
def test_the_whole_network_is_as_near_to_float64_as_torchs(
    count: int, side: int, precision: str, training: bool
) -> None:
    torch.manual_seed(0)
    network = resnet.resnet32().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(count, 3, side, side, device="cuda").contiguous(memory_format=torch.channels_last)
    arithmetic = Arithmetic(precision)  # type: ignore[arg-type]
    ours = features_and_gradients(network, images, arithmetic, training)
    with mock.patch.object(fused, "fits", return_value=False):
        torchs = features_and_gradients(network, images, arithmetic, training)
        exact = features_and_gradients(copy.deepcopy(network).double(), images, Arithmetic("fp32"), training)

    def off(found: Tensor, expected: Tensor) -> float:
        return float((found - expected).norm() / expected.norm().clamp(min=1e-12))

    # A number near 0 that is rounded to the other side of a ReLU moves gradients by more than rounding does:
    # those of a single little image by a tenth and more.
    one_flip = 2e-2 if count > 1 else 0.3
    by_ours = torch.tensor([off(*pair) for pair in zip(ours, exact, strict=True)])
    by_torch = torch.tensor([off(*pair) for pair in zip(torchs, exact, strict=True)])
    assert by_ours[0] <= 4 * by_torch[0] + 1e-6
    assert by_ours.median() <= 2 * by_torch.median() + one_flip / 10
    assert by_ours.max() <= 2 * by_torch.max() + one_flip
    again = features_and_gradients(network, images, arithmetic, training)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


def test_backbones_are_compiled_only_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Backbone] = []

    def forward(backbone: Backbone, images: Tensor) -> Tensor:
        compiled.append(backbone)
        return backbone.forward(images)

    monkeypatch.setattr(models, "_compiled_forward", lambda: forward)
    backbone = resnet.resnet8().eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = backbone(images)
    assert not compiled
    with fused_backbones(True):
        assert torch.equal(backbone(images), plain)
        with fused_backbones(False):
            backbone(images)
    assert compiled == [backbone]
    backbone(images)
    assert len(compiled) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiler is used on a CUDA device")
@pytest.mark.filterwarnings("default")  # of the compiler's own making
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 5e-2)])
def test_compiled_and_plain_steps_agree_on_a_gpu(precision: str, tolerance: float) -> None:
    device, random = torch.device("cuda"), torch.Generator().manual_seed(0)
    images, labels = torch.randn(16, 3, 32, 32, generator=random), torch.arange(16) % 4
    start = Model(resnet.resnet8(), 4).to(device)
    ends = []
    for compile in (False, True):
        model = copy.deepcopy(start).train()
        iterate = Iteration(
            model,
            lambda x, y, model=model: nn.functional.cross_entropy(model(x), y),
            Schedule(epochs=1, lr=0.01),
            Arithmetic(precision, compile=compile),
            device,
        )
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(6):
                iterate(images.to(device), labels.to(device))
        torch.cuda.synchronize()
        ends.append(model.state_dict())
    for name, plain in ends[0].items():
        torch.testing.assert_close(
            ends[1][name].float(), plain.float(), rtol=tolerance, atol=tolerance / 10, msg=name
        )
