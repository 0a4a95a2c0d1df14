"""Exported graphs have the outputs of torch, for any size of images; what cannot be exported is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opencil
from opencil.data.transforms import Transform
from opencil.errors import BadInput
from opencil.nets.mobile import SamePadded
from opencil.nets.random_features import RandomFeatureHead
from opencil.openworld.conformal import Calibration
from opencil.openworld.export import export
from opencil.openworld.preprocessing import Preprocessing
from opencil.validation import build

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

CLASSES, WIDTH, SIDE = 4, 12, 16


class Small(nn.Module):
    """A network of one convolution, and a head of random features."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = SamePadded(3, WIDTH, 5, 2)  # its padding depends on the size
        self.head = RandomFeatureHead(WIDTH, 40, CLASSES, "uniform", unit=True)

    def features(self, images: Tensor) -> Tensor:
        return self.convolution(images).relu().mean(dim=(2, 3))

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)


def classifier(detector: str, per: str = "all", **values: Any) -> Any:
    """Return the attributes of a classifier that has learned, as export reads them."""
    torch.manual_seed(0)
    model = Small().eval()
    values = {"by_task": True, **values} if per == "task" else values
    transform = Transform((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), SIDE, resize=SIDE, interpolation="bicubic")
    tasks, labels = [1, 1, 2, 2], torch.arange(120) % CLASSES
    with torch.no_grad():
        features = model.features(torch.randn(120, 3, SIDE, SIDE) + labels.view(-1, 1, 1, 1))
        logits = model.classify(features)
    fitted = opencil.create_detector(detector, **values)
    fitted.fit(features[:80], logits[:80], labels[:80], classify=model.classify, tasks=tasks)
    held = {"classify": model.classify}
    scores = fitted.score(features[80:], logits[80:], **held)
    calibration = Calibration.of(scores, logits[80:].argmax(dim=1), tasks, per)  # type: ignore[arg-type]
    return SimpleNamespace(
        model_=model,
        detector_=fitted,
        preprocessing_=Preprocessing(transform),
        classes_=["a", "b", "<b>c</b>", "d"],
        calibration_=calibration,
        threshold_=calibration.thresholds(0.2),
        reject=0.2,
    )


def images(count: int, height: int, width: int) -> Tensor:
    numbers = torch.Generator().manual_seed(height)
    found = torch.randint(0, 256, (count, 3, height, width), generator=numbers, dtype=torch.uint8)
    found[0] = found[0, :1]  # grey
    return found


def by_torch(clf: Any, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logits, score, p-value and known of images, one after the other."""
    rows = []
    for image in pixels:
        with torch.no_grad():
            features = clf.model_.features(clf.preprocessing_(image[None]))
            logits = clf.model_.classify(features)
        score = clf.detector_.score(features, logits, classify=clf.model_.classify)
        label = int(logits.argmax())
        of_group = clf.calibration_.groups == clf.calibration_.group_of_class[label]
        below = sum(float(s) <= float(score) for s in clf.calibration_.scores[of_group])
        p_value = (1 + below) / (1 + int(of_group.sum()))
        rows.append((logits[0], score[0], torch.tensor(p_value), score[0] >= clf.threshold_[label]))
    logits, score, p_value, known = map(torch.stack, zip(*rows, strict=True))
    return logits, score, p_value, known


def check_same(found: Any, expected: tuple[Tensor, ...]) -> None:
    logits, score, p_value, known = (torch.as_tensor(value) for value in found)
    torch.testing.assert_close(logits, expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(score, expected[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(p_value, expected[2])
    assert torch.equal(known, expected[3])


@pytest.mark.parametrize(("detector", "per"), [("combined@shared", "all"), ("knn", "class"), ("msp", "task")])
def test_torch_and_onnx_runtime_and_the_loaded_file_agree(tmp_path: Path, detector: str, per: str) -> None:
    clf = classifier(detector, per)
    done = export(clf, tmp_path / "it.onnx"), export(clf, str(tmp_path / "it.pt2"))
    assert max(one.difference for one in done) < 1e-4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it.metadata.json", "it.onnx", "it.pt2"]
    session = onnxruntime.InferenceSession(tmp_path / "it.onnx")
    module = torch.export.load(tmp_path / "it.pt2").module()
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["metadata"])
    threshold = torch.tensor(metadata["threshold"])
    seen = []
    for height, width in ((SIDE, SIDE), (40, 23), (9, 70), (1, 1)):
        pixels = images(5, height, width)
        expected = by_torch(clf, pixels)
        check_same(session.run(None, {"images": pixels.numpy()}), expected)
        check_same(module(pixels, threshold), expected)
        seen += expected[3].tolist()
        for value, known in ((-1e9, True), (1e9, False)):
            given = {"images": pixels.numpy(), "threshold": np.full(len(threshold), value, np.float32)}
            assert session.run(["known"], given)[0].tolist() == [known] * 5
    assert len(threshold) == {"all": 1, "class": CLASSES, "task": 2}[per]
    assert metadata["classes"] == clf.classes_
    assert build(Transform, metadata["preprocessing"], "") == clf.preprocessing_.transform
    assert json.loads((tmp_path / "it.metadata.json").read_text()) == metadata
    assert {True, False} == set(seen)


@dataclass
class OtherInGraphs(opencil.LogitDetector):
    """A detector whose graph has other scores."""

    def scores(self, outputs: opencil.Outputs) -> Tensor:
        return outputs.logits.amax(dim=1) + 0.01 * torch.compiler.is_exporting()


@pytest.mark.parametrize(
    ("detector", "ending"), [("odin", "onnx"), ("odin", "pt2"), ("lts", "onnx"), ("other", "pt2")]
)
def test_detectors_that_cannot_be_exported_are_refused(tmp_path: Path, detector: str, ending: str) -> None:
    clf = classifier("msp")
    opencil.register_detector("other")(OtherInGraphs)
    clf.detector_ = opencil.create_detector(detector)
    (tmp_path / f"it.{ending}").write_text("older")
    with pytest.raises(BadInput, match=detector):
        export(clf, tmp_path / f"it.{ending}")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["older"]


def test_other_endings_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"\.onnx"):
        export(classifier("msp"), tmp_path / "it.tflite")
    monkeypatch.setattr("opencil.openworld.export.find_spec", {"onnx": True, "onnxruntime": True}.get)
    with pytest.raises(BadInput, match="pip install"):
        export(classifier("msp"), tmp_path / "it.onnx")
