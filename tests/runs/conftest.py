"""Short runs of the embedded benchmark: two steps of four classes, one epoch, one OOD set."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import opencil
from opencil.config import Config
from opencil.runs.events import Event, Finished

SETTINGS = [
    "benchmark.classes_per_step=4",
    "benchmark.near=[]",
    "benchmark.far=[noise]",
    "benchmark.shifted={}",
    "cil.*.epochs=1",
]
#: A post-hoc detector without a set-up, one with it, and one that trains a head.
DETECTORS = ["msp", "relation", "ber"]


@pytest.fixture(scope="session")
def run_all() -> Callable[[Config], list[Event]]:
    """Execute a config to its end and return the events."""
    return lambda config: list(opencil.execute(config))


@pytest.fixture(scope="session")
def short(tiny: Callable[..., Config]) -> Callable[..., Config]:
    """Return the config of a short run, icarl with ``DETECTORS``; ``short(runs, *settings)``."""

    def make(
        runs: Path,
        *settings: str,
        detector: str | list[str] = DETECTORS,
        cil: str = "icarl",
        seed: int | list[int] = 0,
    ) -> Config:
        tuned = ["detector.ber.schedule.epochs=1"] if "ber" in detector else []
        return tiny(runs, *SETTINGS, *tuned, *settings, detector=detector, cil=cil, seed=seed)

    return make


@pytest.fixture(scope="session")
def done_once(short: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs in which the short run is complete: not to be written."""
    runs = tmp_path_factory.mktemp("done") / "runs"
    assert isinstance(list(opencil.execute(short(runs)))[-1], Finished)
    return runs


@pytest.fixture
def done(done_once: Path, tmp_path: Path) -> Path:
    """A copy of the complete short run, the test's own."""
    return Path(shutil.copytree(done_once, tmp_path / "done"))
