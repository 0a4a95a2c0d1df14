"""A benchmark of a file outside the package, with uneven steps and shifted sets, and a metric beside it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch

import opencil
from opencil.config import Config, read_yaml
from opencil.report.tables import summaries
from opencil.runs.events import Evaluated, Finished
from opencil.runs.reading import read_study

FILE = Path(__file__).parent / "plugins/open_world.yml"
SHIFTED = {"dim", "rough"}


def config(runs: Path) -> Config:
    return opencil.resolve(read_yaml(FILE), flags={"place": {"runs": str(runs), "device": "cpu"}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    *_, last = opencil.execute(config(folder))
    assert isinstance(last, Finished), last
    return folder


@pytest.fixture(scope="module")
def rows(runs: Path) -> pd.DataFrame:
    return opencil.read_rows(runs)


def test_steps_are_uneven(runs: Path, rows: pd.DataFrame) -> None:
    assert (runs / "open-world/k4+2/icarl/seed0").is_dir()
    assert set(rows["k"]) == {"4+2"}
    run = opencil.open_run(runs / "open-world/k4+2/icarl/seed0")
    assert [step.new for step in run.stream] == [4, 2, 2]
    tasks = rows[(rows["detector"] == "") & (rows["step"] == 3) & (rows["metric"] == "accuracy")]
    assert sorted(tasks["task"]) == [0, 1, 2, 3]
    (record,) = read_study(runs).runs
    assert (record["k"], record["steps"], record["trained"]) == ("4+2", 3, 3)
    assert {data["name"] for data in record["data"] if data["role"] == "shifted"} == SHIFTED


def test_shifted_sets_have_rows_of_their_own(rows: pd.DataFrame) -> None:
    shifted = rows[rows["distance"] == "shifted"]
    assert set(shifted["ood"]) == SHIFTED
    assert set(shifted["metric"]) == {"accuracy_shifted", "fpr_shifted"}
    assert set(shifted.loc[shifted["detector"] == "", "metric"]) == {"accuracy_shifted"}
    full = rows[rows["metric"].str.endswith("_full")]
    assert set(full["ood"]) == {"digits-held-out", "noise", "future"}
    assert set(full["metric"]) == {"auc_full", "fpr_full", "ap_full"}


def test_values_are_those_of_the_stored_model(runs: Path, rows: pd.DataFrame) -> None:
    run = opencil.open_run(runs / "open-world/k4+2/icarl/seed0")
    step, model, energy = run.stream[1], run.model(2), run.detector("energy", 2)
    clean = opencil.forward(model, run.stream.test, run.data.transform, step.test)
    shifted = {
        name: opencil.forward(model, images, run.data.transform, step.test)
        for name, images in run.shifted.items()
    }
    at = rows[(rows["step"] == 2) & rows["detector"].isin(["", "energy"]) & (rows["task"] == 0)]
    found = {(row.ood, row.metric): row.value for row in at.itertuples()}
    scores = energy.score(clean)
    kept = scores.sort(descending=True).values[-(-len(scores) * 95 // 100) - 1]
    for name, outputs in shifted.items():
        right = (outputs.logits.argmax(dim=1) == clean.labels).double().mean().item()
        assert found[name, "accuracy_shifted"] == pytest.approx(right)
        rejected = (energy.score(outputs) < kept).double().mean().item()
        assert found[name, "fpr_shifted"] == pytest.approx(rejected)
    noise = run.data.ood["noise"].images
    ood = opencil.forward(model, noise, run.data.transform, run.spec.ood_seen("noise", len(noise), step))
    everything = torch.cat([scores, *(energy.score(outputs) for outputs in shifted.values())])
    expected = opencil.ood_metrics(everything, energy.score(ood))
    assert found["noise", "auc_full"] == expected.auc
    assert found["noise", "fpr_full"] == expected.fpr
    assert found["noise", "ap_full"] == expected.ap


def test_a_metric_is_added_to_stored_runs_without_training(
    plugin: Callable[[str], ModuleType], runs: Path, rows: pd.DataFrame, tmp_path: Path
) -> None:
    plugin("aurc")
    runs = Path(shutil.copytree(runs, tmp_path / "runs"))  # it writes into them, and others read them

    @opencil.register_metric("never", label="Never", definition="no value, ever.")
    def never(id_logits: torch.Tensor) -> None:
        return None

    asked = replace(config(runs), metric=("aurc", "never"))
    events = list(opencil.execute(asked))
    assert {type(event) for event in events} == {Evaluated, Finished}
    now = opencil.read_rows(runs)
    added = now[now["metric"] == "aurc"]
    assert set(zip(added["step"], added["detector"], added["ood"], strict=True)) == {
        (step, detector, "") for step in (1, 2, 3) for detector in ("msp", "energy")
    }
    keys = [name for name in rows.columns if name != "value"]
    kept = now[now["metric"] != "aurc"].sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(kept, rows.sort_values(keys, ignore_index=True), check_exact=True)
    (again,) = opencil.execute(asked)
    assert isinstance(again, Finished)
    assert again.already
    table = summaries(read_study(runs))[1]
    assert "AURC↓" in [column.name for column in table.columns]
