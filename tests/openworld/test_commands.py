"""opencil export and opencil serve, from the file of a classifier."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import opencil
from opencil.cli import app
from tests.openworld.conftest import pictures

onnxruntime = pytest.importorskip("onnxruntime")
uvicorn = pytest.importorskip("uvicorn")


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def model(make: Callable[..., opencil.OpenWorldClassifier], folder: Path, tmp_path: Path) -> Path:
    make(reject=0.2).learn(folder).save(tmp_path / "it.opencil")
    return tmp_path / "it.opencil"


def test_an_exported_file_predicts_as_the_classifier(model: Path, tmp_path: Path) -> None:
    done = call("export", model, tmp_path / "it.onnx")
    assert done.exit_code == 0, done.output
    images, _ = pictures([0, 1, 2, 3, 7], 3, start=50)
    expected = opencil.OpenWorldClassifier.load(model).predict(images)
    session = onnxruntime.InferenceSession(tmp_path / "it.onnx")
    classes = json.loads((tmp_path / "it.metadata.json").read_text())["classes"]
    logits, score, p_value, known = session.run(None, {"images": np.stack(images).transpose(0, 3, 1, 2)})
    labels = [classes[row.argmax()] if ok else "unknown" for row, ok in zip(logits, known, strict=True)]
    assert labels == expected["label"].tolist()
    assert "unknown" in labels
    np.testing.assert_allclose(score, expected["score"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(p_value, expected["p_value"], rtol=1e-6)
    done = call("export", model, tmp_path / "it.tflite")
    assert done.exit_code == 2
    assert ".onnx" in done.output


def test_serve_listens_to_this_machine_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[Any]()

    def run(self: Any, sockets: list[socket.socket]) -> None:
        started.append((self.config.app, sockets[0].getsockname()))
        raise KeyboardInterrupt  # as Ctrl-C

    monkeypatch.setattr(uvicorn.Server, "run", run)
    done = call("serve", model, "--port", 0)
    assert done.exit_code == 0, done.output
    (_, (host, port)) = started.pop()
    assert host == "127.0.0.1"
    assert f"http://127.0.0.1:{port}" in done.output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call("serve", model, "--port", taken.getsockname()[1])
    assert done.exit_code == 2
    assert "--port" in done.output
    assert not started
    assert "passwords" in call("serve", model, "--port", 0, "--host", "0.0.0.0").output
