"""Damage stored files in any way: the damage is named, never shown, and mended to the same bits or refused.

``COUNT=1000 python -m pytest tests/runs/test_damage.py`` tries more combinations; SEED chooses others.
"""

import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

import opencil
from opencil import OpenCILError
from opencil.config import Config
from opencil.runs.events import Event, Failed, Finished, Training
from opencil.runs.inventory import damages, leftovers, remove
from opencil.runs.store import RunFolder
from tests.stored import contents, flip, results

Make = Callable[..., Config]
COUNT, SEED = int(os.environ.get("COUNT", "18")), int(os.environ.get("SEED", "1"))
RUN = "digits/k4/icarl/seed0"
#: The kinds of files that a run stores.
FILES = [
    "config.yml",
    "environment.json",
    "step*/step.json",
    "step*/model.safetensors",
    "step*/memory.safetensors",
    "step*/model.parquet",
    "step*/detectors/*.parquet",
    "step*/heads/*.safetensors",
    "step*/checkpoint",
]
DAMAGES = ["flip", "truncate", "empty", "other step", "other run", "delete"]
#: Files that 'opencil run' does not make again: it refuses them where it reads them.
REFUSED = ("config.yml", "step.json", "model.safetensors", "memory.safetensors")
TRIALS = [
    pytest.param(kind, damage, seed, id=f"{kind}-{damage}-{seed}".replace("/", "-"))
    for seed in range(SEED, SEED + 1 + COUNT // (len(FILES) * len(DAMAGES)))
    for kind, damage in product(FILES, DAMAGES)
]
random.Random(SEED).shuffle(TRIALS)


@pytest.fixture(scope="module")
def stores(
    done_once: Path,
    short: Make,
    run_all: Callable[[Config], list[Event]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path]:
    """A run that is complete, and one that was interrupted in step 2; each beside a run of another seed."""
    folder = tmp_path_factory.mktemp("damage")
    finished = Path(shutil.copytree(done_once, folder / "finished"))
    run_all(short(finished, seed=1))
    interrupted = Path(shutil.copytree(finished, folder / "interrupted"))
    for seed in (0, 1):
        shutil.rmtree(interrupted / RUN.replace("0", str(seed)) / "step02")
        config = short(interrupted, "place.checkpoint_seconds=0", seed=seed)
        with closing(opencil.execute(config)) as events:
            next(event for event in events if isinstance(event, Training) and event.progress.epoch_ends)
    return finished, interrupted


def apply(damage: str, path: Path, chance: random.Random) -> bool:
    """Damage a file; False where that cannot be done to it."""
    if damage == "flip":
        flip(path, chance.randrange(path.stat().st_size))
    elif damage in ("truncate", "empty"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3 if damage == "truncate" else 0])
    elif damage == "delete":
        path.unlink()
    else:
        this, other = ("step01", "step02") if damage == "other step" else ("seed0", "seed1")
        source = Path(str(path).replace(this, "?").replace(other, this).replace("?", other))
        if source == path or not source.exists() or source.read_bytes() == path.read_bytes():
            return False
        shutil.copy(source, path)
    return True


@pytest.mark.parametrize(("kind", "damage", "seed"), TRIALS[:COUNT])
def test_damage(
    stores: tuple[Path, Path], short: Make, tmp_path: Path, kind: str, damage: str, seed: int
) -> None:
    chance = random.Random(f"{kind} {damage} {seed}")
    source = stores["checkpoint" in kind]
    runs = Path(shutil.copytree(source, tmp_path / "runs"))
    path = chance.choice(sorted((runs / RUN).glob(kind)))
    name, before = path.relative_to(runs / RUN).as_posix(), path.read_bytes()
    if not apply(damage, path, chance):
        pytest.skip("the other file is the same, or there is none")
    optional = "checkpoint" in kind  # one that is gone may never have been written
    noticed = not (optional and damage == "delete")
    named = not ("checkpoint" in kind and damage == "other run")  # its training alone knows its checkpoint

    found = {where.relative_to(runs / RUN).as_posix() for where in damages(RunFolder(runs / RUN))}
    if kind == "config.yml" and damage == "other run":  # the other files do not fit to it
        assert found
        with pytest.raises(OpenCILError, match="2 times"):
            opencil.read_study(runs)
    else:
        assert (name in found) == (noticed and named)
        _check_study(source, runs, name, noticed and "checkpoint" not in kind)

    error = _run(short(runs, seed=0, detector=["msp", "relation", "ber", "knn"]))
    if path.name in REFUSED and error is not None:
        assert path.name in error or path.parent.name in error, error
        assert kind == "config.yml" or "\n" not in error  # values that differ have a line each
        for leftover in leftovers(RunFolder(runs / RUN)):
            remove(leftover)
        assert kind == "config.yml" or _run(short(runs, seed=0)) is None
    else:
        assert error is None
    if kind != "config.yml":
        _check_files(stores[0], runs, name, before)


def _run(config: Config) -> str | None:
    """Execute a config; return the error that ends its run."""
    try:
        *_, last = opencil.execute(config)
    except OpenCILError as error:
        return str(error)
    assert isinstance(last, Finished | Failed)
    return str(last.error) if isinstance(last, Failed) else None


def _check_study(source: Path, runs: Path, name: str, named: bool) -> None:
    """All rows of the damaged store are rows of the whole store, and what is lacking is named."""
    study, whole = opencil.read_study(runs), opencil.read_study(source)
    assert set(study.rows.itertuples(index=False, name=None)) <= set(
        whole.rows.itertuples(index=False, name=None)
    )
    if len(study.rows) < len(whole.rows):
        assert any(name in problem or "config.yml" in name for problem in study.problems)
    elif name.endswith(".json"):
        assert bool(study.problems) == named


def _check_files(source: Path, runs: Path, name: str, before: bytes) -> None:
    """Every file but the damaged one has the bits of the whole store; that one too, if it was made again."""
    expected, found = results(source / RUN), results(runs / RUN)
    for info in (info for stored in (expected, found) for key, info in stored.items() if "step.json" in key):
        if isinstance(info, dict):
            info["rows"] = {key: value["values"] for key, value in info["rows"].items() if key != "knn"}
            info["files"].pop("detectors/knn.parquet", None)
    for key in expected:
        if key not in (name, "config.yml", "environment.json"):
            assert found.get(key) == expected[key], key
    mended = name.endswith((".parquet", "checkpoint")) or "heads/" in name
    if mended:
        assert found.get(name) == expected.get(name)
        assert "checkpoint" in name or contents(runs / RUN)[name] == before
