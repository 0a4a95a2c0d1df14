"""Two hundred runs in one store by eight workers at once, some of which are killed, and the starter too.

``python -m tests.siege.workers --count 1 --seed 1``. In every trial the command may be killed before its end,
with its workers alive; then it goes on, and some of its workers are killed. No run is lost or done twice, the
store passes its check, and all files are those that one process leaves.
"""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import opencil
from opencil.config import Config
from opencil.runs import starting
from opencil.runs.events import Event, Failed, Finished, Lost, Training
from opencil.runs.inventory import is_held
from opencil.runs.pipes import PipedProcess
from opencil.runs.plan import plan
from opencil.runs.store import RunFolder
from tests.siege.grounds import Camp
from tests.siege.siege import Tally, siege
from tests.stored import differences, results

RUNS, WORKERS = 200, 8
#: One step of all classes, one epoch.
SETTINGS = ["benchmark.classes_per_step=8", "benchmark.shifted={}", "cil.icarl.epochs=1"]


def trial(
    camp: Camp, expected: dict[str, object], random: random.Random, runs: int = RUNS, workers: int = WORKERS
) -> tuple[str | None, str]:
    """One grid, disturbed; what is wrong with it, if anything is, and what happened to it."""
    store = camp.folder / "crew"
    shutil.rmtree(store, ignore_errors=True)
    before = set[str]()
    config = _config(store, runs, workers)
    if starter_falls := random.random() < 0.5:
        starter = camp.start(*_flags(store, runs), "--jobs", str(workers), real=True)
        while not list(store.rglob("step.json")) and starter.code is None:
            time.sleep(0.05)
        time.sleep(random.uniform(0, 3))
        starter.send(signal.SIGKILL)
        starter.ended()
        _left_alone(config)
        before = {step.parent.parent.name for step in store.rglob("step.json")}
    events, kills = _disturbed(config, random, kills=random.choice([0, 1, 3]))
    told = f"{kills} workers killed, {'after the starter' if starter_falls else 'and not the starter'}"
    finished = Counter(str(event.run) for event in events if isinstance(event, Finished))
    if failed := [f"{event.run}: {event.error}" for event in events if isinstance(event, Failed)]:
        return f"runs failed: {failed}", told
    if finished != Counter(str(spec) for spec in plan(config)):
        return f"finished are {finished}", told
    lost = [event.reason for event in events if isinstance(event, Lost)]
    if len(lost) > kills or not all("was ended by SIGKILL" in reason for reason in lost):
        return f"by {kills} kills were lost {lost}", told
    trained = {event.run.folder.name for event in events if isinstance(event, Training)}
    if again := trained & before:
        return f"what was trained has been trained again: {again}", told
    checked = camp.start("runs", "check", str(store))
    if checked.ended() != 0:
        return f"the store does not pass its check:\n{checked.said}", told
    # A writer of outputs may have been killed: the next one to write there deletes what it left.
    found = {name: content for name, content in results(store).items() if not name.endswith(".part")}
    others = differences(found, expected)
    return (f"they end with other files: {others}" if others else None), told


def _config(store: Path, runs: int, workers: int) -> Config:
    asked = {"benchmark": "digits", "cil": "icarl", "detector": "msp", "seed": list(range(runs))}
    place = {"runs": str(store), "device": "cpu", "jobs": workers}
    return opencil.resolve({**asked, "place": place}, settings=SETTINGS)


def _flags(store: Path, runs: int) -> list[str]:
    seeds = ",".join(map(str, range(runs)))
    flags = ["--benchmark", "digits", "--cil", "icarl", "--detector", "msp", "--device", "cpu", "--quiet"]
    flags += [word for setting in SETTINGS for word in ("--set", setting)]
    return ["run", *flags, "--seed", seeds, "--runs", str(store)]


def _disturbed(config: Config, random: random.Random, kills: int) -> tuple[list[Event], int]:
    """The events of a grid some of whose workers are killed, each after another one; and how many were."""
    started: list[PipedProcess] = []

    class Noted(PipedProcess):
        def __init__(self, program: str, name: str) -> None:
            super().__init__(program, name)
            started.append(self)

    total = len(plan(config))
    moments = sorted(random.randint(0, max(0, total - 1)) for _ in range(kills))
    events: list[Event] = []
    done = killed = 0
    with mock.patch.object(starting, "PipedProcess", Noted):
        for event in opencil.execute(config):
            events.append(event)
            done += isinstance(event, Finished)
            living = [process for process in started if process.process.poll() is None]
            if moments and done >= moments[0] and living:
                moments.pop(0)
                random.choice(living).kill()
                killed += 1
    return events, killed


def _left_alone(config: Config) -> None:
    """Wait until workers whose starter is gone have noticed it."""
    folders = [RunFolder(Path(config.place.runs) / spec.folder) for spec in plan(config)]
    until = time.monotonic() + 60
    while any(is_held(folder) for folder in folders):
        assert time.monotonic() < until, "workers go on, though who started them is gone"
        time.sleep(0.1)


def alone(camp: Camp, runs: int = RUNS) -> dict[str, object]:
    """What one process leaves."""
    store = camp.folder / "one"
    one = camp.start(*_flags(store, runs))
    assert one.wait(1200) == 0, one.said
    return results(store)


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some trials; what there is to say of them all."""
    expected, happened = alone(camp), []
    for number in numbers:
        wrong, told = trial(camp, expected, random.Random(f"{seed} {number}"))
        tally.note(f"seed {seed} trial {number}", wrong)
        happened.append(told)
    return f"{RUNS} runs by {WORKERS} workers each: {'; '.join(happened)}"


if __name__ == "__main__":
    siege("stores were whole, with every run once", besiege, count=2)
