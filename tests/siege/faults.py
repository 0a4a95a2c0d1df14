"""Full disks, quotas and disks that fail.

``python -m tests.siege.faults --count 60 --seed 1``. A grid of two runs is carried out on a disk that has
too little room (a small tmpfs, where mounting is allowed), or one of its file operations is refused: once,
or from then on in one run's folder. The command must end in a sentence; the run that was not hit must end
well; and with room again the same command leaves what it leaves undisturbed.
"""

import errno
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.siege.grounds import SHORT, At, Camp, Victim, operations, succeed
from tests.siege.siege import Tally, siege
from tests.stored import differences, results

GRID = ["run", "--cil", "icarl", "--seed", "0,1", *SHORT]
#: What may be told of a disk that is full, that is another's, or that fails.
_ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EIO]
_HIT = "digits/k4/icarl/seed0"
_FAILED = re.compile(r"^error: run (\S+) stopped:", re.M)


@dataclass
class Faults:
    """Trials in a camp, beside what the grid leaves undisturbed."""

    camp: Camp
    expected: dict[str, object]
    operations: int
    size: int

    def trial(self, kind: str, random: random.Random) -> str | None:
        """One grid with a fault of a kind; what is wrong with how it ends."""
        runs = self.camp.folder / "faulty"
        shutil.rmtree(runs, ignore_errors=True)
        words = [*GRID, "--runs", str(runs)]
        if kind == "full disk":
            with small_disk(runs, random.randrange(self.size // 50, self.size)) as enlarge:
                wrong = _unkind(self.camp.start(*words))
                enlarge()
                return wrong or self._goes_on(words, runs)
        number, code = random.randint(1, self.operations), random.choice(_ERRORS)
        writes = random.choice([True, False])
        if kind == "one operation":
            at = At(number, str(runs), errno=code, writes=writes)
        else:
            at = At(max(1, number // 4), str(runs / _HIT), errno=code, writes=writes, lasting=True)
        victim = self.camp.start(*words, at=at)
        return _unkind(victim, others=kind == "one run's folder") or self._goes_on(words, runs)

    def _goes_on(self, words: list[str], runs: Path) -> str | None:
        last = self.camp.start(*words)
        if last.ended() != 0:
            return f"it does not go on:\n{last.said}"
        others = differences(results(runs), self.expected, kept=False)
        return f"it ends with other files: {others}" if others else None


def _unkind(victim: Victim, others: bool = False) -> str | None:
    """What is wrong with how a command ends; with ``others``, only the run that was hit may fail."""
    code, said = victim.ended(), victim.said
    if "Traceback" in said or code not in (0, 1) or (code == 1 and "error: " not in said):
        return f"it ends with exit code {code}:\n{said}"
    if others and set(_FAILED.findall(said)) - {_HIT}:
        return f"a run fails that was not hit:\n{said}"
    return None


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Callable[[], None]]:
    """A disk of so many bytes, mounted at a place; gives a function that makes it large."""
    place.mkdir(parents=True)
    _mount(place, size)
    try:
        yield lambda: _mount(place, 2**28, "remount,")
    finally:
        subprocess.run(["umount", place], check=True)


def _mount(place: Path, size: int, how: str = "") -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"{how}size={size}", "tmpfs", place], check=True, capture_output=True
    )


def mounting_is_allowed(place: Path) -> bool:
    """Whether a disk can be mounted here."""
    try:
        with small_disk(place, 2**16):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some trials; what there is to say of them all."""
    runs, journal = camp.folder / "undisturbed", camp.folder / "operations.txt"
    succeed(camp.start(*GRID, "--runs", str(runs), journal=journal))
    size = sum(path.stat().st_size for path in runs.rglob("*") if path.is_file())
    faults = Faults(camp, results(runs), operations(journal, runs), size)
    kinds = ["one operation", "one run's folder"]
    kinds += ["full disk"] * mounting_is_allowed(camp.folder / "probe")
    counts: Counter[str] = Counter()
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        kind = kinds[number % len(kinds)]
        counts[kind] += 1
        tally.note(f"seed {seed} trial {number}, {kind}", faults.trial(kind, chance))
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))


if __name__ == "__main__":
    siege("faulty disks survived", besiege, count=60)
