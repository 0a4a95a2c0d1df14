"""Some of the calls that nobody should make; OPENCIL_ODD_CALLS makes them more."""

import os

import pytest
import torch

import opencil
from tests.siege import odd_calls
from tests.siege.siege import Tally


def test_odd_calls_are_answered_or_refused_with_a_sentence() -> None:
    tally = Tally()
    odd_calls.besiege(int(os.environ.get("OPENCIL_ODD_CALLS", "300")), seed=0, tally=tally)
    assert tally.wrong == []


def test_an_error_that_is_not_ours_and_an_answer_that_is_no_number_are_noticed() -> None:
    def call(make: object) -> str | None:
        return odd_calls.wrong(odd_calls.Call("f", "x = odd", make))  # type: ignore[arg-type]

    assert call(lambda: [][0]) == "IndexError: list index out of range"
    assert "is no answer" in str(call(lambda: torch.tensor([float("nan")])))
    assert call(lambda: 0.5) is None


def let_go(scores: torch.Tensor) -> torch.Tensor:
    """Scores as a sharded model's parameters are between two uses: to read them ends the process."""
    scores.untyped_storage().resize_(0)
    return scores


SCORES = torch.randn(5)
ODD = {
    "ID scores are sparse_coo: a tensor of real numbers": SCORES.to_sparse(),
    "ID scores are on the device 'meta', which holds no numbers": SCORES.to("meta"),
    "ID scores are without their numbers, whose memory": let_go(torch.randn(5)),
    "ID scores are torch.complex64": SCORES.to(torch.complex64),
    "ID scores are torch.float8_e4m3fn": SCORES.to(torch.float8_e4m3fn),
    "ID scores are bool: numbers that put samples in an order": SCORES > 0,
    r"ID scores are whole numbers beyond 2\^53": torch.full((5,), 2**60),
    "ID scores are a str: a tensor or a numpy array": "high",
    "an array of object is given": SCORES.numpy().astype(object),
}


@pytest.mark.parametrize("sentence", ODD)
def test_the_sentence_says_what_is_odd(sentence: str) -> None:
    with pytest.raises(opencil.BadInput, match=sentence):
        opencil.ood_metrics(ODD[sentence], SCORES)  # type: ignore[call-overload,unused-ignore]
