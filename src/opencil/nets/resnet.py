"""Residual networks (He et al. 2016): the small ones of its section 4.2, and ResNet-18."""

from collections.abc import Sequence
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from opencil.nets import fused
from opencil.nets.model import Backbone
from opencil.registry import register_backbone


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut.

    Where the width changes, the shortcut is a strided 1 × 1 convolution (``projection``, option B), or it
    takes every second pixel and appends channels of zeros (option A).
    """

    signed = False  #: without a ReLU at its end

    def __init__(self, inputs: int, width: int, stride: int, projection: bool = False) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, stride)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = _convolution(width, width)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.extra = stride, width - inputs
        self.project: nn.Sequential | None = None
        if projection and self.extra:
            shrink = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.project = nn.Sequential(shrink, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [B, width, H / stride, W / stride] of maps [B, inputs, H, W]."""
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.project is not None:
            total = residual + self.project(x)
        else:
            shortcut = x[:, :, :: self.stride, :: self.stride]
            total = residual + F.pad(shortcut, (0, 0, 0, 0, 0, self.extra))
        return total if self.signed else F.relu(total)


class ResNet(Backbone):
    """A stem, stages of the same number of basic blocks, and the mean over pixels: ≥ 0, unless signed."""

    def __init__(self, stem: nn.Module, blocks: Sequence[BasicBlock], per_stage: int) -> None:
        super().__init__()
        self.stem, self.blocks, self.per_stage = stem, nn.Sequential(*blocks), per_stage
        self.width = blocks[-1].conv2.out_channels

    @classmethod
    def create(
        cls, stem: nn.Module, widths: tuple[int, ...], per_stage: int, projection: bool, signed: bool
    ) -> "ResNet":
        """Create stages of these widths, each halving the image after the first; ``signed``: no last ReLU."""
        blocks, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for i in range(per_stage):
                blocks.append(BasicBlock(inputs, width, 2 if stage and i == 0 else 1, projection))
                inputs = width
        blocks[-1].signed = signed
        network = cls(stem, blocks, per_stage)
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return network

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, width] of images [B, 3, H, W]."""
        return self.features_and_maps(images)[0]

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return features and the stages' maps, from one pass."""
        maps = self.maps(images)
        return F.adaptive_avg_pool2d(maps[-1], 1).flatten(1), maps

    def split(self) -> tuple["ResNet", "ResNet"]:
        """Return all stages but the last, and the last; both share this network's layers."""
        blocks, count = cast(list[BasicBlock], list(self.blocks)), self.per_stage
        parts = ResNet(self.stem, blocks[:-count], count), ResNet(nn.Identity(), blocks[-count:], count)
        for part in parts:
            part.frozen = self.frozen
        return parts

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the maps of each stage after its last ReLU, [B, C, H, W] each."""
        if self.has_kernels_for(images):
            layers = self._layers()
            step = 2 * self.per_stage
            return fused.activations(layers, images, range(len(layers) % 2 + step - 1, len(layers), step))
        x, found = self.stem(images), []
        for number, block in enumerate(self.blocks, start=1):
            x = block(x)
            if number % self.per_stage == 0:
                found.append(x)
        return found

    def has_kernels_for(self, images: Tensor) -> bool:
        """Return whether all layers are narrow and the images on a GPU with kernels."""
        # Not on a CPU, where listing the layers would take 1 % of a small network's step.
        layers = self._layers() if images.is_cuda or fused.works_on(images.device) else []
        return bool(layers) and fused.fits(layers, images)

    def _layers(self) -> list[fused.Layer]:
        """Return all layers of a network with a plain stem and shortcuts without parameters, else none."""
        stem = list(self.stem) if isinstance(self.stem, nn.Sequential) else [self.stem]
        layers: list[fused.Layer] = []
        if [type(part) for part in stem] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
            convolution, norm, _ = stem
            assert isinstance(convolution, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            layers.append((convolution, norm, False))
        elif [type(part) for part in stem] != [nn.Identity]:  # of a split network's last stage
            return []
        if any(_has_hooks(module) for module in (*self.stem.modules(), *self.blocks.modules())):
            return []
        for block in self.blocks:
            if not isinstance(block, BasicBlock) or block.project is not None or block.signed:
                return []
            layers += [(block.conv1, block.norm1, False), (block.conv2, block.norm2, True)]
        return layers


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def _small(blocks: int, signed: bool) -> ResNet:
    """Create 6 · blocks + 2 layers for images of 8 to 64 pixels; f is 64-d."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return ResNet.create(stem, (16, 32, 64), blocks, projection=False, signed=signed)


@register_backbone("resnet8")
def resnet8(signed: bool = False) -> ResNet:
    """ResNet-8: one block per stage, for the embedded digits; f is 64-d."""
    return _small(blocks=1, signed=signed)


@register_backbone("resnet32")
def resnet32(signed: bool = False) -> ResNet:
    """ResNet-32: five blocks per stage, the paper's network for CIFAR-100; f is 64-d."""
    return _small(blocks=5, signed=signed)


@register_backbone("resnet18")
def resnet18(signed: bool = False, stem: Literal["large", "small"] = "large") -> ResNet:
    """ResNet-18: the standard one, the paper's network for ImageNet; f is 512-d.

    With a ``small`` stem, for images of 32 to 64 pixels, only the stages shrink the maps.
    """
    if stem == "large":
        first = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        layers = [first, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    else:
        layers = [_convolution(3, 64), nn.BatchNorm2d(64), nn.ReLU()]
    stages = (64, 128, 256, 512)
    return ResNet.create(nn.Sequential(*layers), stages, per_stage=2, projection=True, signed=signed)
