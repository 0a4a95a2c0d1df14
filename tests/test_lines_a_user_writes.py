"""Lines that a user writes, imports aside, to bring something of their own: the docs' examples, run."""

import ast
import re
import shlex
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import opencil
from opencil.cli import app
from opencil.openworld.network import Pretrained
from tests.openworld.conftest import picture

DOCS = Path(__file__).parent.parent / "docs"


def lines(text: str) -> int:
    """Lines of code that are neither blank, nor comments, nor imports."""
    imports = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = enumerate(text.splitlines(), start=1)
    return sum(1 for n, line in numbered if n not in imports and line.strip() and line.strip()[0] != "#")


def shown(text: str, page: str) -> str:
    """The example, which stands in a page of the docs as it is here."""
    assert text.strip() in (DOCS / page).read_text(encoding="utf-8"), f"{page} shows something else"
    return text


FOREIGN_MODEL = """
from torchvision.models import resnet18
import opencil

data = opencil.benchmark("digits")
model = opencil.wrap(resnet18(num_classes=8), head="fc")  # yours, with the weights that you trained
ood = {name: ood.images for name, ood in data.ood.items()}
table = opencil.evaluate(model, data.test, ood, setup=data.train, transform=data.transform)
print(table.pivot_table(index="detector", columns="metric", values="value")[["accuracy", "auc", "fpr"]])
"""


class LikeResNet18(nn.Module):
    """What torchvision's has: layers, pooling, and a linear layer ``fc``."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layer1, self.fc = nn.Conv2d(3, 8, 5, 3), nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer1(x).relu().flatten(1))
        return logits


@pytest.fixture
def _torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in where torchvision would be."""
    models = types.ModuleType("torchvision.models")
    vars(models)["resnet18"] = LikeResNet18
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.usefixtures("_torchvision")
def test_a_foreign_model_under_the_detectors_that_one_pass_is_enough_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lines(shown(FOREIGN_MODEL, "your-models.md")) <= 6
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(FOREIGN_MODEL, names)
    made = {name: opencil.create_detector(name) for name in opencil.list_detectors()}
    known = [n for n, d in made.items() if not {"images", "layers"} & (d.reads | d.reads_to_set_up)]
    assert sorted(names["table"]["detector"].unique()) == known
    printed = capsys.readouterr().out.split()
    assert {*known, "accuracy", "auc", "fpr"} <= set(printed)


FOREIGN_STEPS = """
import torch
from torchvision.models import resnet18
import opencil


def model(step):
    network = resnet18(num_classes=step.seen)
    network.load_state_dict(torch.load(f"checkpoints/task{step.number}.pt", weights_only=True))
    return opencil.wrap(network, head="fc")


results = opencil.evaluate_steps(model, name="my-method", benchmark="cifar100", k=10)
print(results.table())
"""


@pytest.mark.usefixtures("_torchvision")
def test_ten_foreign_checkpoints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With twenty classes of noise in place of CIFAR-100."""
    assert lines(shown(FOREIGN_STEPS, "your-models.md")) <= 10
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").mkdir()
    for task in range(1, 11):
        torch.save(LikeResNet18(2 * task).state_dict(), f"checkpoints/task{task}.pt")

    @opencil.register_dataset("twenty")
    @dataclass(frozen=True)
    class Twenty(opencil.Dataset):
        """Three images of each of twenty classes."""

        classes: ClassVar[int] = 20

        def load(self, split: str, size: int, root: Path | None) -> opencil.ImageSet:
            pixels = torch.randint(0, 256, (60, 3, size, size), dtype=torch.uint8)
            return opencil.ImageSet("twenty", pixels, torch.arange(60) % 20)

    small = {"name": "small", "id": "twenty", "near": ["digits-held-out"], "far": ["noise"], "memory": 20}
    transform = {"mean": [0.5] * 3, "std": [0.25] * 3, "crop": 8, "padding": 0, "flip": False}
    small |= {"image_size": 8, "transform": transform, "backbone": "resnet8"}
    names: dict[str, Any] = {"small": small}
    quick = 'benchmark=small, k=2, detector=["msp", "relation"]'
    exec(FOREIGN_STEPS.replace('benchmark="cifar100", k=10', quick), names)
    assert set(names["results"].rows["step"]) == set(range(1, 11))
    assert "small, 2 classes per step: OOD detection" in capsys.readouterr().out


OPEN_WORLD = """
import opencil

