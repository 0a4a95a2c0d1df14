"""The scripts of experiments/ run, and their variants are what they say, on a few digits."""

import importlib
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import opencil
from opencil.nets import fused
from opencil.nets.resnet import resnet32
from opencil.study.study import write_study
from tests import forks

SCRIPTS = Path(__file__).parents[2] / "experiments"


def run(script: str, *arguments: str) -> str:
    """What a script prints; a process of its own, since scripts register methods."""
    with forks.script(SCRIPTS / script, *arguments) as started:
        out, err = started.communicate()
    assert started.returncode == 0, err
    return out


def run_released(folder: Path, cil: str, detectors: str, *values: str) -> Path:
    """Two steps on digits."""
    settings = ["cil.*.epochs=2", "benchmark.classes_per_step=4", "benchmark.memory=160", *values]
    where = ["--benchmark", "digits", "--device", "cpu", "--runs", str(folder)]
    what = ["--cil", cil, "--detector", detectors, *(f"--set={value}" for value in settings)]
    run("as_released.py", "run", *where, *what)
    return folder / "digits" / "k4"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BiC as it is, as released, and as released with every peculiarity turned off, or all but one."""
    off = ("batch_norm_trains=false", "decay=0")
    return run_released(
        tmp_path_factory.mktemp("released"),
        "bic,bic_released,bic_released@ours,bic_released@softmax",
        "energy",
        "cil.bic_released@ours.double_softmax=false",
        *(f"cil.bic_released@{label}.{value}" for label in ("ours", "softmax") for value in off),
    )


def weights(runs: Path, cil: str) -> dict[str, list[float]]:
    stored = load_file(runs / cil / "seed0" / "step02" / "model.safetensors")
    return {name: tensor.flatten().tolist() for name, tensor in stored.items()}


def test_the_released_bic_without_its_peculiarities_is_bic(runs: Path) -> None:
    assert weights(runs, "bic_released@ours") == weights(runs, "bic")


def test_the_released_bic_differs_where_it_says(runs: Path) -> None:
    ours, released = weights(runs, "bic"), weights(runs, "bic_released")
    assert ours.keys() == released.keys()
    changed = {name for name in ours if ours[name] != released[name]}
    statistics = {name for name in ours if "running" in name or "num_batches" in name}
    assert statistics
    correction = {"corrections.1.alpha", "corrections.1.beta"}
    assert changed == statistics | correction
    softmax = weights(runs, "bic_released@softmax")
    assert {name for name in ours if ours[name] != softmax[name]} == correction


def test_released_detectors_are_others_where_they_say(tmp_path: Path) -> None:
    few = ("queue=40", "neighbours=10", "boundary=10", "perturbations=20", "kept=5", "schedule.epochs=2")
    values = [f"detector.{name}.{value}" for name in ("npos", "npos_released") for value in few]
    values += [f"detector.{name}.schedule.epochs=1" for name in ("augmix", "augmix_released")]
    folder = run_released(tmp_path, "replay", "augmix,augmix_released,npos,npos_released", *values)

    def rows(step: int, detector: str) -> pd.DataFrame:
        path = folder / "replay" / "seed0" / f"step{step:02d}" / "detectors" / f"{detector}.parquet"
        return pd.read_parquet(path).drop(columns="detector")

    assert not rows(1, "npos").equals(rows(1, "npos_released"))
    assert rows(1, "augmix").equals(rows(1, "augmix_released")), "there is no memory to mix up yet"
    assert not rows(2, "augmix").equals(rows(2, "augmix_released"))


def test_the_correction_fitted_again_is_the_stored_one(runs: Path, tmp_path: Path) -> None:
    run("bic_correction.py", str(runs / "bic" / "seed0"), "--csv", str(tmp_path / "found.csv"))
    rows = pd.read_csv(tmp_path / "found.csv")
    assert set(rows["step"]) == {2}
    found = rows.set_index("correction")["accuracy"]
    assert found["ours, again"] == found["stored"]
    assert found["all three"] != found["stored"]


def test_set_up_data(runs: Path, tmp_path: Path) -> None:
    run("set_up_data.py", str(runs / "bic" / "seed0"), "--csv", str(tmp_path / "found.csv"))
    found = pd.read_csv(tmp_path / "found.csv")
    assert set(found["setup"]) == {"train+", "memory", "as released", "one batch"}
    banks = found[(found["setup"] == "one batch") & (found["step"] == 2)]
    assert set(banks["detector"]) == {"nnguide"}
    assert (banks.groupby("ood")["auc"].nunique() > 1).all(), "batches are drawn anew"
    assert found["auc"].between(0, 1).all()
    relation = found[found["detector"] == "relation"].pivot_table(index="step", columns="setup", values="auc")
    assert (relation["train+"] != relation["memory"]).all()
    assert (relation["as released"] != relation["memory"]).all()


def test_validation_images_are_of_new_classes_and_not_scored(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As released: ten test images of each new class are set up on, with the memory, and scored no more."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script = importlib.import_module("set_up_data")
    seen: list[tuple[opencil.Outputs, opencil.Outputs]] = []
    monkeypatch.setattr(
        script, "measure", lambda detector, setup, test, ood: seen.append((setup, test)) or []
    )
    stored = opencil.open_run(runs / "bic" / "seed0")
    step = stored.stream[1]
    script.study(stored, step)
    (_, every), (memory, _), (setup, scored), *batches = seen[:: len(script.DETECTORS)]
    assert {len(bank) for bank, _ in batches} == {script.BATCH}
    of_class = every.labels.bincount()
    assert scored.labels.bincount().tolist() == [
        int(count) - 10 * (label >= step.old) for label, count in enumerate(of_class)
    ]
    assert len(setup) == len(memory) + 10 * step.new
    held = {tuple(row) for row in setup.logits[len(memory) :].tolist()}
    assert held <= {tuple(row) for row in every.logits.tolist()}
    assert held.isdisjoint(tuple(row) for row in scored.logits.tolist())


def test_average_precision(runs: Path, tmp_path: Path) -> None:
    run("average_precision.py", str(runs / "bic" / "seed0"), "--csv", str(tmp_path / "found.csv"))
    found = pd.read_csv(tmp_path / "found.csv").pivot_table(
        index=["step", "detector", "ood"], columns="numbers", values="ap"
    )
    assert (found["the paper's OOD"] == found["ours"]).all(), "the paper has no digits"
    assert (found["and 90 % of ID"] > found["ours"]).all()
    stored = pd.read_parquet(runs / "bic" / "seed0" / "step02" / "detectors" / "energy.parquet")
    expected = stored[(stored["metric"] == "ap") & (stored["task"] == 0)].set_index("ood")["value"]
    assert found.loc[2, "energy"]["ours"].to_dict() == pytest.approx(expected.to_dict()), (
        "all of a few images"
    )


def test_runs_that_are_made_again(runs: Path, tmp_path: Path) -> None:
    published = opencil.read_study(runs)
    wrong = published.rows["cil"].eq("bic_released") & published.rows["metric"].eq("accuracy")
    other = published.rows["value"].where(~wrong, published.rows["value"] + 0.25)
    write_study(opencil.Study(published.rows.assign(value=other), published.runs), tmp_path / "then")
    run("again.py", str(tmp_path / "then"), "--again", str(runs), "--csv", str(tmp_path / "found.csv"))
    found = pd.read_csv(tmp_path / "found.csv").set_index("cil")
    assert found["rows"].sum() == len(published.rows)
    assert found["detectors"].to_dict() == dict.fromkeys(found.index, 1)
    assert (found["rows"] - found["same"]).to_dict() == dict.fromkeys(found.index, 0) | {
        "bic_released": wrong.sum()
    }
    assert found["apart"].to_dict() == pytest.approx(dict.fromkeys(found.index, 0) | {"bic_released": 0.25})
    others = [{**run, "seed": 1} for run in published.runs]
    write_study(opencil.Study(published.rows.assign(seed=1), others), tmp_path / "other")
    with forks.script(SCRIPTS / "again.py", str(tmp_path / "other"), "--again", str(runs)) as started:
        assert started.communicate()[1].endswith("error: they have no rows in common\n")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--steps", "x"], "--steps: invalid numbers value: 'x'"),
        (["--steps", "2,9"], "has steps [1, 2], and not [9]"),
    ],
)
def test_steps_that_are_not_there(runs: Path, flags: list[str], complaint: str) -> None:
    with forks.script(SCRIPTS / "set_up_data.py", str(runs / "bic" / "seed0"), *flags) as started:
        _, err = started.communicate()
    assert started.returncode == 2
    assert complaint in err
    assert "Traceback" not in err


def test_choosing_margins(runs: Path, tmp_path: Path) -> None:
    run("choose_margins.py", str(runs / "bic" / "seed0"), "--csv", str(tmp_path / "found.csv"))
    found = pd.read_csv(tmp_path / "found.csv")
    assert len(found["choice"].unique()) == 24, "Energy and 23 choices"
    assert set(found["step"]) == {1}, "the last step has no later classes"


def test_the_network_by_torch_is_the_same_but_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the one runs in kernels of ours and the other does not; their weights are drawn alike."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
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
