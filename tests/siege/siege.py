"""How every harness is called, shows its progress and ends: one line for the log."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

from tests.siege.grounds import Camp, camp


class Tally:
    """Counts trials and keeps what was wrong with them."""

    def __init__(self, show: bool = False) -> None:
        self.count, self.wrong, self._show = 0, list[str](), show
        self._shown = time.monotonic()

    def note(self, name: str, wrong: str | None) -> None:
        """A trial has ended; ``wrong`` says why it has failed, if it has."""
        self.count += 1
        if wrong is not None:
            self.wrong.append(f"{name}: {wrong}")
            if self._show:
                print(f"FAILED {self.wrong[-1]}", flush=True)
        if self._show and time.monotonic() - self._shown > 10:
            self._shown = time.monotonic()
            print(f"  {self.count} done, {len(self.wrong)} failed", flush=True)


#: Carries out the trials of some numbers with a seed and counts them; gives what there is to say of them all.
Besiege = Callable[[Camp, Iterable[int], int, Tally], str]


def siege(what: str, besiege: Besiege, count: int) -> None:
    """A harness as a command: a line for the log, and 1 if a trial failed.

    A trial is decided by its seed and number: one that failed is tried again by ``--start NUMBER --count 1``.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first trial")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no trial begins after that")
    asked = parser.parse_args()
    tally, started = Tally(show=True), time.monotonic()
    trials = range(asked.start, asked.start + asked.count)
    numbers = takewhile(lambda _: time.monotonic() - started < asked.seconds, trials)
    with tempfile.TemporaryDirectory(prefix="siege-") as folder, camp(Path(folder)) as pitched:
        told = besiege(pitched, numbers, asked.seed, tally)
    numbered = f"seed {asked.seed}, trials {asked.start} to {asked.start + tally.count - 1}"
    good = f"{tally.count - len(tally.wrong):,} of {tally.count:,} {what}{told and f' ({told})'}"
    print(
        f"{datetime.now(UTC):%Y-%m-%d} {numbered}: {good}, in {time.monotonic() - started:.0f} s", flush=True
    )
    sys.exit(bool(tally.wrong))
