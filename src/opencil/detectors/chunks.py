"""Compute in parts, so that memory stays bounded for any number of samples."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Bytes of temporary tensors at a time: small enough for a CPU's caches, large enough for a GPU.
BUDGET = 64 * 2**20


def rows_at_a_time(bytes_per_row: int) -> int:
    """Return the number of rows that fit the budget, at least one."""
    return max(1, BUDGET // bytes_per_row)


def compute_by_parts(compute: Callable[..., Tensor], rows: int, *tensors: Tensor) -> Tensor:
    """Return ``compute`` of the tensors, concatenated from parts of ``rows`` rows.

    Results are copied at once: small results between large freed temporaries fragment a CPU's heap, which
    then grows by gigabytes for a budget of megabytes.
    """
    parts = zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
    first = compute(*next(parts))
    found = first.new_empty(len(tensors[0]), *first.shape[1:])
    places = iter(torch.split(found, rows))
    next(places).copy_(first)
    del first
    for part, place in zip(parts, places, strict=True):
        place.copy_(compute(*part))
    return found
