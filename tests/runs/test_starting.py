"""Processes of workers that are started before it is known what they shall do."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opencil
from opencil.config import Config
from opencil.runs import starting
from opencil.runs.events import Event


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    starting.let_go()


def test_who_asks_gets_one_that_was_started_ahead_and_else_a_new_one() -> None:
    starting.start_ahead(1)
    (ahead,) = starting._ahead
    first, second = starting.started("cpu"), starting.started("cuda:1")
    assert (first, first.name, second.name) == (ahead, "cpu", "cuda:1")
    assert second.process.pid != first.process.pid
    for process in (first, second):
        process.kill()
        assert process.ended().startswith("was ended by SIGKILL")


def test_those_that_nobody_asks_for_end_and_the_others_stay() -> None:
    starting.start_ahead(3)
    first, *others = [process.process for process in starting._ahead]
    starting.let_go(but=1)
    assert first.poll() is None
    assert [process.poll() for process in others] == [-9, -9]
    starting.let_go()
    assert first.poll() == -9


def test_a_grid_that_one_process_does_keeps_nobody_waiting(
    tmp_path: Path, tiny: Callable[..., Config], run_all: Callable[[Config], list[Event]]
) -> None:
    """One run, and two workers that were started for it."""
    starting.start_ahead(2)
    processes = [process.process for process in starting._ahead]
    run_all(tiny(tmp_path, "place.jobs=2"))
    assert [process.returncode for process in processes] == [-9, -9]


def test_one_whose_starter_is_gone_leaves_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    starting.start_ahead(1)
    process = starting.started("cpu")
    process.close()
    assert process.ended() == "was stopped"
    assert capfd.readouterr() == ("", "")


def test_starting_costs_nothing_but_python() -> None:
    code = (
        "import sys; before = {*sys.modules}; import opencil.runs.starting; print(*{*sys.modules} - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = {name.partition(".")[0] for name in done.stdout.split()}
    assert new - set(sys.stdlib_module_names) == {"opencil"}


def test_a_grid_on_ray_keeps_nobody_waiting_either(
    tmp_path: Path, tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers are started elsewhere, and `--jobs` may have started some here."""
    starting.start_ahead(1)
    (process,) = starting._ahead
    config = tiny(tmp_path, "place.launcher=ray")
    monkeypatch.setattr("opencil.runs.runner.usable_places", lambda place: [place, place])
    monkeypatch.setattr("opencil.runs.runner.hire", lambda *_: pytest.fail("it has not got there"))
    with pytest.raises(pytest.fail.Exception):
        list(opencil.execute(config))
    assert process.process.returncode == -9


def test_a_module_of_that_name_in_the_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python -c` does, and the command does not."""
    (tmp_path / "pickle.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    process = starting.started("cpu")
    process.close()
    assert process.ended() == "was stopped"
