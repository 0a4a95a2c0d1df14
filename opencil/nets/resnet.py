"""Residual networks for small images (He et al. 2016, section 4.2): 6n + 2 layers in three stages."""

import torch.nn.functional as F
from torch import Tensor, nn

from opencil.nets.model import Backbone
from opencil.registry import register_backbone


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions around a shortcut without parameters (option A).

    Where the width changes the shortcut takes every second pixel and appends channels of zeros.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.extra = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, width, H / stride, W / stride]."""
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(residual + F.pad(shortcut, (0, 0, 0, 0, 0, self.extra)))


class SmallResNet(Backbone):
    """Stages of 16, 32 and 64 channels, ``blocks`` blocks each; f is 64-d and, after the last ReLU, ≥ 0."""

    width = 64

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        layers, inputs = [], 16
        for width in (16, 32, 64):
            for i in range(blocks):
                layers.append(BasicBlock(inputs, width, stride=2 if i == 0 and width > 16 else 1))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 64]."""
        x = self.blocks(F.relu(self.norm(self.stem(images))))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


@register_backbone("resnet8")
def resnet8() -> SmallResNet:
    """ResNet-8: one block per stage, for the embedded digits."""
    return SmallResNet(blocks=1)


@register_backbone("resnet32")
def resnet32() -> SmallResNet:
    """ResNet-32: five blocks per stage, the paper's network for CIFAR-100."""
    return SmallResNet(blocks=5)
