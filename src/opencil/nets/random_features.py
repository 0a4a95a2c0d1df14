"""Random-feature head, and a model with the sums of its ridge regression."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.nets.model import Backbone, Model

#: Distribution of random matrices: N(0, 1), or uniform between ±1/√D, D the number of features.
Drawn = Literal["normal", "uniform"]
#: Number of images whose random features are computed at once.
ROWS = 4096


class RandomFeatureHead(nn.Module):
    """ReLU(f R) for a random matrix R [D, width], and a linear layer without a bias; |f| = 1 if ``unit``."""

    projection: Tensor

    def __init__(self, inputs: int, width: int, classes: int, drawn: Drawn, unit: bool = False) -> None:
        super().__init__()
        self.unit = unit
        bound = inputs**-0.5
        uniform = torch.empty(inputs, width).uniform_(-bound, bound)
        self.register_buffer("projection", torch.randn(inputs, width) if drawn == "normal" else uniform)
        self.last = nn.Linear(width, classes, bias=False)

    @property
    def in_features(self) -> int:
        """Return the number of input features."""
        return len(self.projection)

    @property
    def out_features(self) -> int:
        """Return the number of classes."""
        return self.last.out_features

    def expand(self, features: Tensor) -> Tensor:
        """Return random features [B, width]."""
        return F.relu((F.normalize(features, dim=1) if self.unit else features) @ self.projection)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits [B, classes], computed in chunks of rows."""
        return torch.cat([self.last(self.expand(rows)) for rows in torch.split(features, ROWS)])


class RidgeModel(Model):
    """A backbone, the linear head of its first step, a random-feature head, and sums over all images seen.

    ``gram`` [width, width] is Σ h hᵀ and ``products`` [width, classes] Σ h yᵀ, of random features h and
    one-hot labels y; ``exact`` is their dtype. Without ``sums`` they have no rows, and no step can follow.
    """

    head: RandomFeatureHead  # type: ignore[assignment]
    gram: Tensor
    products: Tensor

    def __init__(
        self,
        backbone: Backbone,
        sizes: Sequence[int],
        width: int,
        drawn: Drawn,
        exact: torch.dtype,
        unit: bool = False,
        sums: bool = True,
    ) -> None:
        super().__init__(backbone, sizes[0])
        self.first_head = self.head
        self.head = RandomFeatureHead(backbone.width, width, sum(sizes), drawn, unit)
        rows = width if sums else 0
        self.register_buffer("gram", torch.zeros(rows, rows, dtype=exact))
        self.register_buffer("products", torch.zeros(rows, sum(sizes), dtype=exact))

    def grow(self, classes: int) -> None:
        """Add zeros for new classes."""
        last, new = self.head.last, classes - self.head.out_features
        self.head.last = nn.Linear(last.in_features, classes, bias=False).to(last.weight.device)
        self.head.last.weight.data.copy_(F.pad(last.weight.data, (0, 0, 0, new)))
        self.products = F.pad(self.products, (0, new))
