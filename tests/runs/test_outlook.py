"""What is done of a config's runs, and how long the rest may take."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from opencil.config import Config
from opencil.errors import BadInput
from opencil.runs import launch
from opencil.runs import outlook as outlooks
from opencil.runs.outlook import measure, outlook
from opencil.runs.spec import plan
from tests.stored import contents, edit_json, flip

Make = Callable[..., Config]
RUN = "digits/k4/icarl/seed0"


def test_nothing_is_done_and_nothing_is_written(tmp_path: Path, short: Make) -> None:
    found = outlook(short(tmp_path / "runs", seed=[0, 1]))
    assert [(run.steps, run.trained, run.lacking, run.done, run.seconds) for run in found.runs] == [
        (2, 0, (), False, None)
    ] * 2
    assert (found.done, found.seconds, found.at_once, found.device) == (0, None, 1, "cpu")
    assert not any(tmp_path.iterdir())


def test_a_few_iterations_are_timed_and_extrapolated_by_effort(
    tmp_path: Path, done: Path, short: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, before = short(tmp_path / "runs", cil="acil,foster", seed=[0, 1]), sorted(tmp_path.rglob("*"))
    assert 0 < (measure(config, outlook(config)).training or 0) < 600
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.setattr(outlooks, "_time_image", lambda spec, device: 2.0)
    every, first = plan(config), plan(short(done))[0]
    assert measure(config, outlook(config)).training == 2 * sum(spec.expected_work for spec in every)
    assert measure(short(done), outlook(short(done))).training is None, "nothing is to be trained"
    shutil.rmtree(done / RUN / "step02")
    assert measure(short(done), outlook(short(done))).training == 2 * first.works()[1]


def test_all_is_done(done: Path, short: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "load", lambda config: pytest.fail("data are loaded"))
    before = contents(done)
    found = outlook(short(done))
    (run,) = found.runs
    assert (run.steps, run.trained, run.done, run.seconds) == (2, 2, True, 0)
    assert (found.done, found.seconds) == (1, 0)
    assert contents(done) == before


def test_missing_work_takes_as_long_as_in_similar_runs(done: Path, short: Make) -> None:
    other = done / RUN.replace("seed0", "seed1")
    shutil.copytree(done / RUN, other)
    for step, seconds in ((1, 10.0), (2, 5.0)):
        taken = {"training": seconds, "evaluation": 1.0}
        edit_json(other / f"step0{step}/step.json", lambda info, taken=taken: info.update(seconds=taken))
    shutil.rmtree(done / RUN / "step02")
    (done / RUN / "step01/detectors/msp.parquet").unlink()
    (run,) = outlook(short(done)).runs
    assert (run.trained, run.lacking, run.done) == (1, ("msp",), False)
    assert run.seconds == pytest.approx(1.0 + 6.0), "step 1 is trained already"
    (new,) = outlook(short(done, detector="energy")).runs
    assert new.seconds is None, "no similar run has that detector"


def test_a_damaged_run_leaves_the_others(done: Path, short: Make) -> None:
    flip(done / RUN / "step01/step.json")
    damaged, other = outlook(short(done, seed=[0, 1])).runs
    assert (damaged.steps, damaged.done) == (None, False)
    assert (other.steps, other.trained) == (2, 0)


def test_runs_at_once(tmp_path: Path, short: Make, done: Path) -> None:
    assert outlook(short(tmp_path, "place.jobs=2", seed=[0, 1, 2])).at_once == 2
    assert outlook(short(tmp_path, "place.jobs=4", seed=[0, 1, 2])).at_once == 3
    assert outlook(short(done, "place.jobs=2")).at_once == 1


def test_a_changed_config_is_refused(done: Path, short: Make) -> None:
    with pytest.raises(BadInput, match=r"benchmark\.memory"):
        outlook(short(done, "benchmark.memory=40"))


def test_bad_places_are_refused(tmp_path: Path, short: Make) -> None:
    (tmp_path / "file").touch()
    for runs, setting, key in (
        (tmp_path / "r", "place.data_root=not-there", "data_root"),
        (tmp_path / "r", "place.device=abacus", "abacus"),
        (tmp_path / "file", "place.threads=1", "is a file"),
        (tmp_path / "file/runs", "place.threads=1", "is a file"),
    ):
        with pytest.raises(BadInput, match=key):
            outlook(short(runs, setting))
    assert not (tmp_path / "r").exists()


def test_a_dry_run_that_overwrites_says_what_is_made_again(done: Path, short: Make) -> None:
    (run,) = outlook(short(done, "benchmark.memory=40"), overwrite=True).runs
    assert (run.again, run.done, run.trained) == (True, False, 0)
    (run,) = outlook(short(done, "detector.msp.by_task=true"), overwrite=True).runs
    assert (run.again, run.done, run.lacking) == (True, False, ("msp",))
    assert run.trained == run.steps
    (run,) = outlook(short(done), overwrite=True).runs
    assert (run.again, run.done) == (False, True)
