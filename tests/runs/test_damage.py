"""Damage to stored files is named or mended, whatever comes after it: no use is silently wrong.

Short versions; ``python -m tests.siege.damages`` and ``tests.siege.flips`` are the long ones.
"""

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

import opencil
from opencil.config import Config
from opencil.errors import OpenCILError
from opencil.runs import file_formats
from opencil.runs.events import Failed, Finished, Training
from opencil.runs.reading import read_study
from opencil.runs.store import RunFolder
from opencil.runs.verifying import readers, verify
from opencil.study.rows import COLUMNS
from tests.siege.damage import DAMAGES, KINDS, flip, flips, stored, unseal_run

Make = Callable[..., Config]

SETTINGS = ["benchmark.classes_per_step=4", "benchmark.shifted={}", "detector.ber.schedule.epochs=2"]
SEEDS = [0, 1]
#: The kinds of files that a run has only while it is in the middle of something, and where that is.
MIDDLES = {"step*/checkpoint.safetensors": "train", "step*/heads/*.checkpoint.safetensors": "tune ber"}


def config_of(tiny: Make, runs: Path) -> Config:
    """Two steps, a detector without a head and one with, a checkpoint after every epoch, two seeds."""
    return tiny(runs, *SETTINGS, "place.checkpoint_seconds=0", detector=["msp", "ber"], seed=SEEDS)


def run_folder(runs: Path, seed: int = 0) -> Path:
    return runs / f"digits/k4/icarl/seed{seed}"


