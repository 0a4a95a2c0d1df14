"""Compute in parts, so that memory stays bounded for any number of samples."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Float32 numbers in temporary tensors at a time: few enough for a CPU's caches, enough for a GPU.
BUDGET = 2**24


def rows_at_a_time(numbers: int) -> int:
    """Return the count of rows, at least one, that fit the budget with ``numbers`` float32 each."""
    return max(1, BUDGET // numbers)


def compute_by_parts(compute: Callable[..., Tensor], numbers: int, *tensors: Tensor) -> Tensor:
    """Return ``compute`` of the tensors, concatenated from parts; it needs ``numbers`` float32 for a row.

    Results are copied at once: small results between large freed temporaries fragment a CPU's heap, which
    then grows by gigabytes for a budget of megabytes.
    """
    rows = rows_at_a_time(numbers)
    parts = zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
    first = compute(*next(parts))
    found = first.new_empty(len(tensors[0]), *first.shape[1:])
    places = iter(torch.split(found, rows))
    next(places).copy_(first)
    del first
    for part, place in zip(parts, places, strict=True):
        place.copy_(compute(*part))
    return found
