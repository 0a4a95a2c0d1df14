"""Random numbers that mixing images takes."""

from typing import Annotated

import torch
from torch import Tensor

from opencil.validation import Bound

#: Of a Beta or Dirichlet distribution; below its range draws underflow.
Concentration = Annotated[float, Bound(ge=0.01, le=1e6)]


def beta(concentration: float, shape: tuple[int, ...], numbers: torch.Generator) -> Tensor:
    """Draws from Beta(a, a), float32: the first part of Dirichlet(a, a)."""
    return dirichlet(concentration, (*shape, 2), numbers)[..., 0]


def dirichlet(concentration: float, shape: tuple[int, ...], numbers: torch.Generator) -> Tensor:
    """Draws from the symmetric Dirichlet distribution over the last dimension, float32."""
    # torch.distributions would draw from the global generator.
    drawn = torch._sample_dirichlet(torch.full(shape, concentration, dtype=torch.float64), numbers)
    return drawn.float()
