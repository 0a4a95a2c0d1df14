"""Export a classifier as one graph, from the bytes of images to their labels and p-values."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from opencil._version import __version__
from opencil.engine.forward import Outputs
from opencil.engine.seeding import generator
from opencil.errors import BadInput, OpenCILError, one_line
from opencil.files import write_bytes, write_text

if TYPE_CHECKING:
    from opencil.openworld.classifier import OpenWorldClassifier

#: Version of the keys in ``metadata.json``.
SCHEMA = 1
INPUTS = {
    "images": "uint8 [N, 3, height, width], RGB, of any size",
    "threshold": "float32 [groups], the lowest score of a known image",
}
OUTPUTS = {
    "logits": "float32 [N, classes]; the label is the class of the largest",
    "score": "float32 [N]; larger = more like the known classes",
    "p_value": "float32 [N]; the share of held-out known images with such a score or a smaller one",
    "known": "bool [N]; whether the score reaches the threshold",
}
#: Largest difference between torch and a graph; of scores beyond ±1 relative to them.
TOLERANCE = 1e-4
#: Computes ``OUTPUTS`` of images at the default threshold.
Run = Callable[[Tensor], Sequence[Tensor]]
_EACH = 3  #: images of each size to compare


class OpenWorldGraph(nn.Module):
    """Preprocessing, network, head, detector and threshold of a classifier in one module."""

    def __init__(self, classifier: "OpenWorldClassifier") -> None:
        super().__init__()
        self.preprocessing = classifier.preprocessing_
        self.model: Any = copy.deepcopy(classifier.model_).cpu().requires_grad_(False)
        self.detector, self.calibration = classifier.detector_, classifier.calibration_
        groups, lowest = self.calibration.group_of_class, torch.finfo(torch.float32).min
        #: The threshold of each group of classes: of a single one, unless ``per`` says otherwise.
        self.default = torch.full((int(groups.max()) + 1,), lowest)
        self.default[groups] = classifier.threshold_.clamp(min=lowest)  # JSON has no infinity
        self.eval()

    def forward(self, images: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        """Return ``OUTPUTS`` of ``INPUTS``."""
        features = self.model.features(self.preprocessing(images))
        logits = self.model.classify(features)
        score = self.detector.score_unchecked(Outputs(features, logits, None, self.model.classify))
        predicted = logits.argmax(dim=1)
        p_value = self.calibration.p_values(score, predicted)
        return logits, score, p_value, score >= threshold[self.calibration.group_of_class[predicted]]


@dataclass(frozen=True)
class Exported:
    """A written graph: its metadata, and its largest difference from torch on some made-up images."""

    path: Path
    metadata: dict[str, Any]
    images: int
    difference: float


def export(classifier: "OpenWorldClassifier", path: str | Path) -> Exported:
    """Write a classifier as ``NAME.onnx``, or as ``NAME.pt2`` for torch.export, and ``NAME.metadata.json``.

    The graph is compared with torch before anything is written. A detector is refused if torch or ONNX lack
    its operations, or if the results differ.
    """
    path = Path(path)
    if path.suffix not in _FORMATS:
        raise BadInput(f"{path} is no name to export to: it should end with {' or '.join(_FORMATS)}")
    pack, load = _FORMATS[path.suffix]
    if path.suffix == ".onnx":
        check_packages("the export to ONNX", "onnx", "onnx", "onnxruntime", "onnxscript")
    graph = OpenWorldGraph(classifier)
    metadata, side = describe(classifier, graph), graph.preprocessing.transform.crop
    try:
        program = trace(graph, make_images(2, side + 7, side + 20), graph.default)
        content = pack(program, metadata)
        checked = compare(graph, load(content))
    except Exception as error:  # of any kind: torch and ONNX Runtime lack some operations
        reason = error if isinstance(error, OpenCILError) else one_line(error, 150)
        name = classifier.detector_.registered_name
        message = f"this classifier, with detector {name!r}, cannot be exported to {path.suffix}: {reason}"
        raise BadInput(message) from error
    write_bytes(path, content)
    write_text(path.with_suffix(".metadata.json"), json.dumps(metadata, indent=2) + "\n")
    return Exported(path, metadata, *checked)


def describe(classifier: "OpenWorldClassifier", graph: OpenWorldGraph) -> dict[str, Any]:
    """Return all that a user of the graph needs to know, as JSON."""
    return {
        "schema": SCHEMA,
        "opencil": __version__,
        "classes": classifier.classes_,
        "detector": classifier.detector_.registered_name,
        "reject": classifier.reject,
        "threshold": graph.default.tolist(),
        "group_of_class": graph.calibration.group_of_class.tolist(),
        "preprocessing": asdict(graph.preprocessing.transform),
        "inputs": INPUTS,
        "outputs": OUTPUTS,
    }


def trace(module: nn.Module, images: Tensor, *others: Tensor) -> ExportedProgram:
    """Return the graph of a module of images [N, 3, H, W], of any number and size, and other tensors."""
    shapes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}, *(None for _ in others))
    # Otherwise the graph would be for sizes like the example's alone, such as images that are not square.
    any_size = torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with _quiet(), torch.no_grad(), any_size:
        return torch.export.export(module.eval(), (images, *others), dynamic_shapes=shapes)


def to_onnx(program: ExportedProgram, outputs: Sequence[str] = ("output",)) -> Any:
    """Return a graph as an ``onnx.ModelProto``; its inputs have the names of the module's arguments."""
    with _quiet():
        found = torch.onnx.export(program, output_names=list(outputs), verbose=False)
    assert found is not None
    return found.model_proto


