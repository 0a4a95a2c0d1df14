"""The 3 × 3 convolution: what it computes, and its weight gradient against the definition."""

import itertools
import sys
import types
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.nets.convolution import Convolution, _Convolve, _kernel, fits, weight_gradient

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device"),
    ),
]
#: Channels in and out, height, width, stride; at 128 images the first two make every program loop.
SHAPES = [(16, 16, 11, 7, 1), (32, 32, 8, 6, 1), (16, 32, 8, 8, 2), (32, 64, 7, 5, 2), (64, 64, 3, 3, 1)]


def drawn(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    """Channels-last numbers that bfloat16 holds."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return numbers.to(device).contiguous(memory_format=torch.channels_last)


def by_definition(x: Tensor, gradient: Tensor, stride: int) -> Tensor:
    """∂L/∂w[k, c, r, s] = Σ ∂L/∂y[k, h, w] · x[c, h·stride + r − 1, w·stride + s − 1], x zero outside."""
    x, gradient = x.double().cpu(), gradient.double().cpu()
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    height, width = gradient.shape[2:]
    found = torch.zeros(gradient.shape[1], x.shape[1], 3, 3, dtype=torch.double)
    for r, s in itertools.product(range(3), range(3)):
        met = padded[:, :, r : r + height * stride : stride, s : s + width * stride : stride]
        found[:, :, r, s] = torch.einsum("bkhw,bchw->kc", gradient, met[:, :, :height, :width])
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("images", [1, 3, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_weight_gradient_is_the_definitions(
    shape: tuple[int, int, int, int, int], images: int, device: str, dtype: torch.dtype
) -> None:
    inputs, outputs, height, width, stride = shape
    x = drawn(images, inputs, height, width, device=device).to(dtype)
    gradient = drawn(images, outputs, -(-height // stride), -(-width // stride), seed=1, device=device).to(
        dtype
    )
    found = weight_gradient(x, gradient, stride)
    expected = by_definition(x, gradient, stride)
    assert (found.dtype, found.shape) == (torch.float32, expected.shape)
    # products of such numbers are exact even in TF32, and their sums are float32 on every device
    close = {"rtol": 1e-5, "atol": 1e-5 * float(expected.abs().max())}
    torch.testing.assert_close(found.double().cpu(), expected, **close)
    assert torch.equal(found, weight_gradient(x, gradient, stride))
    plain = x.contiguous(memory_format=torch.contiguous_format)  # NCHW gives the same
    torch.testing.assert_close(weight_gradient(plain, gradient, stride), found, **close)


@pytest.mark.parametrize("device", DEVICES)
def test_weight_gradient_is_a_proper_operator(device: str) -> None:
    x, gradient = drawn(2, 16, 4, 4, device=device), drawn(2, 32, 2, 2, seed=1, device=device)
    torch.library.opcheck(weight_gradient, (x, gradient, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_are_those_of_a_convolution(stride: int, device: str) -> None:
    x = drawn(4, 16, 6, 6, device=device).float().requires_grad_()
    weight = drawn(32, 16, 3, 3, seed=1, device=device).float().requires_grad_()
    ours = _Convolve.apply(x, weight, stride, torch.bfloat16)
    plain = nn.functional.conv2d(x.bfloat16(), weight.bfloat16(), stride=stride, padding=1)
    assert torch.equal(ours, plain)
    towards = drawn(*plain.shape, seed=2, device=device)
    found = torch.autograd.grad(ours, (x, weight), towards)
    (of_x,) = torch.autograd.grad(plain, (x,), towards)
    assert torch.equal(found[0], of_x)
    # torch rounds the weight's gradient to bfloat16, on some processors at every addition
    of_weight = by_definition(x.detach(), towards, stride)
    close = 1e-5 * float(of_weight.abs().max())
    torch.testing.assert_close(found[1].double().cpu(), of_weight, rtol=1e-5, atol=close)


def test_images_that_need_no_gradient_get_none() -> None:
    x, weight = drawn(2, 16, 4, 4), drawn(16, 16, 3, 3).float().requires_grad_()
    _Convolve.apply(x, weight, 1, torch.bfloat16).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


def test_without_a_gpu_it_is_torchs_convolution() -> None:
    convolution, plain = Convolution(16, 32, 2), nn.Conv2d(16, 32, 3, 2, padding=1, bias=False)
    plain.load_state_dict(convolution.state_dict(), strict=True)
    x = drawn(2, 16, 8, 8).float()
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert torch.equal(convolution(x), plain(x))


CUDA, BFLOAT, FLOAT = "cuda", torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ((CUDA, 4, BFLOAT, 16, 16), True),
        ((CUDA, 4, FLOAT, 32, 64), True),
        (("cpu", 4, BFLOAT, 16, 16), False),
        ((CUDA, 3, BFLOAT, 16, 16), False),
        ((CUDA, 4, torch.float16, 16, 16), False),
        ((CUDA, 4, BFLOAT, 3, 16), False),
        ((CUDA, 4, BFLOAT, 64, 128), False),
    ],
)
def test_which_layers_are_for_the_kernel(
    layer: tuple[str, int, torch.dtype, int, int], expected: bool
) -> None:
    assert fits(*layer) == expected


def test_only_what_trains_has_a_gradient_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencil.nets.convolution.fits", lambda *_: True)
    x = drawn(2, 16, 4, 4).float().requires_grad_()  # as ODIN's images do

    def ours(layer: Convolution) -> bool:
        return "_Convolve" in type(layer(x).grad_fn).__name__

    assert ours(Convolution(16, 16).train())
    assert not ours(Convolution(16, 16).eval())
    assert not ours(Convolution(16, 16).train().requires_grad_(False))
    with torch.no_grad():
        assert Convolution(16, 16)(x).grad_fn is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device")
@pytest.mark.parametrize("precision", [None, torch.float16, torch.bfloat16])
def test_a_layer_on_a_gpu_computes_what_torchs_does(precision: torch.dtype | None) -> None:
    layer, x = Convolution(16, 16).cuda(), drawn(2, 16, 4, 4, device="cuda").float()
    with torch.autocast("cuda", precision, enabled=precision is not None):
        y, torchs = layer(x), nn.Conv2d.forward(layer, x)
    assert ("_Convolve" in type(y.grad_fn).__name__) == (precision != torch.float16)
    assert y.dtype == (precision or torch.float32)
    assert torch.equal(y, torchs)


def fake_kernel(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The calls of a kernel that gives zeros."""
    launched: list[tuple[object, ...]] = []

    def launch(*given: object) -> Tensor:
        launched.append(given)
        return torch.zeros(16, 16, 3, 3)

    monkeypatch.setattr("opencil.nets.convolution._kernel", lambda _: launch)
    return launched


@pytest.mark.parametrize(("precision", "uses"), [("tf32", True), ("fp32", False)])
def test_full_float32_is_left_to_torch(
    precision: Literal["tf32", "fp32"], uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, x = fake_kernel(monkeypatch), drawn(2, 16, 4, 4)
    with Arithmetic(precision).active():
        weight_gradient(x.float(), x.float(), 1)
        assert bool(launched) == uses
        weight_gradient(x, x, 1)
        assert len(launched) == uses + 1


def test_batches_of_no_images_or_too_many_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, none, x = fake_kernel(monkeypatch), drawn(0, 16, 4, 4), drawn(2, 16, 4, 4)
    assert torch.equal(weight_gradient(none, none, 1), torch.zeros(16, 16, 3, 3))
    monkeypatch.setattr("opencil.nets.convolution.MOST_PIXELS", 31)
    assert weight_gradient(x, x, 1).abs().sum() > 0
    assert not launched
    monkeypatch.setattr("opencil.nets.convolution.MOST_PIXELS", 32)
    weight_gradient(x, x, 1)
    assert launched


def test_where_triton_does_not_work_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object) -> Tensor:
        raise RuntimeError("Failed to find C compiler")

    broken = types.ModuleType("opencil.kernels.weight_gradient")
    broken.launch = launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    monkeypatch.setattr("opencil.nets.convolution.find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # there may be no such device
    _kernel.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"slower \(RuntimeError: Failed to find C compiler\)"):
            assert _kernel(torch.device("cuda")) is None
        assert _kernel(torch.device("cuda")) is None  # and says so once
    finally:
        _kernel.cache_clear()


def test_old_gpus_go_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opencil.nets.convolution.find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    _kernel.cache_clear()
    assert _kernel(torch.device("cuda")) is None
    _kernel.cache_clear()
