"""Random numbers that mixing images takes."""

import torch
from torch import Tensor

from opencil.engine.seeding import seeded


def beta(concentration: float, shape: tuple[int, ...], numbers: torch.Generator) -> Tensor:
    """Draws from Beta(a, a), float32."""
    # torch's distributions draw from the global generator alone.
    seed = int(torch.randint(2**62, (), generator=numbers))
    with seeded(seed):
        return torch.distributions.Beta(concentration, concentration).sample(shape)
