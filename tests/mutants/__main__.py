"""``python -m tests.mutants``: put faults into the code, one at a time, and see whether a test notices.

torch and what else is slow to import is imported once. Each mutant is a fork of that process: it imports the
package with one module changed and runs the tests of that module, up to the first failure. Which mutants are
tried is drawn by a seed. The command fails where fewer than 95 % of them are caught.
"""

import argparse
import importlib.util
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutations import mutated, mutations

ROOT = Path(__file__).parents[2]
NEEDED = 0.95
#: Modules of the package, and the tests that should notice a fault in them.
TESTS = {
    "data/memory.py": "data/test_memory.py cil/test_icarl.py",
    "data/stream.py": "data/test_stream.py",
    "engine/checkpoint.py": "cil/test_checkpoint.py runs/test_checkpoints.py",
    "engine/seeding.py": "engine/test_seeding.py",
    "evaluation/*.py": "evaluation test_openood.py",
    "cil/*.py": "cil",
    "detectors/finetune/*.py": "detectors/test_values.py detectors/finetune",
    "detectors/posthoc/*.py": "detectors/test_values.py detectors/posthoc detectors/test_detector.py",
    "runs/plan.py": "runs/test_plan.py",
    "runs/file_formats.py": "runs/test_file_formats.py runs/test_store.py",
    "runs/store.py": "runs/test_store.py runs/test_run.py runs/test_checkpoints.py",
    "runs/weights.py": "runs/test_weights.py",
}
#: Imported before the forks: whatever takes long and is not ours.
SLOW = "torch numpy pandas scipy.stats scipy.io sklearn.metrics pydantic hypothesis safetensors.torch rich"


@dataclass(frozen=True)
class Mutant:
    """One mutation of one module, with the tests that should notice it."""

    module: str  #: its path in the package
    number: int  #: of the mutation, among the module's
    line: int
    text: str
    what: str
    tests: str

    def __str__(self) -> str:
        return f"opencil/{self.module}:{self.line}: {self.text}    [{self.what}]"

    @property
    def equivalent(self) -> bool:
        """Whether somebody has found that it changes nothing that could be noticed."""
        return any(known[:3] == (self.module, self.text, self.what) for known in EQUIVALENT)


@cache
def all_mutants() -> list[Mutant]:
    """Those of all modules."""
    found = []
    for pattern, tests in TESTS.items():
        for path in sorted((ROOT / "opencil").glob(pattern)):
            module = path.relative_to(ROOT / "opencil").as_posix()
            for number, m in enumerate(mutations(path.read_text())):
                found.append(Mutant(module, number, m.line, m.text, m.what, tests))
    return found


class _Changed(SourceFileLoader):
    """Imports one module with a mutation in it, and finds it before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        name = "opencil." + mutant.module.removesuffix(".py").replace("/", ".")
        super().__init__(name.removesuffix(".__init__"), str(ROOT / "opencil" / mutant.module))
        self.mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The changed module's own."""
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """What the mutated source compiles to, whatever is cached of the right one."""
        return compile(mutated(Path(self.path).read_text(), self.mutant.number), self.path, "exec")


def files_of(tests: str, mutant: Mutant | None) -> list[Path]:
    """The files of tests, that of the mutated module itself first: it notices most."""
    places = [ROOT / "tests" / name for name in tests.split()]
    files = [path for place in places for path in (sorted(place.glob("**/test_*.py")) or [place])]
    return sorted(files, key=lambda path: mutant is None or path.stem != f"test_{Path(mutant.module).stem}")


def _start(tests: str, mutant: Mutant | None, limit: float) -> int:
    """A process that runs tests and ends in pytest's exit code, or by a signal when it has used up a limit.

    That is of seconds of a core, since a process that waits on a busy machine has not failed.
    """
    process = os.fork()
    if process:
        return process
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit)))
    signal.alarm(math.ceil(20 * limit))  # one that sleeps for ever uses no core
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    import pytest

    if mutant:
        sys.meta_path.insert(0, _Changed(mutant))
    # What is imported before pytest begins is not rewritten, which it warns of; ours is imported after it.
    flags = ["-x", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    flags += [word for name in ("cacheprovider", "randomly", "xdist") for word in ("-p", f"no:{name}")]
    files = [str(path) for path in files_of(tests, mutant)]
    try:
        code = int(pytest.main([*flags, "--hypothesis-profile=mutants", f"--rootdir={ROOT}", *files]))
    except BaseException:
        code = 1
    os._exit(code)


def _prepare() -> None:
    os.chdir(ROOT)
    for name in SLOW.split():
        importlib.import_module(name)
    import hypothesis
    import torch

    torch.set_num_threads(1)
    # The same examples each time, and none made smaller: that something fails is all that is asked.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=phases
    )


def _take_turns(work: list[tuple[str, Mutant | None, float]], jobs: int) -> list[tuple[int, float]]:
    """Run each (tests, mutant, limit): its exit code, and the seconds of a core that it took."""
    results: list[tuple[int, float]] = [(0, 0.0)] * len(work)
    running: dict[int, int] = {}
    waiting = list(enumerate(work))
    while waiting or running:
        while waiting and len(running) < jobs:
            number, (tests, mutant, limit) = waiting.pop(0)
            running[_start(tests, mutant, limit)] = number
        process, status, used = os.wait3(0)
        number = running.pop(process)
        code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        results[number] = (code, seconds)
        verdict = "survived" if code == 0 else "out of time" if code < 0 else "caught"
        if mutant := work[number][1]:
            print(f"{number + 1:4} {verdict:11} {seconds:6.1f} s  {mutant}", flush=True)
    return results


def main() -> int:
    """Try mutants and print what became of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=250, help="mutants to try (default: 250)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--only", default="", help="of modules whose path has this in it")
    parser.add_argument("--list", action="store_true", help="print them, try none")
    given = parser.parse_args()

    everything = [m for m in all_mutants() if given.only in m.module]
    chosen = random.Random(given.seed).sample(everything, min(given.count, len(everything)))
    chosen.sort(key=lambda m: (m.module, m.number))
    tried = [m for m in chosen if not m.equivalent]
    if given.list:
        print(*tried, sep="\n")
        return 0
    _prepare()
    begun = time.monotonic()
    groups = sorted({m.tests for m in tried})
    plain = _take_turns([(tests, None, 600.0) for tests in groups], given.jobs)
    if failing := [tests for tests, (code, _) in zip(groups, plain, strict=True) if code != 0]:
        print(f"tests that fail without a fault notice none: {', '.join(failing)}")
        return 2
    limits = {tests: 10 + 3 * seconds for tests, (_, seconds) in zip(groups, plain, strict=True)}
    results = _take_turns([(m.tests, m, limits[m.tests]) for m in tried], given.jobs)
    survivors = [m for m, (code, _) in zip(tried, results, strict=True) if code == 0]
    caught = len(tried) - len(survivors)
    print(f"\n{len(survivors)} survived", *survivors, sep="\n")
    print(
        f"\n{caught} of {len(tried)} mutants caught, {caught / max(1, len(tried)):.1%}, in "
        f"{time.monotonic() - begun:.0f} s; seed {given.seed}, drawn from {len(everything)}; "
        f"{len(chosen) - len(tried)} more change nothing"
    )
    return 0 if caught >= NEEDED * len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
