"""The small residual networks: size, shortcut, initialisation."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.seeding import seeded
from opencil.nets.resnet import BasicBlock, ResNet, resnet8, resnet18, resnet32
from opencil.registry import BACKBONES


def random_batch(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_resnet32_is_the_papers() -> None:
    network = resnet32()
    assert sum(p.numel() for p in network.parameters()) == 463_504
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 31  # and the head is the 32nd layer
    assert [c.out_channels for c in convolutions] == [16] * 11 + [32] * 10 + [64] * 10
    assert [i for i, c in enumerate(convolutions) if c.stride == (2, 2)] == [11, 21]


@pytest.mark.parametrize("name", ["resnet8", "resnet32", "resnet18"])
def test_a_signed_network_lacks_the_last_relu_and_nothing_else(name: str) -> None:
    with seeded(0):
        signed = BACKBONES.create(name, signed=True).eval()
    plain = BACKBONES.create(name).eval()
    plain.load_state_dict(signed.state_dict(), strict=True)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        *earlier, last = signed.maps(images)
        *expected, after = plain.maps(images)
    assert float(last.min()) < 0
    assert torch.equal(last.relu(), after)
    assert all(torch.equal(a, b) for a, b in zip(earlier, expected, strict=True))
    assert signed._layers() == []  # the kernels have a ReLU at their end
    assert BasicBlock(3, 3, 1).signed is False


@pytest.mark.parametrize(
    ("inputs", "width", "stride", "side"), [(16, 16, 1, 4), (32, 64, 2, 8), (4, 8, 2, 5)]
)
def test_the_shortcut_takes_every_second_pixel_and_adds_zeros(
    inputs: int, width: int, stride: int, side: int
) -> None:
    """With a residual of zero a block is its shortcut, after the ReLU."""
    block = BasicBlock(inputs, width, stride)
    nn.init.zeros_(block.norm2.weight)
    x = random_batch(2, inputs, side, side)
    found = block(x)
    assert torch.equal(found[:, :inputs], x[:, :, ::stride, ::stride].clamp(min=0))
    assert not found[:, inputs:].any()


def test_the_residual_is_two_convolutions_with_a_relu_between() -> None:
    with seeded(1):
        block = BasicBlock(3, 3, 1).eval()
    x = random_batch(2, 3, 4, 4).abs()
    scale = 1 / math.sqrt(1 + block.norm1.eps)  # batch-norm before any training, in eval mode
    inner = (nn.functional.conv2d(x, block.conv1.weight, padding=1) * scale).clamp(min=0)
    residual = nn.functional.conv2d(inner, block.conv2.weight, padding=1) * scale
    torch.testing.assert_close(block(x), (residual + x).clamp(min=0))


def test_resnet18_is_the_reference_layer_by_layer() -> None:
    """Shapes and count of the standard network without its classifier: 11,689,512 − 513,000 parameters."""
    network = resnet18()
    assert sum(p.numel() for p in network.parameters()) == 11_176_512
    expected = [(64, 3, 7, 7, 2)]
    for inputs, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        stride = 1 if inputs == width else 2
        expected += [(width, inputs, 3, 3, stride), (width, width, 3, 3, 1)]
        if stride == 2:
            expected += [(width, inputs, 1, 1, 2)]  # the projection
        expected += [(width, width, 3, 3, 1)] * 2
    found = [(*m.weight.shape, m.stride[0]) for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert found == expected
    sides = []
    for module in (network.stem, *network.blocks):
        module.register_forward_hook(lambda _module, _inputs, output: sides.append(output.shape[-1]))
    assert network.eval()(random_batch(1, 3, 224, 224)).shape == (1, 512)
    assert sides == [56, 56, 56, 28, 28, 14, 14, 7, 7]


@pytest.mark.parametrize(
    ("make", "side", "shapes"),
    [
        (resnet8, 8, [(16, 8, 8), (32, 4, 4), (64, 2, 2)]),
        (resnet32, 32, [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
        (resnet18, 64, [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]),
        (partial(resnet18, stem="small"), 64, [(64, 64, 64), (128, 32, 32), (256, 16, 16), (512, 8, 8)]),
    ],
)
def test_maps_are_what_each_stages_last_block_gives(
    make: Callable[[], ResNet], side: int, shapes: list[tuple[int, int, int]]
) -> None:
    with seeded(0):
        network = make().eval()
    images, after = random_batch(2, 3, side, side), []
    x = network.stem(images)
    for block in network.blocks:
        x = block(x)
        after.append(x)
    maps = network.maps(images)
    assert [tuple(m.shape[1:]) for m in maps] == shapes
    per_stage = len(after) // len(shapes)
    assert all(torch.equal(m, after[per_stage * (i + 1) - 1]) for i, m in enumerate(maps))
    assert torch.equal(network(images), nn.functional.adaptive_avg_pool2d(maps[-1], 1).flatten(1))


@pytest.mark.parametrize(("make", "side"), [(resnet8, 8), (resnet32, 16), (resnet18, 32)])
def test_a_network_splits_before_its_last_stage(make: type[ResNet], side: int) -> None:
    with seeded(0):
        network = make().eval()
    images = random_batch(2, 3, side, side)
    shared, last = network.split()
    maps = shared.maps(images)
    assert [m.shape for m in maps] == [m.shape for m in network.maps(images)[:-1]]
    assert torch.equal(last(maps[-1]), network(images))
    assert (shared.width, last.width) == (network.width // 2, network.width)
    parts = [id(p) for part in (shared, last) for p in part.parameters()]
    assert parts == [id(p) for p in network.parameters()], "the same layers, in their order"
    for part in network.freeze().split():
        assert not list(part.train().parameters())
