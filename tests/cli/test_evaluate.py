"""``opencil evaluate``: a folder of checkpoints from elsewhere becomes a run like any other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import opencil
from opencil.cli import app

FACTORY = """
from torch import nn
from opencil.nets.wrap import wrap

def make(classes):
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, classes)), head="3")

def broken(classes):
    return {}["no such thing"]
"""


@pytest.fixture(autouse=True)
def _folder(empty_wide_folder: None) -> None:
    """A folder of four checkpoints, and a file that makes their models."""
    torch.manual_seed(0)
    Path("checkpoints").mkdir()
    for t in (1, 2, 3, 4):
        network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2 * t))
        torch.save(network.state_dict(), f"checkpoints/task{t}.pt")
    Path("my_file.py").write_text(FACTORY, encoding="utf-8")


def call(*words: str, factory: str = "my_file.py:make") -> Any:
    given = [
        "--factory",
        factory,
        "--name",
        "mine",
        "--benchmark",
        "digits",
        "--device",
        "cpu",
        "--runs",
        "r",
    ]
    return CliRunner().invoke(app, ["evaluate", "checkpoints", *given, *words])


def test_a_folder_of_checkpoints_becomes_a_run() -> None:
    result = call("--detector", "msp,relation")
    assert result.exit_code == 0, result.output
    assert "digits, 2 classes per step: OOD detection" in result.stdout
    rows = opencil.read_rows("r")
    assert set(rows["cil"]) == {"mine"}
    assert set(rows["step"]) == {1, 2, 3, 4}
    report = CliRunner().invoke(app, ["report", "r", "--table", "main"])
    assert report.exit_code == 0
    assert "mine" in report.stdout

    same = call("--detector", "msp,relation")
    assert same.stdout == result.stdout
    torch.save(torch.load("checkpoints/task1.pt", weights_only=True), "checkpoints/task3.pt")
    changed = call("--detector", "msp")
    assert changed.exit_code == 1
    assert "task3.pt does not fit what the factory makes" in changed.stderr


def test_memory_and_order_come_from_files_or_flags() -> None:
    Path("memory.json").write_text("[[], [], [], []]", encoding="utf-8")
    words = ["--detector", "msp", "--memory", "memory.json", "--class-order", "0,1,2,3,4,5,6,7"]
    assert call(*words).exit_code == 0
    run = opencil.open_run("r/digits/k2/mine/seed0")
    assert torch.equal(run.stream.train.labels, run.data.train.labels)
    assert len(run.memory(4).indices) == 0


@pytest.mark.parametrize(
    ("words", "factory", "said"),
    [
        (["--memory", "not-there.json"], "my_file.py:make", "--memory 'not-there.json' is not understood"),
        (["--class-order", "{}"], "my_file.py:make", "class_order = [{}] is not allowed"),
        (["--class-order", "1,2"], "my_file.py:make", "class_order is not allowed: each of 0 to 7 is needed"),
        (["--name", "icarl"], "my_file.py:make", "name = 'icarl' is not allowed"),
        (["--classes-per-step", "4"], "my_file.py:make", "there are 4 models, and 2 steps"),
        (["--seed", "0,1"], "my_file.py:make", "seed = [0, 1] is not allowed: one is"),
        ([], "my_file.py:mak", "there is no function 'mak' in my_file.py"),
        ([], "other.py:make", "plugin 'other.py' cannot be read"),
    ],
)
def test_what_cannot_be_evaluated(words: list[str], factory: str, said: str) -> None:
    result = call("--detector", "msp", *words, factory=factory)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_bug_in_the_factory_is_shown_with_its_place() -> None:
    result = call("--detector", "msp", factory="my_file.py:broken")
    assert result.exit_code == 1
    assert 'my_file.py", line 9, in broken' in result.stderr
    assert "stopped: KeyError: 'no such thing' (traceback:" in result.stderr


def test_no_flags_that_mean_nothing_here() -> None:
    listed = CliRunner().invoke(app, ["evaluate", "--help"], env={"COLUMNS": "200"}).stdout
    assert "--factory" in listed
    assert "--data-root" in listed
    assert "--cil" not in listed
    assert "--epochs-scale" not in listed
