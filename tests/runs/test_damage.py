"""Damage to stored files is noticed by whoever reads or verifies them.

``python -m tests.siege.flips`` is the long version of the flips; tests/siege/damages.py has every later use.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import opencil
from opencil.config import Config
from opencil.errors import OpenCILError
from opencil.runs.events import Failed, Finished, Training
from opencil.runs.reading import read_study
from opencil.runs.store import RunFolder
from opencil.runs.verifying import readers, verify
from tests.siege.damage import KINDS, flip, flips, stored, unseal_run

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
    assert [type(event) for event in opencil.execute(config_of(tiny, runs))] == [Finished] * 2
    found, expected = read_study(runs), read_study(whole)
    pd.testing.assert_frame_equal(found.rows, expected.rows)
    assert found.problems == expected.problems == []
    old, new = opencil.open_run(run), opencil.open_run(run_folder(whole))
    weights = new.model(2).state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in old.model(2).state_dict().items())
    assert torch.equal(old.memory(2).indices, new.memory(2).indices)
    assert old.detector("ber", 2)
    shutil.rmtree(run / "step02")
    (run / "step01" / "detectors" / "msp.parquet").unlink()
    list(opencil.execute(config_of(tiny, runs)))
    pd.testing.assert_frame_equal(read_study(runs).rows, expected.rows)
