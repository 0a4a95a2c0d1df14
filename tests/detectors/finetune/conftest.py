"""Provide a small model that records its inputs, and images of two old and two new classes."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.data.transforms import Transform
from opencil.detectors.finetune.tuner import Batch, Tuner
from opencil.detectors.finetune.views import Views, ViewSource
from opencil.engine.forward import Inputs

CLASSES, WIDTH, SIDE = 4, 6, 4
TRANSFORM = Transform((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), crop=SIDE, flip=False)


class Toy(nn.Module):
    """Features relu(A·x + a) and logits W·f + b; ``asked`` has the images of each forward pass."""

    def __init__(self, classes: int = CLASSES, width: int = WIDTH, side: int = SIDE) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(7)
        self.first, self.head = nn.Linear(3 * side * side, width), nn.Linear(width, classes)
        self.norm = nn.BatchNorm1d(width)  # whose statistics would drift in training mode
        with torch.no_grad():
            for p in (*self.first.parameters(), *self.head.parameters()):
                p.copy_(torch.randn(p.shape, generator=numbers) * (0.3 if p.shape == (width, 48) else 0.8))
        self.asked: list[Tensor] = []
        self.eval()

    def features(self, images: Tensor) -> Tensor:
        self.asked.append(images.clone())
        return F.relu(self.norm(self.first(images.flatten(1))))

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)

    def extra_head(self) -> nn.Module:
        return copy.deepcopy(self.head).requires_grad_(True)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture(scope="session")
def normalised() -> Callable[..., Tensor]:
    """So many random images of whole pixels, no two of them alike, normalised."""

    def make(count: int, seed: int = 0) -> Tensor:
        numbers = torch.Generator().manual_seed(seed)
        pixels = torch.randint(0, 256, (count, 3, SIDE, SIDE), generator=numbers)
        return TRANSFORM.normalise(pixels)

    return make


@pytest.fixture
def make_batch(toy: Toy, normalised: Callable[..., Tensor]) -> Callable[..., Batch]:
    """A batch of six current images of classes 2 and 3, and six of the memory, of classes 0 and 1."""

    def make(tuner: Tuner, memory: bool = True, current: list[int] | None = None) -> Batch:
        labels = torch.tensor([*(current or [2, 3, 3, 2, 3, 2]), 0, 1, 1, 0, 1, 0])
        images, old = normalised(12), torch.arange(12) >= 6
        if not memory:
            images, labels, old = images[:6], labels[:6], old[:6]
        source = ViewSource(Inputs(toy, images, TRANSFORM), labels, old, tasks=torch.tensor([1, 1, 2, 2]))
        with torch.no_grad():
            views = Views(images, toy.features(images), labels)
        toy.asked.clear()
        parts = [Views(*(tensor[i : i + 6] for tensor in views)) for i in range(0, len(labels), 6)]
        drawn = tuner.draw(3, 6, len(parts), torch.Generator().manual_seed(1))
        return Batch(
            parts[0],
            parts[1] if memory else None,
            tuple(tensor[0] for tensor in tuner.prepare(source, parts, tuple(t[1:2] for t in drawn))),
            source,
            torch.Generator().manual_seed(2),
        )

    return make
