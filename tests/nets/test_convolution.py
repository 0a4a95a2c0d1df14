"""The 3 × 3 convolution: what it computes, and its weight gradient against the definition."""

import itertools
import sys
import types
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import Arithmetic
from opencil.nets.convolution import NARROW, Convolution, _Convolve, weight_gradient

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device"),
    ),
]
#: Channels in and out, height, width, stride: odd sides, more and fewer pixels than a chunk has.
SHAPES = [(16, 16, 5, 7, 1), (16, 32, 8, 8, 2), (32, 32, 6, 4, 1), (32, 64, 7, 5, 2), (64, 64, 3, 3, 1)]


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
    # torch's own, on the CPU, is rounded to bfloat16; products of such numbers are exact even in TF32
    tolerance = 1e-2 if device == "cpu" and dtype == torch.bfloat16 else 1e-5
    close = {"rtol": tolerance, "atol": tolerance * float(expected.abs().max())}
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
def test_gradients_are_those_of_torchs_own_convolution(stride: int, device: str) -> None:
    x = drawn(4, 16, 6, 6, device=device).float().requires_grad_()
    weight = drawn(32, 16, 3, 3, seed=1, device=device).float().requires_grad_()
    ours = _Convolve.apply(x, weight, stride, torch.bfloat16)
    plain = nn.functional.conv2d(x.bfloat16(), weight.bfloat16(), stride=stride, padding=1)
    assert torch.equal(ours, plain)
    towards = drawn(*plain.shape, seed=2, device=device)
    found = torch.autograd.grad(ours, (x, weight), towards)
    expected = torch.autograd.grad(plain, (x, weight), towards)
    assert torch.equal(found[0], expected[0])
    scale = float(expected[1].abs().max())
    torch.testing.assert_close(found[1], expected[1], rtol=1e-2, atol=1e-2 * scale)


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA device")
@pytest.mark.parametrize("channels", [*NARROW, 128])
@pytest.mark.parametrize("precision", [None, torch.float16, torch.bfloat16])
def test_layers_that_train_use_it_where_they_are_narrow(channels: int, precision: torch.dtype | None) -> None:
    convolution, x = Convolution(channels, channels).cuda(), drawn(2, channels, 4, 4, device="cuda").float()
    with torch.autocast("cuda", precision, enabled=precision is not None):
        y = convolution(x)
        frozen = convolution.eval()(x)  # ODIN asks for the images' gradient alone
    assert torch.equal(y, frozen)
    assert y.dtype == (precision or torch.float32)
    ours = "_Convolve" in type(y.grad_fn).__name__
    assert ours == (precision != torch.float16 and channels in NARROW)
    assert "_Convolve" not in type(frozen.grad_fn).__name__


@pytest.mark.parametrize(("precision", "uses"), [("tf32", True), ("fp32", False)])
def test_full_float32_is_left_to_torch(
    precision: Literal["tf32", "fp32"], uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    kernel = types.ModuleType("opencil.kernels.weight_gradient")
    kernel.launch = lambda *given: launched.append(given) or torch.zeros(16, 16, 3, 3)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernel.__name__, kernel)
    monkeypatch.setattr("opencil.nets.convolution._has_triton", lambda _: True)
    x = drawn(2, 16, 4, 4)
    with Arithmetic(precision).active():
        weight_gradient(x.float(), x.float(), 1)
        assert bool(launched) == uses
        weight_gradient(x, x, 1)
        assert len(launched) == uses + 1
