"""Runs that are killed, interrupted or halted at random moments, twice and thrice in a row, and go on.

``python -m tests.siege.kills --count 200 --seed 1``. A trial disturbs a run one to three times, then lets it
end. It is survived where all stored files are those of a run that nobody disturbed, bit for bit, nothing that
was finished has been made again, and nobody saw a traceback.
"""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from opencil.cli.guard import STOPPED
from tests.siege.grounds import SHORT, At, Camp, Victim, operations, succeed
from tests.siege.siege import Tally, siege
from tests.stored import differences, results

#: What is run, the longer ones less often: methods of one stage and of several, and runs that take turns.
GROUNDS = [
    ["--cil", "icarl"],
    ["--cil", "bic"],
    ["--cil", "foster"],
    ["--cil", "icarl,wa", "--pack", "2"],
]
#: How often each signal comes: a halted process goes on, or is killed as it stands.
SIGNALS = [
    *(signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1),
    *(signal.SIGINT, signal.SIGINT, signal.SIGSTOP, signal.SIGSTOP),
]
#: The share of trials whose victims are processes of their own: they import torch each time.
REAL = 0.1


@dataclass
class Reference:
    """A run that nobody disturbed: what it stored, in what time, by how many file operations."""

    stored: dict[str, object]
    seconds: float
    operations: int


@dataclass
class Kills:
    """Trials in a camp, and what has happened in them."""

    camp: Camp
    grounds: list[list[str]] = field(default_factory=lambda: GROUNDS)
    references: dict[int, Reference] = field(default_factory=dict)
    signals: Counter[str] = field(default_factory=Counter)
    real: int = 0

    def trial(self, random: random.Random) -> str | None:
        """One run, disturbed and gone on with; what is wrong with it, if anything is."""
        number = min(random.randrange(len(self.grounds)), random.randrange(len(self.grounds)))
        runs = self.camp.folder / "disturbed"
        shutil.rmtree(runs, ignore_errors=True)
        words = ["run", *self.grounds[number], *SHORT, "--runs", str(runs)]
        reference, real = self._reference(number), random.random() < REAL
        self.real += real
        hits, wanted = 0, random.choice([1, 1, 2, 2, 3])
        for _ in range(4 * wanted):
            victim, hit = self._disturb(words, runs, random, reference, real)
            hits += hit
            if wrong := _unkind(victim, hit):
                return wrong
            if hits == wanted or (hits and not hit):
                break
            if not hit:  # it ended before its moment came
                shutil.rmtree(runs, ignore_errors=True)
        if random.random() < 0.2 and runs.exists():
            look = self.camp.start("report", str(runs), "--format", "csv")
            look.ended()
            if "Traceback" in look.said:
                return f"a report of what is there ends in a traceback:\n{look.said}"
        kept = _finished_files(runs)
        last = self.camp.start(*words)
        if last.ended() != 0 or "Traceback" in last.said:
            return f"it does not go on:\n{last.said}"
        if again := [path.name for path, state in kept.items() if _state(path) != state]:
            return f"what was finished has been made again: {again}"
        if others := differences(results(runs), reference.stored):
            return f"it ends with other files: {others}"
        return None

    def _disturb(
        self, words: list[str], runs: Path, random: random.Random, reference: Reference, real: bool
    ) -> tuple[Victim, bool]:
        """Start a process and send it a signal at a random moment; whether the signal found it."""
        number = random.choice(SIGNALS)
        if not real and random.random() < 0.5:
            at = At(random.randint(1, reference.operations), str(runs), number)
            victim = self.camp.start(*words, at=at)
            while victim.code is None and not victim.stopped:
                time.sleep(0.002)
            hit = victim.stopped or victim.code in (-number, 130, STOPPED)
        else:
            victim = self.camp.start(*words, real=real)
            imports = 4.0 if real else 0.0
            victim.wait(random.uniform(0, reference.seconds + imports))
            hit = victim.send(number)
        if hit:
            self.signals[signal.Signals(number).name] += 1
        if hit and number == signal.SIGSTOP:
            self._halted(victim, words, random)
        else:
            victim.ended()
        return victim, hit

    def _halted(self, victim: Victim, words: list[str], random: random.Random) -> None:
        """Another process may try while one is halted; then it goes on or is killed."""
        while victim.code is None and not victim.stopped:
            time.sleep(0.002)
        if random.random() < 0.3:
            other = self.camp.start(*words)
            other.ended()
            assert "Traceback" not in other.said, other.said
        then = random.choice([signal.SIGCONT, signal.SIGKILL])
        if victim.send(then):
            self.signals[f"then {signal.Signals(then).name}"] += 1
        victim.ended()

    def _reference(self, number: int) -> Reference:
        if number not in self.references:
            runs = self.camp.folder / f"undisturbed{number}"
            shutil.rmtree(runs, ignore_errors=True)
            journal, started = self.camp.folder / f"journal{number}.txt", time.monotonic()
            words = ["run", *self.grounds[number], *SHORT, "--runs", str(runs)]
            succeed(self.camp.start(*words, journal=journal))
            seconds = time.monotonic() - started
            self.references[number] = Reference(results(runs), seconds, operations(journal, runs))
        return self.references[number]


def _unkind(victim: Victim, hit: bool) -> str | None:
    """What is wrong with how a process has ended."""
    code = victim.ended()
    if victim.said.rstrip().endswith("KeyboardInterrupt") and "guard.py" not in victim.said:
        return None  # it came before Python had imported the command, or after its end
    if "Traceback" in victim.said:
        return f"it ends in a traceback (exit code {code}):\n{victim.said}"
    early = (-signal.SIGTERM, -signal.SIGUSR1)  # before Python had imported the command
    # Where the interrupt fell into an `exec` of text, as dataclasses do when they are imported, Python ends
    # itself by SIGINT in place of our exit code. A shell calls both 130.
    allowed = (0, 130, -signal.SIGINT, STOPPED, -signal.SIGKILL, *early) if hit else (0,)
    return None if code in allowed else f"it ends with exit code {code}:\n{victim.said}"


def _finished_files(runs: Path) -> dict[Path, tuple[int, int]]:
    """The files that a process that goes on has no reason to write again, and their state."""
    marks = [mark.parent for mark in runs.rglob("step.json")]
    files = [
        step / name
        for step in marks
        for name in ("model.safetensors", "memory.safetensors", "accuracy.parquet")
    ]
    files += [table for step in marks for table in step.glob("detectors/*.parquet")]
    return {path: _state(path) for path in files}


def _state(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some trials; what there is to say of them all."""
    kills = Kills(camp)
    for number in numbers:
        tally.note(f"seed {seed} trial {number}", kills.trial(random.Random(f"{seed} {number}")))
    told = ", ".join(f"{n} {name}" for name, n in sorted(kills.signals.items()))
    return f"{told}; {kills.real} trials with processes of their own"


if __name__ == "__main__":
    siege("kills survived, bit-identical", besiege, count=200)
