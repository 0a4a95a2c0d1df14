"""Lines that a user writes, imports aside, to bring something of their own: the docs' examples, run."""

import ast
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.detectors.finetune.augmix import AugMix
from opencil.detectors.finetune.npos import NPOS

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


def test_what_counts_as_a_line() -> None:
    assert lines("import a\nfrom b import (\n    c,\n)\n\n# why\nx = [\n    1,\n]\n") == 3


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


def test_a_foreign_model_under_all_detectors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in where torchvision would be."""
    assert lines(shown(FOREIGN_MODEL, "your-models.md")) <= 6
    models = types.ModuleType("torchvision.models")
    vars(models)["resnet18"] = LikeResNet18
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    # Their losses take ten of twelve seconds, and are tested where they are.
    for slow in (AugMix, NPOS):
        monkeypatch.setattr(
            slow, "loss", lambda _, extra, batch: extra(batch.current.features).square().mean()
        )
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(FOREIGN_MODEL, names)
    assert sorted(names["table"]["detector"].unique()) == opencil.list_detectors()
    printed = capsys.readouterr().out.split()
    assert {*opencil.list_detectors(), "accuracy", "auc", "fpr"} <= set(printed)
