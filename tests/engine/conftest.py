"""Noise images with labels, and a small model."""

from dataclasses import replace

import pytest
import torch

from opencil.data.digits import Noise
from opencil.data.images import ImageSet
from opencil.data.transforms import Transform
from opencil.engine.seeding import seeded
from opencil.nets.model import Model
from opencil.nets.resnet import resnet8


@pytest.fixture
def images() -> ImageSet:
    """Ten images of 8 × 8 pixels in three classes."""
    return replace(Noise(count=10).load("train", 8, None), labels=torch.arange(10) % 3)


@pytest.fixture
def model() -> Model:
    """A ResNet-8 over three classes, the same every time."""
    with seeded(0, "model"):
        return Model(resnet8(), 3)


@pytest.fixture
def plain() -> Transform:
    """A transform without random choices."""
    return Transform((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=8, flip=False)
