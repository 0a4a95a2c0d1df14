"""Recipes read the checkpoints of other libraries: networks, files and class orders are as theirs."""

import json
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opencil
from tests.cli.common import call

RECIPES = Path(__file__).parents[2] / "docs/recipes"
#: The benchmark's order of learning, and that of mammoth.
ORDER, NATURAL = np.random.RandomState(1993).permutation(8).tolist(), list(range(8))
WIDTH = 192


class Head(nn.Linear):
    """A head as PyCIL's and PILOT's: its logits are in a mapping."""

    def forward(self, features: Tensor) -> Any:
        return {"logits": super().forward(features)}


class Growing(nn.Module):
    """A network as PyCIL's ``IncrementalNet`` and PILOT's ``SimpleVitNet``."""

    def __init__(self, args: dict[str, Any], pretrained: bool) -> None:
        super().__init__()
        self.backbone = nn.Flatten()
        self.fc: nn.Module | None = None

    def extract_vector(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        return features

    def update_fc(self, classes: int) -> None:
        self.fc = Head(WIDTH, classes)


class LikeMammoth(nn.Module):
    """A network as mammoth's ``ResNet``."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor, returnt: str = "out") -> Tensor:
        features = images.flatten(1)
        return features if returnt == "features" else self.classifier(features)


class LikeAvalanche(nn.Module):
    """A network as Avalanche's ``SlimResNet18``."""

    def __init__(self, nclasses: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, nclasses)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits


def save_growing(task: int, weights: Callable[[Sequence[int]], dict[str, Tensor]]) -> None:
    head = weights(ORDER[: 2 * (task + 1)])
    state = {f"fc.{name}": tensor for name, tensor in head.items()}
    torch.save({"tasks": task, "model_state_dict": state}, f"checkpoints/theirs_{task}.pkl")


def save_mammoth(task: int, weights: Callable[[Sequence[int]], dict[str, Tensor]]) -> None:
    head = weights(NATURAL)
    head["weight"][2 * (task + 1) :] += 9.0  # untrained columns may win: they are not to be read
    state = {f"net.classifier.{name}": tensor for name, tensor in head.items()}
    content = {"model": state | {"eye": torch.eye(8)}, "optimizer": {}, "args": {"seed": None}, "results": []}
    torch.save(content, f"checkpoints/theirs_{task}.pt")


def save_avalanche(task: int, weights: Callable[[Sequence[int]], dict[str, Tensor]]) -> None:
    head, seen = weights(NATURAL), ORDER[: 2 * (task + 1)]
    state = {"linear.weight": torch.randn(100, WIDTH), "linear.bias": torch.full((100,), 99.0)}
    state["linear.weight"][seen], state["linear.bias"][seen] = head["weight"][seen], head["bias"][seen]
    torch.save(state, f"checkpoints/{task}.pt")


#: The module that a recipe imports, with a stand-in for what it uses, and how the library saves a step.
LIBRARIES: dict[str, tuple[str, dict[str, Any], Callable[..., None], list[int]]] = {
    "pycil": ("utils.inc_net", {"IncrementalNet": Growing}, save_growing, ORDER),
    "lamda-pilot": ("utils.inc_net", {"SimpleVitNet": Growing}, save_growing, ORDER),
    "mammoth": ("backbone.ResNetBlock", {"resnet18": LikeMammoth}, save_mammoth, NATURAL),
    "avalanche": ("avalanche.models", {"SlimResNet18": LikeAvalanche}, save_avalanche, ORDER),
}


def read_recipe(name: str) -> tuple[str, str, list[str]]:
    """Return name and text of the file that a recipe shows, and the words of its command, for the digits."""
    page = (RECIPES / f"{name}.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"^( *```.*?^ *```)$", page, re.M | re.S)]
    (python,) = re.findall(r"```python\n(# (\w+\.py)\n.*)```", "".join(blocks), re.S)
    text, file = python[0].partition("```")[0], python[1]
    (command,) = re.findall(r"^opencil (evaluate .*?[^\\])$", "\n".join(blocks), re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "))
    sets = [i for i, word in enumerate(words) if word == "--set"]
    assert all(words[i + 1].startswith("benchmark.transform.") for i in sets)
    kept = [word for i, word in enumerate(words) if not {i, i - 1} & {*sets}]
    return file, text, [{"cifar100": "digits", "10": "2"}.get(word, word) for word in kept]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_recipe_reads_heads_and_orders_as_its_library_saves_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models are nearest class means of pixels: their accuracy is right if all columns are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the file's folder is added to it
    module, contents, save, order = LIBRARIES[name]
    package = module.partition(".")[0]
    for part in (package, module):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    vars(sys.modules[module]).update(contents)
    data = opencil.benchmark("digits")
    pixels = data.transform.test(data.train.images).flatten(1)
    means = torch.stack([pixels[data.train.labels == label].mean(0) for label in range(8)])

    def weights(labels: Sequence[int]) -> dict[str, Tensor]:
        chosen = means[list(labels)]
        return {"weight": 2 * chosen, "bias": -chosen.square().sum(1)}

    Path("checkpoints").mkdir()
    for task in range(4):
        save(task, weights)
    file, text, command = read_recipe(name)
    Path(file).write_text(text, encoding="utf-8")
    Path("order.json").write_text(json.dumps(order), encoding="utf-8")
    result = call(*command, "--detector", "msp,nnguide", "--device", "cpu", "--runs", "r")
    assert result.exit_code == 0, result.output

    rows = opencil.read_rows("r").query("metric == 'accuracy' and task == 0 and ood == ''")
    images = data.transform.test(data.test.images).flatten(1)
    for step, value in rows[["step", "value"]].itertuples(index=False):
        seen = torch.tensor(order[: 2 * step])
        mine = torch.isin(data.test.labels, seen)
        nearest = seen[torch.cdist(images[mine], means[seen]).argmin(1)]
        assert value == pytest.approx((nearest == data.test.labels[mine]).double().mean().item(), abs=1e-3)
        assert value > 0.85
    assert sorted(rows["step"]) == [1, 2, 3, 4]


def test_avalanche_itself_is_wrapped_by_the_recipe() -> None:
    models = pytest.importorskip("avalanche.models", reason="avalanche-lib needs torchvision")
    _, text, _ = read_recipe("avalanche")
    names: dict[str, Any] = {}
    exec(text, names)
    wrapped, images = names["make"](10).eval(), torch.randn(2, 3, 32, 32)
    assert wrapped.classify(wrapped.features(images)).shape == (2, 100)
    assert models.SlimResNet18(100).linear.out_features == 100
