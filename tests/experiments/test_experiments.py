"""The variants of experiments/ differ only where they say, and their files agree with the rows."""

import importlib
from pathlib import Path

import pandas as pd
import pytest
import torch

import opencil
from opencil.nets import fused
from opencil.nets.resnet import resnet32

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_the_network_by_torch_is_the_same_but_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.setattr(opencil, "register_backbone", lambda name: lambda make: make)
    script = importlib.import_module("by_torch")
    networks = []
    for make in (resnet32, script.resnet32_by_torch):
        torch.manual_seed(0)
        networks.append(make())
    ours, by_torch = networks
    assert ours.state_dict().keys() == by_torch.state_dict().keys()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(images), by_torch(images))
    monkeypatch.setattr(fused, "works_on", lambda device: True)
    assert ours.has_kernels_for(images)
    assert not by_torch.has_kernels_for(images)


def test_trainings_with_either_kernels_differ_in_nothing_else() -> None:
    ours, torchs = (
        opencil.read_study(EXPERIMENTS / "rows/by_torch" / kind).runs for kind in ("ours", "torch")
    )
    for own, other in zip(ours, torchs, strict=True):
        assert (own["seed"], own["data"]) == (other["seed"], other["data"])
        assert own["environment"]["source"] == other["environment"]["source"]
        benchmark = own["config"]["benchmark"] | {"backbone": "resnet32_by_torch"}
        training = own["config"]["training"] | {"compile": True}
        wanted = own["config"] | {"benchmark": benchmark, "training": training}
        assert {name: value for name, value in other["config"].items() if name != "plugins"} == wanted


@pytest.mark.parametrize(
    ("file", "where", "column", "k"),
    [
        ("set_up_data.csv", "setup == 'train+'", "auc", 10),
        ("set_up_data_k20.csv", "setup == 'train+'", "auc", 20),
        ("rows/first_grid/on_a_cpu.csv", "k == 20", "gpu", 20),
    ],
)
def test_csv_files_agree_with_the_rows(file: str, where: str, column: str, k: int) -> None:
    rows = opencil.read_study(EXPERIMENTS / "rows" / "first_grid").rows
    rows = rows[(rows["metric"] == "auc") & (rows["task"] == 0) & (rows["k"] == k)]
    lines = pd.read_csv(EXPERIMENTS / file).query(where)
    both = lines.merge(rows, on=["cil", "step", "detector", "ood"], validate="one_to_one")
    assert len(both) == len(lines)
    assert (both[column] - both["value"]).groupby(both["detector"]).mean().abs().max() < 1e-4