def compare(graph: OpenWorldGraph, run: Run) -> tuple[int, float]:
    """Compare outputs with torch's; return the number of images, and the largest difference of scores.

    Logits and scores agree up to the tolerance, and labels exactly. P-values and ``known`` are those of the
    found scores.
    """
    side, largest = graph.preprocessing.transform.crop, 0.0
    sizes = (side, side), (side + 30, 2 * side), (side // 2 + 1, side // 3 + 1), (1, 1), (3, 50)
    for height, width in sizes:
        images = make_images(_EACH, height, width)
        with torch.no_grad():
            expected = graph(images, graph.default)
        logits, score, p_value, known = run(images)
        for name, one, other in zip(OUTPUTS, (logits, score), expected, strict=False):
            apart = float(((one - other).abs() / other.abs().clamp(min=1)).max())
            if not apart <= TOLERANCE:  # NaN is refused, too
                raise BadInput(f"{name} differs by {apart:.1g} from torch's, and {TOLERANCE:g} is allowed")
        predicted = logits.argmax(dim=1)
        limits = graph.default[graph.calibration.group_of_class[predicted]]
        same = torch.allclose(p_value, graph.calibration.p_values(score, predicted), rtol=1e-6)
        same = same and torch.equal(predicted, expected[0].argmax(dim=1))
        if not same or not torch.equal(known, score >= limits):
            raise BadInput("labels or p-values differ from torch's")
        largest = max(largest, apart)
    return _EACH * len(sizes), largest


def make_images(count: int, height: int, width: int) -> Tensor:
    """Return waves of several colours with noise, and a grey one, uint8 [count, 3, height, width]."""
    rows, columns = torch.arange(height)[:, None] / 40, torch.arange(width) / 30
    noise = torch.rand(count, 3, height, width, generator=generator("export", height, width))
    images = 100 + 80 * torch.sin(rows + columns + torch.arange(3 * count).view(count, 3, 1, 1)) + 70 * noise
    images[-1] = images[-1, :1]
    return images.to(torch.uint8)


def check_packages(what: str, extra: str, *packages: str) -> None:
    """Refuse a feature whose packages are missing, with the command that installs them."""
    if not all(map(find_spec, packages)):
        raise BadInput(f"{what} needs packages: pip install 'opencil[{extra}]'")


def _pack_onnx(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Return an ONNX file with the threshold's default and the metadata in it."""
    import onnx

    model = to_onnx(program, list(OUTPUTS))
    threshold = torch.tensor(metadata["threshold"]).numpy()
    model.graph.initializer.append(onnx.numpy_helper.from_array(threshold, "threshold"))
    onnx.helper.set_model_props(model, {"metadata": json.dumps(metadata)})
    content: bytes = model.SerializeToString()
    return content


def _load_onnx(content: bytes) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns that the threshold can be replaced
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    return lambda images: [torch.from_numpy(v) for v in session.run(None, {"images": images.numpy()})]


def _pack_pt2(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    """Return a file of torch.export with the metadata in it."""
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file, extra_files={"metadata.json": json.dumps(metadata)})
    return file.getvalue()


def _load_pt2(content: bytes) -> Run:
    extra = {"metadata.json": ""}
    with _quiet():
        module = torch.export.load(io.BytesIO(content), extra_files=extra).module()
    threshold = torch.tensor(json.loads(extra["metadata.json"])["threshold"])
    return lambda images: module(images, threshold)


#: How a graph becomes the bytes of a file, and how these are run again.
_FORMATS = {".onnx": (_pack_onnx, _load_onnx), ".pt2": (_pack_pt2, _load_pt2)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch says about its own code and about packages that are not needed."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "torch._export")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
