"""Classifiers of stored runs: the run's own scores, and files that need no benchmark."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import opencil
from opencil.registry import DATASETS
from opencil.runs.state import StepOutputs

LEARNERS = {name: {"epochs": 1} for name in ("icarl", "fecam", "ranpac", "der")}
DETECTORS = {"msp": {}, "nnguide": {"neighbours": 10}, "mahalanobis-pp": {}, "msp@task": {"by_task": True}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, opencil.Run]:
    place = {"runs": str(tmp_path_factory.mktemp("runs")), "device": "cpu"}
    results = opencil.run(
        benchmark={"name": "digits", "classes_per_step": 4}, cil=LEARNERS, detector=DETECTORS, place=place
    )
    return {run.spec.cil: run for run in results.runs}


@pytest.mark.parametrize("cil", LEARNERS)
@pytest.mark.parametrize("detector", ["msp", "nnguide", "mahalanobis-pp"])
def test_scores_are_those_of_the_run(
    cil: str, detector: str, runs: dict[str, opencil.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[cil]
    made = opencil.OpenWorldClassifier.from_run(run.folder.path, detector)
    made.save(tmp_path / "run.opencil")
    outputs = StepOutputs(run, run.stream[1])
    expected = run.detector(detector, 2, outputs).score(outputs.test).sort().values
    assert torch.equal(made.calibration_.scores, expected)
    noise = run.data.ood["noise"].images

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the benchmark is not needed")

    monkeypatch.setattr(DATASETS, "create", refuse)
    found = opencil.OpenWorldClassifier.load(tmp_path / "run.opencil")
    pd.testing.assert_frame_equal(found.predict(noise), made.predict(noise))
    test = run.data.test
    best = [names[0] for names in found.predict(test)["best"]]
    logits = opencil.forward(run.model(2), run.stream.test, run.data.transform).logits
    accuracy = float((logits.argmax(dim=1) == run.stream.test.labels).double().mean())
    assert (np.array(best) == test.labels.numpy().astype(str)).mean() == accuracy
    assert found.model_.features(torch.zeros(2, 3, 8, 8)).shape[0] == 2
    with pytest.raises(opencil.BadInput, match="learns no classes"):
        found.learn(test)


def test_a_run_on_stored_features_becomes_a_classifier_of_images(
    network: dict[str, Any], tmp_path: Path
) -> None:
    backbone = {**network["backbone"], "freeze": True}
    transform = {"mean": [0.3] * 3, "std": [0.4] * 3, "crop": 8, "padding": 0, "flip": False}
    benchmark = {"name": "digits", "classes_per_step": 4, "backbone": backbone, "transform": transform}
    place = {"runs": str(tmp_path / "runs"), "device": "cpu"}
    (run,) = opencil.run(benchmark=benchmark, cil="slda", detector="knn", place=place).runs
    assert run.data.backbone is not None
    made = opencil.OpenWorldClassifier.from_run(run.folder.path, "knn", reject=0.3)
    images = opencil.benchmark("digits").test
    found = made.predict(images)["score"].sort_values().to_numpy(np.float32)
    np.testing.assert_allclose(found, made.calibration_.scores, atol=1e-4)


def test_an_earlier_step_and_images_of_the_user(
    runs: dict[str, opencil.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["icarl"]
    first = opencil.OpenWorldClassifier.from_run(run.folder.path, "energy", step=1, reject=0.2, per="class")
    assert len(first.classes_) == 4
    test = run.data.test
    assert isinstance(test, opencil.ImageSet)
    own = opencil.ImageSet("own", test.images, test.labels, tuple("abcdefgh"))
    monkeypatch.setattr("opencil.runs.state.load", None)  # no file of the benchmark is read
    found = opencil.OpenWorldClassifier.from_run(
        run.folder.path, "msp", calibration=own, classes=list("abcdefgh")
    )
    assert sorted(found.classes_) == list("abcdefgh")
    assert len(found.calibration_.scores) == len(own)


@pytest.mark.parametrize(
    ("detector", "values", "key"),
    [
        ("msp@task", {}, "msp@task"),
        ("ber", {}, "ber"),
        ("odin", {}, "odin"),
        ("energie", {}, "energy"),
        ("msp", {"step": 9}, "step"),
        ("msp", {"classes": ["a"]}, "names"),
        ("msp", {"reject": 3.0}, "reject"),
    ],
)
def test_what_cannot_be_made(
    detector: str, values: dict[str, object], key: str, runs: dict[str, opencil.Run]
) -> None:
    with pytest.raises(opencil.BadInput, match=key):
        opencil.OpenWorldClassifier.from_run(runs["icarl"].folder.path, detector, **values)  # type: ignore[arg-type]


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(opencil.BadInput, match="no run"):
        opencil.OpenWorldClassifier.from_run(tmp_path, "msp")
