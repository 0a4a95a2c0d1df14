"""A backbone that is a class."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

import opencil
from opencil.validation import Count


@opencil.register_backbone("small-net")
class SmallNet(opencil.Backbone):
    """Convolutions that halve the image, each with twice the channels of the one before."""

    def __init__(self, channels: Count = 16, stages: Count = 2) -> None:
        super().__init__()
        widths = [3, *(channels * 2**i for i in range(stages))]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b))
            for a, b in pairwise(widths)
        )
        self.width = widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        return self.maps(images)[-1].mean(dim=(2, 3))

    def maps(self, images: Tensor) -> list[Tensor]:
        found = [images]
        for layer in self.layers:
            found.append(F.relu(layer(found[-1])))
        return found[1:]
