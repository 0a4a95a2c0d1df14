"""Which networks run in kernels of our own, and what these compute on a GPU."""

import copy
import sys
import types
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import evaluating
from opencil.engine.iteration import Iteration
from opencil.engine.schedule import Schedule
from opencil.nets import fused, resnet
from opencil.nets.model import Model, fused_backbones

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


def test_there_are_none_on_a_cpu() -> None:
    assert not resnet.resnet8().has_kernels_for(IMAGES)


@pytest.mark.usefixtures("works")
def test_a_network_that_is_not_as_it_was_made_is_torchs() -> None:
    def fits(change: object) -> bool:
        network = resnet.resnet8()
        change(network)  # type: ignore[operator]
        return network.has_kernels_for(IMAGES)

    def set_bias(network: nn.Module) -> None:
        network.blocks[0].conv1 = nn.Conv2d(16, 16, 3, padding=1)

    def set_momentum(network: nn.Module) -> None:
        network.blocks[1].norm2.momentum = None

    def replace(network: nn.Module, norm: nn.Module) -> None:
        network.blocks[0].norm1 = norm
        assert torch.isfinite(network(IMAGES)).all(), "torch computes it"

    def pad_otherwise(network: nn.Module) -> None:
        network.blocks[0].conv1.padding_mode = "circular"

    def widen(network: nn.Module) -> None:
        network.blocks[0].conv1 = nn.Conv2d(32, 16, 3, padding=1, bias=False)

    assert fits(lambda network: None)
    assert not fits(set_bias)
    assert not fits(set_momentum)
    assert not fits(pad_otherwise)
    assert not fits(widen)
    assert not fits(lambda network: replace(network, nn.GroupNorm(4, 16)))
    assert not fits(lambda network: replace(network, nn.Identity()))
    assert not fits(lambda network: setattr(network.blocks[0], "norm1", nn.SyncBatchNorm(16)))
    assert not fits(lambda network: network.blocks[0].norm1.eval())
    assert not fits(lambda network: network.blocks[0].conv1.weight.requires_grad_(False))
    assert not fits(lambda network: network.blocks[0].register_forward_hook(print))
    assert not fits(lambda network: network.blocks[0].norm1.register_forward_hook(print))
    assert not fits(lambda network: network.blocks[0].norm1.register_full_backward_hook(print))
    assert not fits(lambda network: network.stem[2].register_forward_hook(print))
    assert not fits(lambda network: network.double())


@pytest.mark.usefixtures("works")
def test_what_images_they_take() -> None:
    network = resnet.resnet8()
    assert not network.has_kernels_for(IMAGES[:0])
    assert not network.has_kernels_for(IMAGES.double())
    assert not network.has_kernels_for(IMAGES.bfloat16()), "torch refuses them, but for autocast"
    assert not network.has_kernels_for(IMAGES[:, :1])
    with mock.patch.object(fused, "MOST_NUMBERS", 2 * 8 * 8 * 64 - 1):
        assert not network.has_kernels_for(IMAGES)


@pytest.mark.usefixtures("works")
def test_in_evaluation_they_have_no_gradients_of_weights() -> None:
    network = resnet.resnet8().eval()
    assert not network.has_kernels_for(IMAGES)
    with torch.no_grad():
        assert network.has_kernels_for(IMAGES)
    with evaluating(Model(network, 2)):  # as ODIN has it, for gradients of images
        assert network.has_kernels_for(IMAGES)
    assert all(p.requires_grad for p in network.parameters())
    assert network.requires_grad_(False).has_kernels_for(IMAGES)


@pytest.mark.usefixtures("works")
def test_nothing_is_left_to_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr("opencil.nets.model._compiled", lambda: lambda *_: compiled.append("torch.compile"))
    monkeypatch.setattr(fused, "activations", lambda *_: [torch.zeros(2, 64, 1, 1)])
    with fused_backbones(True):
        resnet.resnet8()(IMAGES)
        assert not compiled
        resnet.resnet18()(IMAGES)
        assert compiled


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
    """Features, gradients of images and weights, and what batch norm keeps."""
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


class InTwo(nn.Module):
    """A network as its first stages and its last one, as MEMO has it."""

    def __init__(self, network: resnet.ResNet) -> None:
        super().__init__()
        self.shared, self.last = network.split()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.last(self.shared.maps(images)[-1])
        return features


@on_a_gpu
@pytest.mark.parametrize("training", [True, False])
def test_the_parts_of_a_network_compute_what_the_whole_does(training: bool) -> None:
    torch.manual_seed(0)
    network = resnet.resnet32().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(128, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    assert InTwo(network).last.has_kernels_for(network.split()[0].maps(images)[-1])
    whole, parts = (
        features_and_gradients(module, images, Arithmetic("fp32"), training)
        for module in (network, InTwo(network))
    )
    for one, other in zip(parts, whole, strict=True):
        assert float((one - other).norm() / other.norm().clamp(min=1e-12)) < 1e-3


@on_a_gpu
def test_a_captured_step_has_the_bits_of_an_eager_one() -> None:
    def trained(capture: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Model(resnet.resnet8(), 5).cuda().to(memory_format=torch.channels_last).train()
        images, labels = torch.randn(8, 64, 3, 16, 16).cuda(), torch.randint(5, (8, 64)).cuda()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return nn.functional.cross_entropy(model(images), labels)

        iterate = Iteration(
            model, loss, Schedule(epochs=1, lr=0.1), Arithmetic("bf16"), images.device, None, capture
        )
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(8):
                iterate(images[i].contiguous(memory_format=torch.channels_last), labels[i])
        torch.cuda.synchronize()
        return list(model.state_dict().values())

    assert all(torch.equal(one, other) for one, other in zip(trained(True), trained(False), strict=True))
