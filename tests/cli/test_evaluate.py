"""``opencil evaluate``: a folder of checkpoints from elsewhere becomes a run like any other."""

import re
import sys
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


LIKE_PYCIL = """
from torch import nn

class SimpleLinear(nn.Linear):
    def forward(self, features):
        return {"logits": super().forward(features)}

class IncrementalNet(nn.Module):
    def __init__(self, args, pretrained):
        super().__init__()
        assert args["convnet_type"] == "resnet32"
        self.convnet, self.fc = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU()), None

    def extract_vector(self, x):
        return self.convnet(x)

    def update_fc(self, nb_classes):
        self.fc = SimpleLinear(16, nb_classes)
"""


def test_checkpoints_of_pycil(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the guide shows, on a network and checkpoints as PyCIL's are."""
    page = (Path(__file__).parents[2] / "docs/your-models.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```python\n(# from_pycil.py\n.*?)^```$", page, re.M | re.S)
    Path("from_pycil.py").write_text(shown, encoding="utf-8")
    Path("utils").mkdir()
    Path("utils/inc_net.py").write_text(LIKE_PYCIL, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the file's folder is added to it
    names: dict[str, Any] = {}
    exec(LIKE_PYCIL, names)
    for file in Path("checkpoints").iterdir():
        file.unlink()
    for task in range(4):
        network = names["IncrementalNet"]({"convnet_type": "resnet32"}, False)
        network.update_fc(2 * (task + 1))
        torch.save({"tasks": task, "model_state_dict": network.state_dict()}, f"checkpoints/icarl_{task}.pkl")
    result = call("--detector", "msp,ber", factory="from_pycil.py")
    for name in ("utils", "utils.inc_net"):
        sys.modules.pop(name, None)
    assert result.exit_code == 0, result.output
    assert set(opencil.read_rows("r")["step"]) == {1, 2, 3, 4}
