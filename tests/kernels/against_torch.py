"""The kernels against torch's own operations, under Triton's interpreter.

TRITON_INTERPRET=1 python tests/kernels/against_torch.py
"""

import copy
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.runtime import interpreter

from opencil.kernels import convolution, residual
from opencil.nets import fused, resnet


def narrow_network() -> resnet.ResNet:
    """One block a stage, batch norm that is not the identity."""
    torch.manual_seed(0)
    network = resnet.resnet8()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network


def small_tiles() -> None:
    """Tiles with which little images need several programs, and these several turns."""
    for width in fused.NARROW:
        residual.FORWARD[width] = residual.EVALUATION[width] = residual.Tile(32, 4, 1, 3)
        residual.BACKWARD[width] = residual.Tile(16, 4)
        residual.POINTWISE[width] = residual.Chunks(2, 16, 4)
        residual.WEIGHTS[width] = residual.Chunks(2, 16, 4, across=3 if width == 16 else 1)


@torch.no_grad()
def same(found: Tensor, expected: Tensor, what: str) -> None:
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-8))
    assert off < 1e-4, f"{what}: {off:.1e} of the largest"


def compare(network: resnet.ResNet, images: Tensor, training: bool, towards: tuple[int, ...]) -> None:
    """Compare maps, statistics and gradients, from the maps of some stages."""
    ours = network.train(training).requires_grad_(training)
    torchs = copy.deepcopy(ours)
    of_ours, of_torchs = images.clone().requires_grad_(), images.clone().requires_grad_()
    with mock.patch.object(fused, "works_on", return_value=True):
        assert ours.has_kernels_for(of_ours)
        found = ours.maps(of_ours)
    assert not torchs.has_kernels_for(of_torchs)
    expected = torchs.maps(of_torchs)
    gradients = [torch.randn_like(expected[i]) for i in towards]
    torch.autograd.backward([found[i] for i in towards], gradients)
    torch.autograd.backward([expected[i] for i in towards], gradients)
    for stage, (one, other) in enumerate(zip(found, expected, strict=True)):
        same(one, other, f"map of stage {stage}")
    assert of_ours.grad is not None
    assert of_torchs.grad is not None
    same(of_ours.grad, of_torchs.grad, "gradient of the images")
    for (name, one), other in zip(ours.named_buffers(), torchs.buffers(), strict=True):
        same(one.float(), other.float(), name)
    for (name, one), other in zip(ours.named_parameters(), torchs.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None, name
        else:
            assert one.grad is not None, name
            same(one.grad, other.grad, f"gradient of {name}")


@triton.jit
def _product_of_tf32(a, b, found, side: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    total = tl.zeros((side, side), dtype=tl.float32)
    total = convolution._with_product(tl.load(a + place), tl.load(b + place), total, "tf32")
    tl.store(found + place, total)


def compare_tf32(side: int = 16) -> None:
    """Factors have the nearest ten bits after the first; the interpreter's product is exact otherwise."""

    def nearest(value: Tensor) -> Tensor:
        exponent = value.double().abs().log2().floor()
        return ((value.double() / 2**exponent * 2**10).round() / 2**10 * 2**exponent).nan_to_num(0.0)

    a, b, found = torch.randn(side, side), torch.randn(side, side).exp(), torch.empty(side, side)
    b[0, 0] = 0
    _product_of_tf32[(1,)](a, b, found, side)
    expected = nearest(a) @ nearest(b)
    dropped = a.view(torch.int32).bitwise_and(-0x2000).view(torch.float32)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (dropped.double() - nearest(a)).abs().max() > 1e-4, "dropping bits would pass as well"
    # The GPU's own NaN has all bits set: adding to them would make it a zero.
    a[1, 1] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    a[2, 2] = torch.inf
    _product_of_tf32[(1,)](a, b, found, side)
    assert found[1].isnan().all()
    assert found[2].isinf().all()


def mend_bfloat16() -> None:
    """The interpreter multiplies the bits of bfloat16 as if they were the numbers, and rounds towards 0."""
    builder = interpreter.InterpreterBuilder
    others = builder.cast_impl

    def cast(self: Any, given: Any, wanted: Any) -> Any:
        if (given.dtype.scalar, wanted.scalar) == (tl.float32, tl.bfloat16):
            rounded = torch.tensor(given.data).to(torch.bfloat16).view(torch.uint16)
            return interpreter.TensorHandle(rounded.numpy(), tl.bfloat16)
        return others(self, given, wanted)

    def dot(self: Any, one: Any, other: Any, total: Any, *_: object) -> Any:
        one, other = (x if x.dtype.scalar == tl.float32 else cast(self, x, tl.float32) for x in (one, other))
        return interpreter.TensorHandle(np.matmul(one.data, other.data) + total.data, tl.float32)

    builder.cast_impl, builder.create_dot = cast, dot


def compare_bfloat16(images: Tensor, training: bool) -> None:
    """Features and gradients are as near to float64's as those of torch's autocast."""
    start = narrow_network().train(training).requires_grad_(training)

    def found(kind: str) -> list[Tensor]:
        network = copy.deepcopy(start).double() if kind == "exact" else copy.deepcopy(start)
        given = images.to(next(network.parameters()).dtype).clone().requires_grad_()
        ours, bfloat16 = kind == "ours", (torch.bfloat16, "ieee")
        with (
            mock.patch.object(fused, "works_on", return_value=ours),
            mock.patch.object(fused, "precision", return_value=bfloat16 if ours else None),
            torch.autocast("cpu", torch.bfloat16, enabled=kind == "torch"),
        ):
            features = network(given)
        features.backward(torch.linspace(-1, 1, features.numel()).view_as(features).to(features.dtype))
        assert given.grad is not None
        gradients = [given.grad, *(p.grad for p in network.parameters() if p.grad is not None)]
        return [one.detach().double() for one in (features, *gradients, *network.buffers())]

    exact = found("exact")

    def off(kind: str) -> Tensor:
        pairs = zip(found(kind), exact, strict=True)
        return torch.stack([(one - other).norm() / other.norm().clamp(min=1e-8) for one, other in pairs])

    ours, torchs = off("ours"), off("torch")
    assert torchs.max() > 1e-3, "both would be in float32"
    assert ours[0] <= 2 * torchs[0], f"features: {ours[0]:.1e}, torch's {torchs[0]:.1e}"
    assert ours.median() <= 1.5 * torchs.median(), f"{ours.median():.1e}, torch's {torchs.median():.1e}"
    # A number near 0 that is rounded to the other side of a ReLU moves gradients by more than rounding does.
    assert ours.max() <= 2 * torchs.max() + 0.05, f"the worst: {ours.max():.1e}, torch's {torchs.max():.1e}"


@torch.no_grad()
def see_divergence(training: bool) -> None:
    """NaN in a weight reaches the features through all ReLUs."""
    network = narrow_network().train(training)
    network.blocks[0].conv1.weight[0, 0, 0, 0] = torch.nan
    with mock.patch.object(fused, "works_on", return_value=True):
        assert network(torch.randn(2, 3, 4, 4)).isnan().all()


@torch.no_grad()
def keep_little() -> None:
    """An evaluation without gradients keeps only the wanted activations."""
    passes: list[residual.Pass] = []
    begin = residual.begin

    def noted(*given: Any) -> residual.Pass:
        passes.append(begin(*given))
        return passes[-1]

    with mock.patch.object(fused, "works_on", return_value=True), mock.patch.object(residual, "begin", noted):
        narrow_network().eval().maps(torch.randn(1, 3, 4, 4))
    assert [sorted(done.activations) for done in passes] == [[2, 4, 5, 6]]


if __name__ == "__main__":
    # Torch's default for convolutions is TF32.
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    small_tiles()
    odd = torch.randn(2, 3, 7, 5)
    compare(narrow_network(), odd, training=True, towards=(0, 2))
    compare(narrow_network(), odd, training=True, towards=(1,))
    compare(narrow_network(), odd, training=False, towards=(2,))
    for training in (True, False):
        see_divergence(training)
        compare(narrow_network().split()[1], torch.randn(2, 32, 5, 3).relu(), training, towards=(0,))
    keep_little()
    compare_tf32()
    mend_bfloat16()
    several = torch.randn(2, 3, 6, 6)
    compare_bfloat16(several, training=True)
    compare_bfloat16(several, training=False)