@pytest.fixture(scope="module")
def whole(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    events = list(opencil.execute(config_of(tiny, runs)))
    assert sum(isinstance(event, Finished) for event in events) == len(SEEDS)
    shutil.rmtree(runs / ".outputs")
    return runs


@pytest.fixture(scope="module")
def halted(whole: Path, tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both runs in the middle of training step 2, and of tuning its head, by the name of that."""
    made = {}
    for stage in MIDDLES.values():
        runs = made[stage] = Path(shutil.copytree(whole, tmp_path_factory.mktemp("halted") / "runs"))
        for seed in SEEDS:
            step = run_folder(runs, seed) / "step02"
            shutil.rmtree(step if stage == "train" else step / "heads")
            shutil.rmtree(step / "detectors", ignore_errors=True)
            config = replace(config_of(tiny, runs), seed=replace(config_of(tiny, runs).seed, runs=(seed,)))
            for event in opencil.execute(config):
                if isinstance(event, Training) and event.step == event.progress.epoch == 2:
                    assert event.progress.stage == stage
                    break
        shutil.rmtree(runs / ".outputs", ignore_errors=True)
    return made


def store_with(kind: str, whole: Path, halted: dict[str, Path]) -> Path:
    """A store that has files of a kind."""
    return halted[MIDDLES[kind]] if kind in MIDDLES else whole


# --- flips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_of_any_kind_of_file_flips_unnoticed(
    kind: str, whole: Path, halted: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(run_folder(store_with(kind, whole, halted)), tmp_path / "run"))
    path, reads = stored(run, kind)[-1], dict(readers(RunFolder(run)))
    content = path.read_bytes()
    reads[path]()
    for position in flips(path, 40, "short", header=400):
        flip(path, position)
        with pytest.raises(OpenCILError) as raised:
            reads[path]()
        assert str(path) in str(raised.value), position
        flip(path, position)
    # The marks of the seal are the only bytes without which a file would be one from before there were seals.
    start = content.index(b"<sha256")
    for position in range(8 * start, 8 * (content.index(b"file>") + 5), 5):
        flip(path, position)
        with pytest.raises(OpenCILError, match="checksum"):
            reads[path]()
        flip(path, position)
    reads[path]()


def test_a_run_is_verified(whole: Path, halted: dict[str, Path], tmp_path: Path) -> None:
    for runs in (whole, *halted.values()):
        assert verify(RunFolder(run_folder(runs))) == []
    run = Path(shutil.copytree(run_folder(whole), tmp_path / "run"))
    flip(run / "step02" / "memory.safetensors", 4000)
    (run / "step01" / "detectors" / "msp.parquet").rename(run / "step01" / "detectors" / "x.parquet.damaged")
    shutil.copy(run / "step01" / "detectors" / "ber.parquet", run / "step01" / "detectors" / "msp.parquet")
    shutil.copy(run / "step01" / "heads" / "ber.safetensors", run / "step02" / "heads" / "ber.safetensors")
    shutil.copy(run / "step01" / "heads" / "ber.safetensors", run / "step01" / "heads" / "vos.safetensors")
    found = {(f.path.relative_to(run).as_posix(), f.state) for f in verify(RunFolder(run))}
    assert found == {
        ("step02/memory.safetensors", "damaged"),
        ("step01/detectors/msp.parquet", "damaged"),
        ("step02/heads/ber.safetensors", "damaged"),
        ("step01/heads/vos.safetensors", "damaged"),
        ("step01/detectors/x.parquet.damaged", "set aside"),
    }


def test_links_that_lead_nowhere_are_found(whole: Path, tmp_path: Path) -> None:
    run, names = Path(shutil.copytree(run_folder(whole), tmp_path / "run")), ["data.json", "step02/step.json"]
    for path in (run / name for name in names):
        path.unlink()
        path.symlink_to("nothing")
    found = {f.path.relative_to(run).as_posix() for f in verify(RunFolder(run)) if f.state == "damaged"}
    assert found == set(names)


def test_a_whole_step_of_another_run_is_not_taken_for_its_own(
    whole: Path, tiny: Make, tmp_path: Path
) -> None:
    """Its model, memory and notes agree with each other: its rows would be measured again as the run's."""
    runs = Path(shutil.copytree(whole, tmp_path / "runs"))
    step = run_folder(runs) / "step02"
    shutil.rmtree(step)
    shutil.copytree(run_folder(runs, seed=1) / "step02", step)
    said = "step02/step.json cannot be used (it is of run digits/k4/icarl/seed1)"
    assert [finding.problem for finding in verify(RunFolder(run_folder(runs))) if said in finding.problem]
    assert [problem for problem in read_study(runs).problems if said in problem]
    events = list(opencil.execute(config_of(tiny, runs)))
    assert [said in str(event.error) for event in events if isinstance(event, Failed)] == [True]


def test_a_run_from_before_there_were_seals_is_as_good_as_ever(
    whole: Path, tiny: Make, tmp_path: Path
) -> None:
    runs = Path(shutil.copytree(whole, tmp_path / "runs"))
    for seed in SEEDS:
        unseal_run(run_folder(runs, seed))
    run = run_folder(runs)
    assert {f.state for f in verify(RunFolder(run))} == {"unsealed"}
    assert len(verify(RunFolder(run))) == len(list(run.rglob("*.*")))
    expected = report(config_of(tiny, whole))
    assert [type(event) for event in opencil.execute(config_of(tiny, runs))] == [Finished] * 2
    assert report(config_of(tiny, runs)) == expected
    assert load(config_of(tiny, runs)) == load(config_of(tiny, whole))
    shutil.rmtree(run / "step02")
    (run / "step01" / "detectors" / "msp.parquet").unlink()
    assert resume(config_of(tiny, runs)).results == expected.results


# --- damage and later uses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_use_of_a_damaged_store_is_silently_wrong(
    kind: str,
    whole: Path,
    halted: dict[str, Path],
    undamaged: Callable[[Path, str], "Outcome"],
    tiny: Make,
    tmp_path: Path,
) -> None:
    """Damages and uses that are drawn by the kind; with another's file in its place always."""
    source, drawn = store_with(kind, whole, halted), random.Random(kind)
    one, other = drawn.sample(sorted(DAMAGES), 2)
    goes_on = drawn.choice(["resume", "evaluate again"])
    trials = {(one, goes_on), (other, "report"), ("swapped", "load"), ("swapped", "report")}
    for damage, name in sorted(trials):
        runs = Path(shutil.copytree(source, tmp_path / f"{damage} {name}", symlinks=True))
        path = stored(run_folder(runs), kind)[-1]
        others = [*stored(run_folder(source), kind)[:-1], *stored(run_folder(source, 1), kind)]
        DAMAGES[damage](path, drawn.choice(others))
        outcome = USES[name](config_of(tiny, runs))
        assert outcome.trouble(undamaged(source, name), path) == "", (damage, name)


@pytest.fixture(scope="module")
def undamaged(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], "Outcome"]:
    """What each use of a store comes to without damage."""

    @cache
    def outcome(source: Path, name: str) -> Outcome:
        runs = Path(shutil.copytree(source, tmp_path_factory.mktemp("undamaged") / "runs"))
        found = USES[name](config_of(tiny, runs))
        assert not found.said
        assert found.results
        return found

    return outcome


