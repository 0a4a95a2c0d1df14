"""Random numbers by purpose."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from opencil.engine.seeding import derive, seeded

PARTS = st.lists(st.integers(0, 2**40) | st.text("abcxyz", min_size=1, max_size=5), min_size=1, max_size=4)


@given(first=PARTS, second=PARTS)
def test_distinct_parts_give_distinct_seeds(first: list[int | str], second: list[int | str]) -> None:
    assert (derive(*first) == derive(*second)) == (first == second)
    assert 0 <= derive(*first) < 2**63, "torch and numpy take it"


def test_a_seed_is_the_same_in_every_process() -> None:
    """Runs that resume in a new process depend on it; so do results published with a seed."""
    assert derive(0, "step", 1, "train") == 3482487954451388938


def test_seeded_draws_the_same_and_restores_the_global_generator() -> None:
    def drawn(*parts: int | str) -> torch.Tensor:
        with seeded(*parts):
            return torch.rand(4)

    torch.manual_seed(3)
    first = drawn(7, "head")
    after = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), after)  # as if nothing had been drawn in between
    assert torch.equal(drawn(7, "head"), first)
    assert not torch.equal(drawn(8, "head"), first)
    assert not torch.equal(drawn(7, "backbone"), first), "every part counts"
