"""The kernels against torch's own operations, under Triton's interpreter.

TRITON_INTERPRET=1 python tests/kernels/against_torch.py
"""

import copy
from unittest import mock

import torch
from torch import Tensor, nn

from opencil.kernels import residual
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


def same(found: Tensor, expected: Tensor, what: str) -> None:
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-8))
    assert off < 1e-4, f"{what}: {off:.1e} of the largest"


def compare(images: Tensor, training: bool, towards: tuple[int, ...]) -> None:
    """Maps, statistics and gradients, from the maps of some stages."""
    ours = narrow_network().train(training).requires_grad_(training)
    torchs = copy.deepcopy(ours)
    of_ours, of_torchs = images.clone().requires_grad_(), images.clone().requires_grad_()
    with mock.patch.object(fused, "_works", return_value=True):
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


if __name__ == "__main__":
    small_tiles()
    odd = torch.randn(2, 3, 7, 5)
    compare(odd, training=True, towards=(0, 2))
    compare(odd, training=True, towards=(1,))
    compare(odd, training=False, towards=(2,))
