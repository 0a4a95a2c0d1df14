"""Make a classifier of a stored run: the model and a detector of a step, and images that calibrate them."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opencil.data.benchmark import BenchmarkData
from opencil.data.images import ImageSet
from opencil.errors import BadInput
from opencil.nets.create import without_weights
from opencil.openworld.fitting import HeadOf, HeadValues, Known, create_detector, finish
from opencil.openworld.network import Trained
from opencil.runs.foreign import Foreign
from opencil.runs.state import Run, StepOutputs, open_run, read_spec

if TYPE_CHECKING:
    from opencil.openworld.classifier import OpenWorldClassifier


def fill(
    classifier: "OpenWorldClassifier",
    path: str | Path,
    step: int | None,
    calibration: Any,
    labels: Any,
    classes: Sequence[str] | None,
    data_root: str | None,
) -> None:
    """Give a classifier the model of a run's step, its detector set up, and a calibration."""
    spec, _ = read_spec(path)
    name = classifier.detector if isinstance(classifier.detector, str) else ""
    if name in spec.detectors:  # with the values of the run
        classifier.detector = {"name": name, **spec.detectors[name]}
    detector = create_detector(classifier.detector)
    if detector.by_task:
        raise BadInput(
            f"detector {detector.registered_name!r} scores by task, for which more images are needed"
        )
    absent = calibration is not None and not detector.needs_setup
    run = _open_without_images(path, classes) if absent else open_run(path, data_root, ood=False)
    if isinstance(run.learner, Foreign):
        raise BadInput(f"the models of {path} come from elsewhere, and are not stored")
    number = step or max((each.number for each in run.trained_steps), default=1)
    model, this = run.whole_model(number).cpu(), run.stream[number - 1]
    names = _class_names(run, classes)[: this.seen]

    learner = {"name": spec.cil, **spec.values}
    backbone = without_weights(spec.benchmark.backbone)
    assert not isinstance(backbone, torch.nn.Module)
    values = HeadValues(learner, this.sizes, spec.seeds.initialisation, backbone)
    head = values.blank(0)
    assert isinstance(head, HeadOf)
    state = model.state_dict()  # less what further steps need
    kept = {
        key: state[key] if t.shape == state[key].shape else t for key, t in head.model.state_dict().items()
    }
    head.model.load_state_dict(kept)
    # Of stored features, it is the transform of their images.
    transform = run.data.transform if spec.benchmark.transform.computes else spec.benchmark.transform
    resize = transform.resize or spec.benchmark.image_size
    classifier.learner, classifier.backbone, classifier.transform = learner, backbone, asdict(transform)
    classifier._network = Trained(head.model, replace(transform, resize=resize))

    outputs, parts = StepOutputs(run, this), list[tuple[Tensor, Tensor, bool]]()
    carried: Any = ()
    if detector.needs_setup:
        given = outputs.given_to(detector)
        assert given.labels is not None
        carried = given.carried
        parts.append((given.features, given.labels, False))
    if calibration is None:
        held = outputs.test_part(outputs.scored(detector))
        assert held.labels is not None
        parts.append((held.features, held.labels, True))
    else:
        parts += classifier._read_calibration(calibration, labels, names)
    features = torch.cat([part for part, _, _ in parts])
    held_out = torch.cat([torch.full((len(of),), is_held) for _, of, is_held in parts])
    known = Known(
        tuple(names),
        tuple(this.task_of_class),
        torch.arange(len(features)),
        torch.cat([of for _, of, _ in parts]),
        features,
        held_out,
        held_out,
    )
    classifier._fitted = finish(known, values, head, detector, classifier._given(), carried)


def _open_without_images(path: str | Path, classes: Sequence[str] | None) -> Run:
    """Open a run whose images are not needed: black ones stand for them, one of each class."""
    spec, folder = read_spec(path)
    last = max((number for number in range(1, 1000) if folder.step(number).trained), default=0)
    if not last or spec.benchmark.transform.computes:
        why = "its transform is computed from its images" if last else "it has no stored step"
        raise BadInput(f"{path} cannot be opened without its benchmark: {why}")
    count = len(classes) if classes else int(folder.step(last).info()["classes"])
    side = spec.benchmark.image_size
    black = torch.zeros(1, dtype=torch.uint8).expand(count, 3, side, side)
    images = ImageSet("absent", black, torch.arange(count))
    return Run(spec, folder, BenchmarkData(images, images, {}, spec.benchmark.transform))


def _class_names(run: Run, given: Sequence[str] | None) -> list[str]:
    """Return the names of classes in the order of the steps: given or known by the dataset, or numbers."""
    labels, positions = run.data.train.labels.tolist(), run.stream.train.labels.tolist()
    of_label = list(given or run.data.train.classes or map(str, range(max(labels) + 1)))
    label_at = dict(zip(positions, labels, strict=True))
    if len(of_label) != len(label_at):
        raise BadInput(f"{len(of_label)} class names are given: the run has {len(label_at)} classes")
    return [of_label[label_at[position]] for position in range(len(of_label))]
