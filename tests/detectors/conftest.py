"""Outputs to score: some in-distribution by plan, some out of it."""

from collections.abc import Callable

import pytest
import torch

from opencil.engine.forward import Outputs

CLASSES, WIDTH = 5, 16


@pytest.fixture(scope="session")
def make_outputs() -> Callable[..., Outputs]:
    """Features that lie at a class's prototype (``strength`` 1) or near the origin (0), and their logits."""
    prototypes = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0)).relu()

    def make(count: int, strength: float = 1.0, seed: int = 1) -> Outputs:
        numbers = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, CLASSES, (count,), generator=numbers)
        noise = 0.3 * torch.randn(count, WIDTH, generator=numbers)
        features = (strength * 2 * prototypes[labels] + noise).relu()
        return Outputs(features, features @ prototypes.T, labels)

    return make
