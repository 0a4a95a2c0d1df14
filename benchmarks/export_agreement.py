"""Compare a classifier's predictions in torch, ONNX Runtime and torch.export on photographs of many sizes.

    python -m benchmarks.export_agreement birds.opencil photos/birds photos/others --images 500

Every fourth image is made grey, and every second is resized to an odd size.
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.readers.image_files import find_images
from opencil.openworld.classifier import OpenWorldClassifier
from opencil.openworld.export import OUTPUTS, export
from opencil.openworld.preprocessing import decode_image

#: Score, label and p-value of an image.
Row = tuple[float, str, float]
Run = Callable[[Tensor], tuple[Tensor, ...]]


def read_images(folders: list[Path], count: int) -> list[Tensor]:
    numbers, images = random.Random(0), list[Tensor]()
    files = [path for folder in folders for path in find_images(folder)]
    for number, path in enumerate(numbers.sample(files, count)):
        image = decode_image(path.read_bytes, str(path))
        if number % 4 == 0:
            image = image[:1].expand(3, -1, -1)
        if number % 2:
            size = numbers.randint(20, 700), numbers.randint(20, 700)
            image = F.interpolate(image[None].float(), size=size)[0].to(torch.uint8)
        images.append(image.contiguous())
    return images


def rows_by(run: Run, classes: list[str], images: list[Tensor]) -> list[Row]:
    rows = []
    for image in images:
        with torch.no_grad():
            logits, score, p_value, known = run(image[None])
        rows.append((float(score), classes[int(logits.argmax())] if known else "unknown", float(p_value)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=500)
    values = parser.parse_args()
    classifier = OpenWorldClassifier.load(values.model)
    model, detector, limits = classifier.model_, classifier.detector_, classifier.threshold_
    images = read_images(values.folders, values.images)

    def by_torch(pixels: Tensor) -> tuple[Tensor, ...]:
        features = model.features(classifier.preprocessing_(pixels))
        logits = model.classify(features)
        score, predicted = detector.score(features, logits, classify=model.classify), logits.argmax(dim=1)
        return logits, score, classifier.calibration_.p_values(score, predicted), score >= limits[predicted]

    with tempfile.TemporaryDirectory() as folder:
        done = [export(classifier, Path(folder, name)) for name in ("it.onnx", "it.pt2")]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(done[0].path, options)
        program = torch.export.load(done[1].path).module()
    threshold = torch.tensor(done[1].metadata["threshold"])

    def by_onnx(pixels: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, session.run(list(OUTPUTS), {"images": pixels.numpy()})))

    runs = {"torch": by_torch, "ONNX Runtime": by_onnx, "torch.export": lambda p: program(p, threshold)}
    found = {name: rows_by(run, classifier.classes_, images) for name, run in runs.items()}
    table = classifier.predict(images)
    found["predict"] = list(zip(table["score"], table["label"], table["p_value"], strict=True))
    expected = found.pop("torch")
    unknown, sizes = sum(row[1] == "unknown" for row in expected), {image.shape for image in images}
    scores = [row[0] for row in expected]
    print(f"{len(images)} images of {len(sizes)} sizes, {unknown} unknown")
    print(f"scores {min(scores):.1f} to {max(scores):.1f}")
    for name, rows in found.items():
        pairs = list(zip(rows, expected, strict=True))
        apart, p_apart = (max(abs(a[i] - b[i]) for a, b in pairs) for i in (0, 2))
        labels = sum(a[1] != b[1] for a, b in pairs)
        print(f"{name:13} scores {apart:.1e} apart, p-values {p_apart:.1e} apart, {labels} other labels")


if __name__ == "__main__":
    main()
