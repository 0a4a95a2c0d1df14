"""How much is computed at once, so that memory stays bounded whatever the number of samples."""

from collections.abc import Callable

import torch
from torch import Tensor

#: Bytes of temporary tensors at a time: small enough for a CPU's caches to help, large enough for a GPU.
BUDGET = 64 * 2**20


def rows_at_a_time(bytes_per_row: int) -> int:
    """Rows that fit the budget, at least one."""
    return max(1, BUDGET // bytes_per_row)


def by_parts(compute: Callable[..., Tensor], rows: int, *tensors: Tensor) -> Tensor:
    """What ``compute`` gives for ``rows`` of the tensors at a time, one below the other.

    No part's result outlives the next part: kept small tensors would lie between the large temporaries that
    are freed, and on a CPU the heap can then grow by all of these, gigabytes for a budget of megabytes.
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
