"""Mix images of two new classes, and draw the random numbers of mixtures."""

from typing import Annotated

import torch
from torch import Tensor

from opencil.detectors.finetune.tuner import Batch
from opencil.validation import Bound

#: The concentration of a Beta or Dirichlet distribution; smaller values underflow.
Concentration = Annotated[float, Bound(ge=0.01, le=1e6)]


def beta(concentration: float, shape: tuple[int, ...], numbers: torch.Generator) -> Tensor:
    """Draw from Beta(a, a), float32: the first part of Dirichlet(a, a)."""
    return dirichlet(concentration, (*shape, 2), numbers)[..., 0]


def dirichlet(concentration: float, shape: tuple[int, ...], numbers: torch.Generator) -> Tensor:
    """Draw from the symmetric Dirichlet distribution over the last dimension, float32."""
    # torch.distributions draws from the global generator.
    drawn = torch._sample_dirichlet(torch.full(shape, concentration, dtype=torch.float64), numbers)
    return drawn.float()


class Mixer:
    """Draw mixtures of two new images for a tuner with a ``concentration`` of b ~ Beta."""

    changes_images = True

    concentration: float

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """Draw each iteration's b, and a number in [0, 1) that chooses each image's partner."""
        weights = beta(self.concentration, (iterations,), numbers)
        return weights, torch.rand(iterations, batch, generator=numbers)


def mix_classes(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return b x_i + (1 − b) x_j for new images of different classes, and whether there are such pairs."""
    x, (weight, chance) = batch.current, batch.drawn
    partner, possible = other_class(x.labels, chance)
    return weight * x.images + (1 - weight) * x.images[partner], possible


def other_class(labels: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Return a partner of another class for each image [B], by ``chance`` [B], and whether any exist."""
    other = labels[:, None] != labels[None, :]
    count = other.sum(dim=1)
    # Below the count: draws are at most 1 − 2^-24, so that no product rounds up to the count.
    wanted = (chance * count).long()
    # The first column with more than ``wanted`` partners up to it.
    partner = (other.cumsum(dim=1) > wanted[:, None]).int().argmax(dim=1)
    return partner, other.any()
