"""Inputs made from a seed and a number, each given to what reads it: it is taken, or refused in a sentence.

Anything else is wrong: another error, more than ``HANG`` seconds of computing, more than ``LARGE`` bytes of
memory, a dead process. ``--seed 3 --start 17 --count 1`` brings input 17 of seed 3 back, in the same version.
"""

import argparse
import faulthandler
import json
import logging
import mmap
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from opencil.errors import OpenCILError

HANG = 2.0
LARGE = 200e6
_DEAD = 60.0  # seconds after which a process is ended that does not even come back
_TOGETHER = 250  # inputs that one process gets: what it keeps of them does not count as memory of later ones

#: Makes an input of random choices in an empty folder, and has it read; gives what kind of input it was.
Trial = Callable[[random.Random, Path], str]


@dataclass
class Tally:
    """What came of some inputs."""

    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    largest: float = 0.0

    @property
    def count(self) -> int:
        """All inputs."""
        return self.taken.total() + self.refused.total() + len(self.wrong)

    def add(self, other: "Tally") -> None:
        """Count others with these."""
        self.taken += other.taken
        self.refused += other.refused
        self.wrong += other.wrong
        self.slowest, self.largest = max(self.slowest, other.slowest), max(self.largest, other.largest)


class Input(Exception):
    """An error on the way, with the kind of input that it is of."""

    def __init__(self, kind: str, error: BaseException) -> None:
        super().__init__(kind)
        self.kind, self.error = kind, error


def fuzz(trial: Trial, seed: int, numbers: Iterable[int], at: mmap.mmap | None = None) -> Tally:
    """Try inputs in this process; ``at`` tells another one how far it has come."""
    tally, before = Tally(), _memory()
    for number in numbers:
        if at is not None:
            at[:8] = number.to_bytes(8, "little")
            faulthandler.dump_traceback_later(_DEAD, exit=True)
        began = time.process_time()
        try:
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                tally.taken[trial(random.Random(f"{seed}:{number}"), Path(folder))] += 1
        except Input as raised:
            if isinstance(raised.error, OpenCILError) and _is_sentence(str(raised.error)):
                tally.refused[raised.kind] += 1
            else:
                told = "".join(traceback.format_exception(raised.error, limit=-6))
                tally.wrong.append(f"input {number} of seed {seed}, {raised.kind}: {told[:3000]}")
        took, more = time.process_time() - began, _memory() - before
        if took > HANG:
            tally.wrong.append(f"input {number} of seed {seed}: {took:.1f} s")
        if more > LARGE:
            tally.wrong.append(f"input {number} of seed {seed}: {more / 1e6:.0f} MB")
            before = _memory()
        tally.slowest, tally.largest = max(tally.slowest, took), max(tally.largest, more)
    return tally


def _memory() -> int:
    """The most bytes that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _is_sentence(message: str) -> bool:
    return bool(message.strip()) and len(message) < 5000 and not set(message) & set("\0\x1b\x7f")


def fuzz_apart(trial: Trial, seed: int, numbers: range) -> Tally:
    """The same in a process of its own, whose death is one more thing that is wrong."""
    at = mmap.mmap(-1, 8)
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # that there may be threads: they are idle
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reading)
        faulthandler.enable()
        try:
            tally = fuzz(trial, seed, numbers, at)
            with os.fdopen(writing, "w") as out:
                json.dump(vars(tally), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    if said:
        values = json.loads(said)
        return Tally(**values | {kind: Counter(values[kind]) for kind in ("taken", "refused")})
    number = int.from_bytes(at[:8], "little")
    tally = Tally(wrong=[f"input {number} of seed {seed} ends the process, with status {status}"])
    if number > numbers.start:  # what came of those before is lost with it
        tally.add(fuzz_apart(trial, seed, range(numbers.start, number)))
    if number + 1 < numbers.stop:
        tally.add(fuzz_apart(trial, seed, range(number + 1, numbers.stop)))
    return tally


def main(what: str, trial: Trial, arguments: list[str] | None = None) -> None:
    """A fuzzer as a command; ends with a line for the log, and with 1 if an input went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    asked = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # that a cache is prepared, or damaged
    began, tally = time.monotonic(), Tally()
    stop = asked.start + asked.count
    for start in range(asked.start, stop, _TOGETHER):
        part = fuzz_apart(trial, asked.seed, range(start, min(start + _TOGETHER, stop)))
        for wrong in part.wrong:
            print(f"WRONG {wrong}", flush=True)
        tally.add(part)
    kinds = sorted(tally.taken.keys() | tally.refused.keys())
    print("  ".join(f"{kind}: {tally.taken[kind]} taken, {tally.refused[kind]} refused;" for kind in kinds))
    came = f"{tally.taken.total():,} taken, {tally.refused.total():,} refused in a sentence"
    most = f"at most {tally.slowest:.2f} s and {tally.largest / 1e6:.0f} MB each"
    print(
        f"{datetime.now(UTC):%Y-%m-%d} seed {asked.seed}, {what} {asked.start} to {stop - 1}: {came}, "
        f"{len(tally.wrong)} wrong; {most}; {time.monotonic() - began:.0f} s",
        flush=True,
    )
    sys.exit(bool(tally.wrong))