@dataclass
class Outcome:
    """What a use came to: rows or models as bytes by their names, and the sentences that were said."""

    results: dict[str, bytes] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def names(self, path: Path) -> bool:
        """Whether a file was named, by its whole path or its last two parts.

        What a config or a step's notes are of shows in the files that they speak of: these may be named.
        """
        if path.name in ("config.yml", "step.json"):
            return bool(self.said)
        return any(str(path) in text or "/".join(path.parts[-2:]) in text for text in self.said)

    def trouble(self, expected: "Outcome", path: Path) -> str:
        """Why it is not what it should be after damage to a file: empty where nothing was silently wrong."""
        if wrong := [name for name, found in self.results.items() if expected.results.get(name) != found]:
            return f"{wrong[0]} is not what it was"
        if self.results.keys() != expected.results.keys() and not self.names(path):
            return (
                f"{len(expected.results) - len(self.results)} results are missing, and the file is not named"
            )
        return ""


def resume(config: Config) -> Outcome:
    """Go on with all runs of a config, then read their rows."""
    with _heard() as outcome:
        try:
            for event in opencil.execute(config):
                if isinstance(event, Failed):
                    outcome.said.append(str(event.error))
            outcome.results = _rows(opencil.read_rows(config.place.runs))
        except OpenCILError as error:
            outcome.said.append(str(error))
    return outcome


def evaluate_again(config: Config) -> Outcome:
    """Go on with another detector beside those of the config."""
    return resume(replace(config, detector={**config.detector, "energy": {}}))


def report(config: Config) -> Outcome:
    """Read all runs as a report does."""
    with _heard() as outcome:
        try:
            study = read_study(config.place.runs)
            outcome.results, outcome.said = _rows(study.rows), [*outcome.said, *study.problems]
        except OpenCILError as error:
            outcome.said.append(str(error))
    return outcome


def load(config: Config) -> Outcome:
    """Open every run, and take all that its last step has: model, memory, detectors."""
    with _heard() as outcome:
        for path in sorted(Path(config.place.runs).rglob("config.yml")):
            try:
                run = opencil.open_run(path.parent)
                last = run.trained_steps[-1].number
                found = {"memory": run.memory(last).indices, **run.model(last).state_dict()}
                heads = [
                    path.stem for path in run.folder.path.glob(f"step{last:02d}/heads/*[!t].safetensors")
                ]
                for name in ["msp", *heads]:
                    head = getattr(run.detector(name, last), "_extra", None)
                    found |= {f"{name} {key}": t for key, t in head.state_dict().items()} if head else {}
                for name, tensor in found.items():
                    outcome.results[f"{run.spec} {name}"] = bytes(file_formats.bytes_of(tensor))
            except OpenCILError as error:
                outcome.said.append(str(error))
    return outcome


USES: dict[str, Callable[[Config], Outcome]] = {
    "report": report,
    "load": load,
    "resume": resume,
    "evaluate again": evaluate_again,
}


def _rows(rows: pd.DataFrame) -> dict[str, bytes]:
    keys = rows[COLUMNS[:-1]].astype(str).agg(" ".join, axis=1)
    return dict(zip(keys, (value.tobytes() for value in rows["value"].to_numpy()), strict=True))


@contextmanager
def _heard() -> Iterator[Outcome]:
    """An outcome that hears what is logged meanwhile."""
    outcome, log = Outcome(), logging.getLogger("opencil.runs")

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            outcome.said.append(record.getMessage())

    ear = Ear()
    log.addHandler(ear)
    try:
        yield outcome
    finally:
        log.removeHandler(ear)
