"""Shared by detectors that shape features: the energy of shaped features, and a sample's largest."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from opencil import Detector, Outputs
from opencil.detectors.moments import compute_by_parts
from opencil.validation import Bound

Percentile = Annotated[float, Bound(ge=0, le=100)]


@dataclass
class Shaper(Detector):
    """Energy of shaped features."""

    reads = frozenset({"features", "head"})

    @abstractmethod
    def shape(self, features: Tensor) -> Tensor:
        """Return the shaped features φ̃ [B, D]."""

    def scores(self, outputs: Outputs) -> Tensor:
        """Return logsumexp(h(φ̃)), [N]."""
        classify, features = outputs.classify, outputs.features
        assert classify is not None
        numbers = 5 * features.shape[1]  # a sorted copy with its indices, and the shaped features
        return compute_by_parts(lambda f: classify(self.shape(f)).float().logsumexp(dim=1), numbers, features)


def largest(features: Tensor, percentile: float) -> tuple[Tensor, Tensor]:
    """Return each sample's features above its own percentile, at least one, and their columns, [B, k]."""
    width = features.shape[1]
    count = max(1, width - round(width * percentile / 100))
    # Stable: among equal features every device takes the first.
    values, columns = features.sort(dim=1, descending=True, stable=True)
    return values[:, :count], columns[:, :count]


def crowding(features: Tensor, top: Tensor) -> Tensor:
    """Return Σφ⁺ over the sum of the largest φ⁺, [B, 1]: 1 if all are 0."""
    total, of_top = (part.clamp(min=0).sum(dim=1, keepdim=True) for part in (features, top))
    return torch.where(of_top > 0, total / of_top, 1.0)
