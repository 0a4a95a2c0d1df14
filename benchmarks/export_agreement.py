"""Compare a classifier's predictions in torch, ONNX Runtime and torch.export on photographs of many sizes.

    python -m benchmarks.export_agreement birds.opencil photos/birds photos/others --images 500

The first of every four images is made grey, and every second is resized to an odd size.
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F

from opencil.data.readers.image_files import find_images
from opencil.openworld.classifier import OpenWorldClassifier
from opencil.openworld.export import OUTPUTS, export
from opencil.openworld.preprocessing import decode_image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=500)
    values = parser.parse_args()
    classifier = OpenWorldClassifier.load(values.model)
    files = [path for folder in values.folders for path in find_images(folder)]
    numbers = random.Random(0)
    chosen = numbers.sample(files, values.images)
    images = []
    for number, path in enumerate(chosen):
        image = decode_image(path.read_bytes, str(path))
        if number % 4 == 0:
            image = image[:1].expand(3, -1, -1).contiguous()
        if number % 2:
            size = numbers.randint(20, 700), numbers.randint(20, 700)
            image = F.interpolate(image[None].float(), size=size).to(torch.uint8)[0]
        images.append(image)
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("onnx", "pt2"):
            print(f"exported to .{ending}, {export(classifier, Path(folder, f'it.{ending}')).difference:.1e} apart")
        session = onnxruntime.InferenceSession(Path(folder, "it.onnx"))
        program = torch.export.load(Path(folder, "it.pt2")).module()
    model, detector, limits = classifier.model_, classifier.detector_, classifier.threshold_
    found: dict[str, list[tuple[float, str, float]]] = {"torch": [], "onnx": [], "pt2": []}
    threshold = limits[:1]

    def note(runtime: str, logits: torch.Tensor, score: torch.Tensor, p_value: torch.Tensor, known: bool) -> None:
        label = classifier.classes_[int(logits.argmax())] if known else "unknown"
        found[runtime].append((float(score), label, float(p_value)))

    for image in images:
        pixels = image[None]
        with torch.no_grad():
            features = model.features(classifier.preprocessing_(pixels))
            logits = model.classify(features)
            score = detector.score(features, logits, classify=model.classify)
            p_value = classifier.calibration_.p_values(score, logits.argmax(dim=1))
            note("torch", logits, score, p_value, bool(score >= limits[logits.argmax()]))
            logits, score, p_value, known = program(pixels, threshold)
            note("pt2", logits, score, p_value, bool(known))
        logits, score, p_value, known = session.run(list(OUTPUTS), {"images": pixels.numpy()})
        note("onnx", torch.from_numpy(logits), torch.from_numpy(score), torch.from_numpy(p_value), bool(known))
    predictions = classifier.predict(images)
    found["predict"] = list(zip(predictions["score"], predictions["label"], predictions["p_value"], strict=True))
    expected = found.pop("torch")
    sizes = {tuple(image.shape[1:]) for image in images}
    print(f"{len(images)} images of {len(sizes)} sizes; {sum(label == 'unknown' for _, label, _ in expected)} unknown")
    for runtime, rows in found.items():
        apart = max(abs(a[0] - b[0]) for a, b in zip(rows, expected, strict=True))
        labels = sum(a[1] != b[1] for a, b in zip(rows, expected, strict=True))
        p_values = max(abs(a[2] - b[2]) for a, b in zip(rows, expected, strict=True))
        print(f"{runtime:8} score {apart:.1e} apart, {labels} other labels, p_value {p_values:.1e} apart")
    scores = np.array([score for score, _, _ in expected])
    print(f"scores from {scores.min():.1f} to {scores.max():.1f}")


if __name__ == "__main__":
    main()
