"""``opencil evaluate``: a folder of checkpoints from elsewhere becomes a run like any other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opencil
from tests.cli import common

FACTORY = """
from torch import nn
from opencil.nets.wrap import wrap

def make(classes):
    return wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, classes)), head="3")

def broken(classes):
    return {}["no such thing"]
"""


@pytest.fixture(autouse=True)
def _folder(_own_folder: None) -> None:
    """A folder of four checkpoints, and a file that makes their models."""
    torch.manual_seed(0)
    Path("checkpoints").mkdir()
    for t in (1, 2, 3, 4):
        network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 2 * t))
        torch.save(network.state_dict(), f"checkpoints/task{t}.pt")
    Path("my_file.py").write_text(FACTORY, encoding="utf-8")


def call(*words: str, factory: str = "my_file.py:make") -> Any:
    flags = ["--name", "mine", "--benchmark", "digits", "--device", "cpu", "--runs", "r"]
    return common.call("evaluate", "checkpoints", "--factory", factory, *flags, *words)


def test_a_folder_of_checkpoints_becomes_a_run() -> None:
    result = call("--detector", "msp,relation")
    assert result.exit_code == 0, result.output
    assert "digits, 2 classes per step: OOD detection" in result.stdout
    rows = opencil.read_rows("r")
    assert set(rows["cil"]) == {"mine"}
    assert set(rows["step"]) == {1, 2, 3, 4}
    report = common.call("report", "r", "--table", "main")
    assert report.exit_code == 0
    assert "mine" in report.stdout

    same = call("--detector", "msp,relation")
    assert same.stdout == result.stdout
    torch.save(torch.load("checkpoints/task1.pt", weights_only=True), "checkpoints/task3.pt")
    changed = call("--detector", "msp")
    assert changed.exit_code == 1
    assert "task3.pt does not fit what the factory makes" in changed.stderr


def test_what_models_go_without_is_said_once() -> None:
    result = call("--detector", "msp,ber,vos", "--memory", "none", "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("mine goes without ber, vos: ")
    assert result.stderr.count("goes without") == 1
    two = call("--detector", "msp", "--classes-per-step", "2,4")
    assert (two.exit_code, two.stdout) == (2, "")
    assert "k = [2, 4] is not allowed: one is, that of the models" in two.stderr


def test_memory_and_order_come_from_files_or_flags() -> None:
    Path("memory.json").write_text("[[], [], [], []]", encoding="utf-8")
    words = ["--detector", "msp", "--memory", "memory.json", "--class-order", "0,1,2,3,4,5,6,7"]
    assert call(*words).exit_code == 0
    run = opencil.open_run("r/digits/k2/mine/seed0")
    assert torch.equal(run.stream.train.labels, run.data.train.labels)
    assert len(run.memory(4).indices) == 0


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--memory", "not-there.json"], "--memory 'not-there.json'"),
        (["--class-order", "{}"], "class_order = [{}]"),
        (["--class-order", "1,2"], "class_order"),
        (["--name", "icarl"], "name = 'icarl'"),
        (["--classes-per-step", "4"], "4 models"),
        (["--seed", "0,1"], "seed = [0, 1]"),
        (["--factory", "my_file.py:mak"], "'mak'"),
        (["--factory", "other.py:make"], "'other.py'"),
        (["--cil", "icarl"], "--cil"),
    ],
)
def test_what_cannot_be_evaluated(words: list[str], key: str) -> None:
    result = call("--detector", "msp", *words)
    assert result.exit_code in (1, 2)
    assert key in result.stderr
    assert "Traceback" not in result.output


def test_a_bug_in_the_factory_is_shown_with_its_place() -> None:
    result = call("--detector", "msp", factory="my_file.py:broken")
    assert result.exit_code == 1
    assert 'my_file.py", line 9, in broken' in result.stderr
    assert "stopped: KeyError: 'no such thing' (traceback:" in result.stderr
