"""A few of the fuzzers' inputs, and that they notice what is wrong; thousands are tried by ``make siege``."""

import os
import random
import time
from pathlib import Path

import pytest

from opencil.errors import BadInput
from tests.siege import fuzz_configs, fuzz_readers
from tests.siege.fuzz import LARGE, Input, Trial, fuzz, fuzz_apart


@pytest.mark.parametrize(("trial", "count"), [(fuzz_configs.trial, 100), (fuzz_readers.trial, 250)])
def test_inputs_are_taken_or_refused_in_a_sentence(trial: Trial, count: int) -> None:
    tally = fuzz(trial, 1, range(count))
    assert tally.wrong == []
    assert tally.count == count
    assert tally.taken.total() > count // 25
    assert tally.refused.total() > count // 2


def _refuse(random: random.Random, folder: Path) -> str:
    raise Input("mine", BadInput("this is no number: say 3"))


def _fail(random: random.Random, folder: Path) -> str:
    raise Input("mine", KeyError("x"))


def _say_nothing(random: random.Random, folder: Path) -> str:
    raise Input("mine", BadInput(""))


def _hang(random: random.Random, folder: Path) -> str:
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    return "mine"


def _fill(random: random.Random, folder: Path) -> str:
    bytearray(b"x") * int(LARGE + 1e8)
    return "mine"


def _die(random: random.Random, folder: Path) -> str:
    os._exit(3)


@pytest.mark.parametrize(
    ("trial", "wrong"),
    [
        (_refuse, ""),
        (_fail, "KeyError: 'x'"),
        (_say_nothing, "BadInput"),
        (_hang, "0.2 s"),
        (_fill, " MB"),
        (_die, "ends the process"),
    ],
)
def test_what_is_wrong_is_noticed(trial: Trial, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.siege.fuzz.HANG", 0.1 if trial is _hang else 60)
    tally = fuzz_apart(trial, 3, range(17, 18))
    assert (len(tally.wrong), tally.refused.total()) == ((1, 0) if wrong else (0, 1))
    assert not wrong or ("input 17 of seed 3" in tally.wrong[0] and wrong in tally.wrong[0])


def test_an_input_is_the_same_whichever_are_tried_before_it() -> None:
    def drawn(start: int) -> list[float]:
        found: list[float] = []

        def trial(random: random.Random, folder: Path) -> str:
            found.append(random.random())
            return "mine"

        fuzz(trial, 1, range(start, 5))
        return found

    assert drawn(3) == drawn(0)[3:]
    assert len(set(drawn(0))) == 5
