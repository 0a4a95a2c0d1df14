"""The scripts of experiments/ run on a few digits, and the variants differ only where they say."""

import importlib
from pathlib import Path

import pandas as pd
import pytest
import torch

import opencil
from opencil.nets import fused
from opencil.nets.resnet import resnet32
from tests import processes

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def run(script: str, *arguments: str) -> None:
    """Run a script in a process of its own, since scripts register methods."""
    with processes.script(EXPERIMENTS / script, *arguments) as started:
        _, err = started.communicate()
    assert started.returncode == 0, err


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of BiC."""
    folder = tmp_path_factory.mktemp("runs")
    benchmark = {"name": "digits", "classes_per_step": 4, "memory": 160}
    place = {"device": "cpu", "runs": str(folder)}
    opencil.run(benchmark=benchmark, cil={"bic": {"epochs": 2}}, detector="energy", place=place)
    return folder / "digits" / "k4"


def test_set_up_data(runs: Path, tmp_path: Path) -> None:
    run("set_up_data.py", str(runs / "bic" / "seed0"), "--csv", str(tmp_path / "rows.csv"))
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert set(rows["setup"]) == {"train+", "memory", "as released", "one batch"}
    banks = rows[(rows["setup"] == "one batch") & (rows["step"] == 2)]
    assert set(banks["detector"]) == {"nnguide"}
    assert (banks.groupby("ood")["auc"].nunique() > 1).all(), "each draw is another batch"
    relation = rows[rows["detector"] == "relation"].pivot_table(index="step", columns="setup", values="auc")
    assert (relation["train+"] != relation["memory"]).all()
    assert (relation["as released"] != relation["memory"]).all()
    stored = pd.read_parquet(runs / "bic" / "seed0" / "step02" / "detectors" / "energy.parquet")
    assert set(rows["ood"]) == set(stored[stored["metric"] == "auc"]["ood"]) - {""}


def test_validation_images_are_ten_of_each_new_class(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    script = importlib.import_module("set_up_data")
    stored = opencil.open_run(runs / "bic" / "seed0")
    step = stored.stream[1]
    labels = stored.stream.test.labels[step.test]
    held = script.validation(labels, step)
    assert labels[held].bincount(minlength=step.seen).tolist() == [0] * step.old + [10] * step.new


@pytest.mark.parametrize(("steps", "key"), [(["x"], "--steps"), (["2", "9"], "[9]")])
def test_missing_steps_are_named(runs: Path, steps: list[str], key: str) -> None:
    arguments = [str(runs / "bic" / "seed0"), "--steps", *steps]
    with processes.script(EXPERIMENTS / "set_up_data.py", *arguments) as started:
        _, err = started.communicate()
    assert started.returncode == 2
    assert key in err
    assert "Traceback" not in err


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
