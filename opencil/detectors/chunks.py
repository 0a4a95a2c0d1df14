"""How much is computed at once, so that memory stays bounded whatever the number of samples."""

#: Bytes of temporary tensors at a time: small enough for a CPU's caches to help, large enough for a GPU.
BUDGET = 64 * 2**20


def rows_at_a_time(bytes_per_row: int) -> int:
    """Rows that fit the budget, at least one."""
    return max(1, BUDGET // bytes_per_row)
