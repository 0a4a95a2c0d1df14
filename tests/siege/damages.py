"""Every kind of stored file x every kind of damage x every later use.

``python -m tests.siege.damages``. A damage is silent where a use neither names the file nor gives exactly
what it gives of an undamaged store, what it stores included. A use that does not read the file may be none
the wiser; checking the store must be.
"""

import logging
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product, takewhile
from pathlib import Path

from typer.testing import CliRunner

from opencil import open_run
from opencil.cli import app
from opencil.errors import OpenCILError
from tests.siege import damage
from tests.siege.flips import PLACE, RUN, halted, run_of
from tests.siege.grounds import Camp, succeed
from tests.siege.siege import Tally, siege
from tests.stored import differences, results

#: What a use gives: an exit code and all that it says.
Answer = tuple[int, str]
Use = Callable[[Path], Answer]


def _command(*words: str) -> Use:
    def use(runs: Path) -> Answer:
        with _logged() as warnings:
            result = CliRunner().invoke(app, [word.replace("RUNS", str(runs)) for word in words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, "\n".join([result.output, *warnings])

    return use


@contextmanager
def _logged() -> Iterator[list[str]]:
    """What is logged in the block, wherever logs go."""
    said: list[str] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("opencil")
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def _deployed(runs: Path) -> Answer:
    """Whatever a stored run has for its users."""
    try:
        run = open_run(runs / PLACE)
        said = [str(run.rows)]
        for step in run.trained_steps:
            said += [str(tensor.sum()) for tensor in run.model(step.number).state_dict().values()]
            said += (
                [str(run.memory(step.number).indices)] if hasattr(run.memory(step.number), "indices") else []
            )
            said += [str(run.detector(name, step.number)) for name in ("ber", "relation")]
    except OpenCILError as error:
        return error.exit_code, str(error)
    return 0, "\n".join(said)


USES: dict[str, Use] = {
    "goes on": _command(*RUN, "--runs", "RUNS", "--quiet"),
    "another detector": _command(*RUN, "--runs", "RUNS", "--quiet", "--detector", "energy,t2fnorm"),
    "dry run": _command(*RUN, "--runs", "RUNS", "--dry-run"),
    "report": _command("report", "RUNS", "--format", "csv", "--table", "all"),
    "page": _command("report", "RUNS", "--html", "RUNS/page.html"),
    "deployed": _deployed,
    "checked": _command("runs", "check", "RUNS"),
}
#: Uses that only look: what is wrong is an error.
_LOOKS = ("deployed", "checked")
#: The state that a store is in: which of its files was last written before it was killed.
STATES = {
    "finished": "",
    "in a training": "step*/checkpoint.safetensors",
    "in a tuning": "step*/heads/*.checkpoint.safetensors",
}


@dataclass
class Damages:
    """Stores in several states, and what each use gives of them and leaves where nothing is damaged."""

    camp: Camp
    stores: dict[str, Path]
    elsewhere: Path  #: the folder of another run
    undamaged: dict[tuple[str, str], tuple[Answer, dict[str, object]]] = field(default_factory=dict)

    @classmethod
    def pitched(cls, camp: Camp) -> "Damages":
        """The stores."""
        finished, _ = run_of(camp)
        stores = {"finished": finished}
        for state, kind in STATES.items():
            if kind:
                stores[state] = halted(camp, finished, kind).parents[3]
        return cls(camp, stores, another(camp))

    def all(self) -> list[tuple[str, str, str, str]]:
        """Every state, kind of file that it has, damage and use."""
        return [
            (state, kind, name, use)
            for (state, runs), kind in product(self.stores.items(), damage.KINDS)
            if damage.stored(runs / PLACE, kind)
            for name, use in product([*damage.DAMAGES, "flipped"], USES)
        ]

    def trial(self, state: str, kind: str, name: str, use: str, random: random.Random) -> str | None:
        """One damage and one use; what is wrong with the answer."""
        (good_code, good_said), good = self._undamaged(state, use)
        with self._copy(state) as runs:
            files = damage.stored(runs / PLACE, kind)
            path, before = random.choice(files), results(runs)
            elsewhere = [self.elsewhere / path.relative_to(runs / PLACE)]
            other = random.choice(
                [file for file in files + elsewhere if file != path and file.exists()] or [path]
            )
            if name == "flipped":
                damage.flip(path, random.randrange(8 * path.stat().st_size))
            else:
                damage.DAMAGES[name](path, other)
            harmed = results(runs)
            harmed = {kept: harmed.get(kept) for kept in differences(harmed, before)}
            try:
                code, said = USES[use](runs)
            except Exception as error:
                return f"{path.name}: {type(error).__name__}: {error}"
            place = path.relative_to(runs).as_posix()
            if (path.name in said and path.parent.name in said) or (code and _beside(path, said)):
                return f"{place} is named, and exit code 0" if not code and use in _LOOKS else None
            if use == "checked" and (f"{path.parent.name} is missing" in said or "in the place of" in said):
                return None
            # Whether a checkpoint is of its place is known to who goes on from it.
            strange = name in ("swapped", "link elsewhere") and "checkpoint" in path.name
            if use == "checked" and name != "link to itself" and not strange:
                return f"{place} is not named by checking the store"
            # A dry run may say that there is more to do: what to do it for is told when it is done.
            if (code, said) != (good_code, good_said) and use != "dry run":
                return f"{place} is not named, and the answer is another (exit code {code}):\n{said}"
            left = results(runs)
            others = set(differences(left, good, kept=False)) - {place} - harmed.keys()
            if left.get(place) not in (harmed.get(place), good.get(place)):
                others.add(place)
            return f"{place} is not named, and other files are left: {sorted(others)}" if others else None

    def _undamaged(self, state: str, use: str) -> tuple[Answer, dict[str, object]]:
        if (state, use) not in self.undamaged:
            with self._copy(state) as runs:
                self.undamaged[state, use] = USES[use](runs), results(runs)
        return self.undamaged[state, use]

    @contextmanager
    def _copy(self, state: str) -> Iterator[Path]:
        runs = self.camp.folder / "damaged"
        shutil.copytree(self.stores[state], runs)
        try:
            yield runs
        finally:
            shutil.rmtree(runs)


def _beside(path: Path, said: str) -> bool:
    """Whether a refusal names another file of its folder: what does not fit together is seen from both."""
    beside = [file.name for file in path.parent.iterdir() if file.is_file()] if path.parent.is_dir() else []
    return path.name in ("config.yml", "step.json") and any(
        f"{path.parent.name}/{name}" in said for name in beside
    )


def another(camp: Camp) -> Path:
    """The folder of a run with another seed."""
    runs = camp.folder / "elsewhere"
    succeed(camp.start(*RUN, "--seed", "1", "--runs", str(runs), "--quiet"))
    return runs / PLACE.replace("seed0", "seed1")


def besiege(camp: Camp, numbers: Iterable[int], seed: int, tally: Tally) -> str:
    """Some of all combinations, in an order that the seed decides; what there is to say of them all."""
    damages = Damages.pitched(camp)
    combinations = damages.all()
    random.Random(seed).shuffle(combinations)
    for number in takewhile(lambda number: number < len(combinations), numbers):
        names, chance = combinations[number], random.Random(f"{seed} {number}")
        tally.note(f"seed {seed} trial {number}, {', '.join(names)}", damages.trial(*names, chance))
    return f"of {len(combinations):,} combinations of a store's state, a file, a damage and a use"


if __name__ == "__main__":
    siege("damages told or harmless", besiege, count=10_000)
