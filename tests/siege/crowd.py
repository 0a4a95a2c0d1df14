"""Eight processes that want the same grid in the same folder at once.

``python -m tests.siege.crowd --count 5 --seed 1``. In every trial some of them may be killed. The rest, and
one more at the end, leave what one process alone leaves, bit for bit; and where none was killed, no step of
a run has been trained twice.
"""

import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterable

from tests.siege.grounds import SHORT, Camp, succeed
from tests.siege.siege import Tally, siege
from tests.stored import differences, results

PROCESSES = 8
#: Four runs.
GRID = ["run", "--cil", "icarl,wa", "--seed", "0,1", *SHORT]
_REFUSED = "is being written by another process"


def trial(
    camp: Camp,
    expected: dict[str, object],
    random: random.Random,
    grid: list[str] = GRID,
    processes: int = PROCESSES,
) -> str | None:
    """So many processes at once, of which some are killed; what is wrong with what they leave."""
    runs, journal = camp.folder / "shared", camp.folder / "journal.txt"
    shutil.rmtree(runs, ignore_errors=True)
    journal.write_text("")
    crowd = [camp.start(*grid, "--runs", str(runs), journal=journal) for _ in range(processes)]
    doomed = random.sample(crowd, random.choice([0, 0, 1, 3]))
    for victim in doomed:
        victim.wait(random.uniform(0, 3))
        victim.send(signal.SIGKILL)
    for victim in crowd:
        code, said = victim.ended(), victim.said
        if victim in doomed and code == -signal.SIGKILL:
            continue
        errors = [line for line in said.splitlines() if line.startswith("error: run")]
        if "Traceback" in said or code not in (0, 1) or any(_REFUSED not in line for line in errors):
            return f"one of them ends with exit code {code}:\n{said}"
    times = Counter(re.findall(r"^os.rename (.*model.safetensors)$", journal.read_text(), re.M))
    if not doomed and (twice := [name for name, count in times.items() if count > 1]):
        return f"trained more than once: {twice}"
    last = camp.start(*grid, "--runs", str(runs), journal=journal)
    if last.ended() != 0:
        return f"one more process does not end well:\n{last.said}"
    if others := differences(results(runs), expected):
        return f"they end with other files: {others}"
    return None


def alone(camp: Camp) -> dict[str, object]:
    """What one process leaves."""
    runs = camp.folder / "alone"
    succeed(camp.start(*GRID, "--runs", str(runs)))
    return results(runs)


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some trials; what there is to say of them all."""
    expected = alone(camp)
    for number in numbers:
        tally.note(f"seed {seed} trial {number}", trial(camp, expected, random.Random(f"{seed} {number}")))
    return f"{PROCESSES} processes each"


if __name__ == "__main__":
    siege("crowds left what one process leaves", besiege, count=8)
