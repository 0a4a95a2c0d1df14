"""opencil runs: what a user sees, and the exit codes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from opencil.runs.store import RunFolder
from tests.cli import common
from tests.stored import flip

RUN = "digits/k2/icarl/seed0"


def call(*words: object) -> Any:
    return common.call("runs", *words)


def test_runs_are_listed_with_state_size_and_age(finished: Path) -> None:
    shutil.copytree(finished / RUN, finished / "digits/k2/icarl/seed1")
    (finished / "digits/k2/icarl/seed1/step04/step.json").unlink()
    found = call("list", finished)
    assert found.exit_code == 0
    head, first, second, last = found.stdout.strip().splitlines()
    assert head.split() == ["run", "state", "so", "far", "size", "written"]
    assert first.split()[:6] == [str(finished / RUN), "finished", "4", "of", "4", "steps"]
    assert second.split()[1:][:2] == ["unfinished", "3"]
    assert last.startswith("2 runs (1 finished, 1 unfinished), ")


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    for command in ("list", "check", "clean"):
        found = call(command, tmp_path)
        assert found.exit_code == 2
        assert "there are no runs below" in found.stderr


def test_check_ends_with_0_or_names_what_is_wrong(finished: Path) -> None:
    whole = call("check", finished)
    assert whole.exit_code == 0
    assert whole.stdout.splitlines() == [f"✓ {finished / RUN}", "nothing is wrong: 1 run checked"]
    flip(finished / RUN / "step02/memory.safetensors")
    damaged = call("check", finished)
    assert damaged.exit_code == 1
    first, second = damaged.stdout.splitlines()
    assert first == f"✗ {finished / RUN}"
    assert second.startswith(f"    ✗ {finished / RUN / 'step02/memory.safetensors'} cannot be used")
    assert "something is wrong with 1 of 1 runs" in damaged.stderr


def test_clean_deletes_only_when_asked_and_nothing_of_a_living_run(finished: Path) -> None:
    half = finished / RUN / "step01/a.part"
    half.write_text("half")
    listed = call("clean", finished)
    assert listed.exit_code == 0
    assert f"{half} (4 B) is half-written" in listed.stdout
    assert "1 would go, 4 B: --yes deletes them" in listed.stdout
    assert half.exists()
    with RunFolder(finished / RUN).lock():
        assert "it is being written, and left alone" in call("clean", finished, "--yes").stdout
        assert "it is being written, and left out" in call("check", finished).stdout
    assert half.exists()
    assert "1 deleted, 4 B" in call("clean", finished, "--yes").stdout
    assert not half.exists()
    assert "nothing to clean up in 1 run" in call("clean", finished).stdout


def test_clean_failed_deletes_failed_runs_and_no_others(finished: Path) -> None:
    failed = finished / "digits/k2/icarl/seed1"
    shutil.copytree(finished / RUN, failed)
    shutil.rmtree(failed / "step04")
    (failed / "error.txt").write_text("It broke.")
    assert "nothing to clean up in 2 runs" in call("clean", finished).stdout
    listed = call("clean", finished, "--failed").stdout
    assert "seed1" in listed
    assert "It broke." in listed
    assert failed.exists()
    assert "1 deleted" in call("clean", finished, "--failed", "--yes").stdout
    assert not failed.exists()
    assert call("check", finished).exit_code == 0


def test_deep_trains_a_step_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = call("check", finished / RUN, "--deep")
    assert found.exit_code == 0, found.stderr
    assert "have the same bits" in found.stdout

    from opencil.runs import again

    def differing(*_: object) -> list[str]:
        return ["model: 3 of 10 numbers differ"]

    monkeypatch.setattr(again, "_differences", differing)
    differs = call("check", finished / RUN, "--deep")
    assert differs.exit_code == 1
    assert "model: 3 of 10 numbers differ" in differs.stdout
    monkeypatch.setattr(again, "_doubts", lambda *_: iter(["another torch"]))
    doubted = call("check", finished / RUN, "--deep")
    assert doubted.exit_code == 0
    assert "the same bits cannot be expected: another torch" in doubted.stderr


def test_deep_is_of_one_run(finished: Path) -> None:
    shutil.copytree(finished / RUN, finished / "digits/k2/icarl/seed1")
    several = call("check", finished, "--deep")
    assert several.exit_code == 2
    assert "--deep trains a step of one run, and there are 2" in several.stderr
