"""Mixtures of images: the random numbers that they take, and BER's, of two new classes."""

from typing import Annotated

import torch
from torch import Tensor

from opencil.detectors.finetune.tuner import Batch
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


def draw_mixtures(
    concentration: float, iterations: int, batch: int, numbers: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each iteration's b ~ Beta; which of the possible partners each image gets, in [0, 1)."""
    weights = beta(concentration, (iterations,), numbers)
    return weights, torch.rand(iterations, batch, generator=numbers)


def mixtures(batch: Batch) -> tuple[Tensor, Tensor]:
    """b x_i + (1 − b) x_j, each new image with one of another class, and whether there are any such pairs."""
    x, (weight, chance) = batch.current, batch.drawn
    partner, possible = other_class(x.labels, chance)
    return weight * x.images + (1 - weight) * x.images[partner], possible


def other_class(labels: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """A partner of another class for each image [B], and whether there are any; ``chance`` [B] picks it."""
    other = labels[:, None] != labels[None, :]
    count = other.sum(dim=1)
    # Below the count: of draws below 1, in steps of 2^-24, no product with it rounds up to it.
    wanted = (chance * count).long()
    # The first column at which so many partners have been passed.
    partner = (other.cumsum(dim=1) > wanted[:, None]).int().argmax(dim=1)
    return partner, other.any()
