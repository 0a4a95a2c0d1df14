"""Kill ``opencil run`` at any moment: the same command goes on, and arrives at the same bits.

``COUNT=200 python -m pytest tests/runs/test_kills.py`` kills more often; SEED chooses other moments.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from opencil.runs.inventory import damages
from opencil.runs.store import find_runs
from tests import processes
from tests.stored import results

COUNT, SEED = int(os.environ.get("COUNT", "2")), int(os.environ.get("SEED", "1"))
RUN = ["run", "--benchmark", "digits", "--cil", "icarl", "--detector", "msp,relation,ber", "--device", "cpu"]
RUN += ["--classes-per-step", "4", "--quiet", "--runs", "runs"]
SETTINGS = ["cil.*.epochs=2", "detector.ber.schedule.epochs=2", "benchmark.near=[]", "benchmark.far=[noise]"]
SETTINGS += ["benchmark.shifted={}", "place.checkpoint_seconds=0"]
RUN += [word for setting in SETTINGS for word in ("--set", setting)]
#: Kills the process at the n-th file operation in the folder of runs, as sitecustomize of the command.
KILLER = """
import os, signal, sys

count, at = 0, int(os.environ["KILL_AT"])

def watch(event, args):
    global count
    if event not in ("open", "os.rename", "os.remove", "os.mkdir") or not str(args[0]).startswith("runs"):
        return
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    if not at:
        with os.fdopen(os.open("operations", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
            file.write(event + " " + str(args[0]) + chr(10))

sys.addaudithook(watch)
"""
pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the killer, in which the command has run once without being killed."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "killer").mkdir()
    (folder / "killer" / "sitecustomize.py").write_text(KILLER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with processes.command(*RUN, "--seed", "0,1", variables=killer(folder, 0)) as process:
            out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return folder


def killer(ground: Path, at: int) -> dict[str, str]:
    return {"PYTHONPATH": str(ground / "killer"), "KILL_AT": str(at)}


@pytest.fixture
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arrive(ground: Path, tmp_path: Path, *words: str) -> None:
    """Give the command again, and compare all that it leaves with the folder of the undisturbed command."""
    with processes.command(*RUN, *words) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    found = results(tmp_path / "runs")
    expected = {name: content for name, content in results(ground / "runs").items() if name in found}
    assert len(found) == len(expected) >= 18 * (1 + ("0,1" in words))
    for stored in (found, expected):  # in how many calls rows were made is no part of the result
        for info in (info for name, info in stored.items() if name.endswith("step.json")):
            for note in info["rows"].values():  # type: ignore[index]
                note.pop("made")
    assert found == expected, [name for name in found if found[name] != expected[name]]


MOMENTS = [random.Random(f"{SEED} {number}").random() for number in range(COUNT)]


@pytest.mark.usefixtures("_in_folder")
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_file_operation(ground: Path, tmp_path: Path, moment: float) -> None:
    operations = (ground / "operations").read_text().splitlines()
    first = next(i for i, line in enumerate(operations) if "seed1/step01" in line)
    at = 1 + int(moment * first)
    with processes.command(*RUN, variables=killer(ground, at)) as process:
        assert process.wait(timeout=300) == -signal.SIGKILL
    arrive(ground, tmp_path)


@pytest.mark.usefixtures("_in_folder")
@pytest.mark.parametrize("moment", MOMENTS[::2])
def test_two_processes_are_killed_with_their_command(ground: Path, tmp_path: Path, moment: float) -> None:
    """The workers notice the end of the command that started them, and free their runs."""
    words = ["--seed", "0,1", "--jobs", "2"]
    with processes.command(*RUN, *words) as process:
        until = time.monotonic() + 60
        while len(list(tmp_path.rglob("step01/*"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(moment * 2)
        process.kill()
        process.wait()
    arrive(ground, tmp_path, *words)


@pytest.mark.usefixtures("_in_folder", "interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_stopped_command_leaves_checkpoints(tmp_path: Path, number: signal.Signals, code: int) -> None:
    words = ["--seed", "0,1", "--jobs", "2", "--set", "cil.*.epochs=100000"]
    with processes.command(*RUN, *words) as process:
        until = time.monotonic() + 120
        while len(list(tmp_path.rglob("step01/checkpoint"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in out + err
    assert len(list(tmp_path.rglob("step01/checkpoint"))) == 2
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.usefixtures("_in_folder")
@pytest.mark.parametrize(("jobs", "seconds"), [("1", 0.3), ("2", 0.01)])
def test_more_signals_change_nothing(tmp_path: Path, jobs: str, seconds: float) -> None:
    """A queue sends SIGTERM again and again, also while the process ends."""
    words = ["--seed", "0,1", "--jobs", jobs]
    with processes.command(*RUN, *words, "--set", "cil.*.epochs=100000") as process:
        until = time.monotonic() + 120
        while len(list(tmp_path.rglob("step01/checkpoint"))) < int(jobs) and time.monotonic() < until:
            time.sleep(0.05)
        while process.poll() is None and time.monotonic() < until:
            process.send_signal(signal.SIGTERM)
            time.sleep(seconds)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Traceback" not in out + err
    assert not list(tmp_path.rglob("*.part"))
    assert all(not damages(run) for run in find_runs(tmp_path / "runs"))
