"""Random numbers: every use has a generator of its own, derived from a seed and the purpose.

Nothing carries a generator from one step to the next, so a run that resumes draws the same numbers.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(*parts: int | str) -> int:
    """A seed that depends on all parts, such as ``derive(seed, "shuffle", step, epoch)``."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded by ``derive``."""
    return torch.Generator().manual_seed(derive(*parts))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Torch's global CPU generator seeded inside the block and restored after it: for initialising layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(*parts))
        yield