clf = opencil.OpenWorldClassifier(reject=0.05)
clf.learn("photos/first")
print(clf.predict("inbox"))
clf.learn("photos/new")
clf.save("birds.opencil")
"""


def test_an_open_world_classifier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With patterns for photographs, and coarse pixels for the features of a network."""
    assert lines(shown(OPEN_WORLD, "deploy.md")) <= 5

    def features(self: object, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)

    monkeypatch.setattr(Pretrained, "features", features)
    monkeypatch.chdir(tmp_path)
    for label, folder in enumerate(["photos/first/a", "photos/first/b", "photos/new/c", "inbox"]):
        Path(folder).mkdir(parents=True)
        for n in range(50):
            Image.fromarray(picture(label, n)).save(Path(folder, f"{n}.png"))
    names: dict[str, Any] = {}
    exec(OPEN_WORLD, names)
    assert opencil.OpenWorldClassifier.load("birds.opencil").classes_ == ["a", "b", "c"]


# --- files that --plugin and commands take -----------------------------------------------------------


def file_of(page: str, name: str) -> str:
    """A file that a page of the docs shows whole: the block whose first line is its name."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```\w+\n(# {re.escape(name)}\n.*?)^```$", text, re.M | re.S)
    return str(found)


def commands_with(page: str, name: str) -> list[list[str]]:
    """The words of the commands of a page that name a file."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if name in (words := shlex.split(line, comments=True))]


OWN_FILES = {
    "my_detector.py": 15,
    "my_cil.py": 30,
    "my_backbone.py": 10,
}


@pytest.mark.parametrize("file", OWN_FILES)
def test_a_file_of_ones_own_with_no_package(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the contract, and the commands that the page shows for it give a table."""
    text = file_of("methods.md", file)
    assert lines(text) <= OWN_FILES[file]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path(file).write_text(text, encoding="utf-8")
    checked = CliRunner().invoke(app, ["check", file])
    assert checked.exit_code == 0, checked.output
    (words,) = [words for words in commands_with("methods.md", file) if words[1] == "run"]
    shorter = ["--epochs-scale", "0.01", "--classes-per-step", "4", "--set", "benchmark.shifted=[]"]
    done = CliRunner().invoke(app, [*words[1:], *shorter, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    rows = opencil.read_rows("runs")
    for flag, column in (("--cil", "cil"), ("--detector", "detector")):
        assert set(words[words.index(flag) + 1].split(",")) == set(rows[column]) - {""}
    noted = {plugin for run in opencil.read_study("runs").runs for plugin in run["config"].get("plugins", {})}
    assert noted == {file}


def test_image_folders_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file_of("data.md", "birds.yml")
    assert sum(1 for line in text.splitlines() if line.strip() and line.strip()[0] != "#") <= 17
    monkeypatch.chdir(tmp_path)
    Path("birds.yml").write_text(text, encoding="utf-8")
    draw = np.random.default_rng(0)
    folders = [f"birds/{split}/{name}" for split in ("train", "test") for name in "abcdefghij"]
    for folder in [*folders, "others/x", "others/y", "scans"]:
        (tmp_path / "downloads" / folder).mkdir(parents=True)
        for i in range(3):
            picture = Image.fromarray(draw.integers(0, 256, (36, 40, 3), dtype=np.uint8))
            picture.save(tmp_path / "downloads" / folder / f"{i}.png")
    check, run = commands_with("data.md", "birds.yml")
    for words, more in (check, []), (run, ["--epochs-scale", "0.001", "--device", "cpu"]):
        root = [word.replace("~/downloads", "downloads") for word in words]
        done = CliRunner().invoke(app, [*root[1:], *more])
        assert done.exit_code == 0, done.output
    rows = opencil.read_rows("runs")
    assert set(rows["ood"]) - {""} == {"other-birds", "scans", "future"}
    assert set(rows["step"]) == {1, 2}
