"""Random numbers: each use has its own generator, derived from a seed and the purpose.

No generator is carried from one step to the next, so a resumed run draws the same numbers.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(*parts: int | str) -> int:
    """Return a seed derived from all parts, such as ``derive(seed, "shuffle", step, epoch)``."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by ``derive``."""
    return torch.Generator().manual_seed(derive(*parts))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Seed torch's global CPU generator inside the block, to initialise layers, and restore it after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(*parts))  # torch.manual_seed seeds accelerators too
        yield
