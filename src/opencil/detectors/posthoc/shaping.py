"""What detectors that shape features share: the energy of shaped features, and the largest of a sample's."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from opencil.detectors.chunks import by_parts, rows_at_a_time
from opencil.engine.forward import Outputs
from opencil.validation import Bound

Percentile = Annotated[float, Bound(ge=0, le=100)]


def shaped_energy(outputs: Outputs, shaped: Callable[[Tensor], Tensor]) -> Tensor:
    """logsumexp(h(shaped(φ))), [N], a few samples at a time."""
    classify, features = outputs.classify, outputs.features
    assert classify is not None
    # A sorted copy with its places, and the shaped one.
    rows = rows_at_a_time(5 * features.shape[1] * features.element_size())
    return by_parts(lambda part: classify(shaped(part)).float().logsumexp(dim=1), rows, features)


def largest(features: Tensor, percentile: float) -> tuple[Tensor, Tensor]:
    """Each sample's features beyond its own percentile, at least one, and their columns: [B, k] both."""
    width = features.shape[1]
    count = max(1, width - round(width * percentile / 100))
    # Stable, so that of equal features the first are taken on every device.
    values, columns = features.sort(dim=1, descending=True, stable=True)
    return values[:, :count], columns[:, :count]


def crowding(features: Tensor, top: Tensor) -> Tensor:
    """Σφ over the sum of its largest, [B, 1]: 1 where these are all there is. Those below 0 count as 0."""
    total, of_top = (part.clamp(min=0).sum(dim=1, keepdim=True) for part in (features, top))
    return torch.where(of_top > 0, total / of_top, 1.0)
