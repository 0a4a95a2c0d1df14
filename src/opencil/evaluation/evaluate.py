"""Measure detectors on any model, without a run: one forward pass serves all detectors and metrics."""

import copy
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from opencil.arrays import listed
from opencil.data.foreign import ForeignImages, read_labels, serve_images
from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector, check_tasks
from opencil.engine.forward import Outputs, device_of, forward
from opencil.errors import BadInput
from opencil.evaluation.metric import chosen_metrics
from opencil.evaluation.protocol import measure, measure_model
from opencil.evaluation.ranking import Array
from opencil.nets.model import Classifier
from opencil.nets.wrap import WRAP_HINT, LogitsAlone, as_classifier
from opencil.registry import DETECTORS

if TYPE_CHECKING:
    import pandas as pd


#: Images as ``evaluate`` takes them: image sets of ours, tensors and arrays, Datasets, DataLoaders and other
#: iterables of batches.
AnyImages = Images | Tensor | ForeignImages | Array | TorchDataset[Any] | Iterable[Any]
Pictures = Images | Tensor | ForeignImages
AnyLabels = Tensor | Array | Sequence[int]
AnyDetector = str | Detector


def evaluate(
    model: Classifier | Callable[[Tensor], Any],
    test: AnyImages,
    ood: Mapping[str, AnyImages],
    *,
    setup: AnyImages | None = None,
    shifted: Mapping[str, AnyImages] | None = None,
    detectors: AnyDetector | Iterable[AnyDetector] | Mapping[str, AnyDetector] | None = None,
    transform: Transform | None = None,
    labels: AnyLabels | None = None,
    setup_labels: AnyLabels | None = None,
    tasks: Sequence[int] | None = None,
    metrics: Sequence[str] | None = None,
    batch_size: int = 512,
) -> "pd.DataFrame":
    """Return every metric of detectors on a model, as a table: detector, ood, task, metric, value.

    ``model`` is a module with ``features(images)`` and ``classify(features)``, as ``opencil.wrap`` makes it,
    or a function from images to logits, for detectors that read only these. Images are image sets, which need
    a ``transform``, or normalised: floating-point tensors or arrays [N, channels, H, W] (ODIN then divides
    its step by the std of ``transform``, if there is one), Datasets of images or of (image, label),
    DataLoaders and other iterables of batches.

    ``test`` is in-distribution; its labels come with the images or as ``labels``. ``setup`` holds training
    images for the detectors that need them, with labels likewise, or as ``setup_labels``. ``detectors`` are
    names, groups such as ``paper``, detectors, or a mapping from your own names. A detector that is set up
    scores as it is; otherwise a copy is set up. By default all detectors are used that can be set up on these
    images and score by this model; a warning names the others.

    ``tasks`` gives the task, counted from 1, that each class came with; it adds metrics of old and new
    classes. ``shifted`` maps names to images of the same classes under a covariate shift; it adds metrics of
    shifted ID, and their accuracy if they have labels. ``metrics`` are measured beside the standard ones: see
    ``opencil.list_metrics``. Metrics of the model itself, such as its accuracy, are repeated for every
    detector.
    """
    import pandas as pd

    classifier, chosen = as_classifier(model), _detectors(detectors)
    needing = [name for name, detector in chosen.items() if not detector.ready]
    check_reads(classifier, chosen)
    if setup is None and needing:
        raise BadInput(f"set-up images are needed for {', '.join(needing)}: give setup=...")
    if not have_names(ood) or not ood:
        raise BadInput("ood should map names, none of them empty, to images: at least one OOD set is needed")
    if shifted is not None and (not have_names(shifted) or set(shifted) & set(ood)):
        raise BadInput("shifted should map names, none of them empty or an OOD set's, to image sets")

    def read(images: AnyImages, name: str, labelled: bool = True) -> Pictures:
        return serve_images(images, name, device_of(classifier), batch_size, labelled=labelled)

    test_images = read(test, "test", labels is None)
    ood_images = {name: read(images, f"ood {name!r}", labelled=False) for name, images in ood.items()}
    shifted_images = {name: read(images, f"shifted {name!r}") for name, images in (shifted or {}).items()}
    setup_images = read(setup, "setup", setup_labels is None) if needing and setup is not None else None
    _check_readable(chosen, [test_images, *ood_images.values(), *shifted_images.values()], setup_images)

    def compute(images: Pictures, name: str) -> Outputs:
        return outputs_named(classifier, images, name, transform, batch_size)

    of_test, of_setup = with_labels(compute(test_images, "test"), "test", labels), None
    task_of = None if tasks is None else _check_tasks(tasks, of_test)
    if setup_images is not None:
        of_setup = with_labels(compute(setup_images, "setup"), "setup", setup_labels)
        learning = [name for name in needing if "labels" in chosen[name].reads_to_set_up]
        if of_setup.labels is None and learning:
            raise BadInput(f"{', '.join(learning)} need labels of the set-up images: give setup_labels=...")
    of_ood = {name: compute(images, f"ood {name!r}") for name, images in ood_images.items()}
    of_shifted = {
        name: with_labels(compute(images, f"shifted {name!r}"), f"shifted {name!r}")
        for name, images in shifted_images.items()
    }
    wanted = chosen_metrics(metrics or ())
    of_model = measure_model(of_test, of_shifted, task_of, wanted)
    rows, refusals = [], []
    for name, detector in chosen.items():
        try:
            found = measure(detector, of_setup, of_test, of_ood, task_of, of_shifted, wanted)
        except BadInput as refusal:
            if detectors is not None:
                raise BadInput(f"{name}: {refusal}") from refusal
            refusals.append((name, refusal))
        else:
            rows += [(name, m.ood, m.task, m.metric, m.value) for m in [*of_model, *found]]
    if not rows:
        raise BadInput("; ".join(f"{name}: {why}" for name, why in refusals))
    for name, why in refusals:
        warnings.warn(f"{name} is left out: {why}", stacklevel=2)
    return pd.DataFrame(rows, columns=["detector", "ood", "task", "metric", "value"])


def outputs_named(
    model: Classifier, images: Pictures, name: str, transform: Transform | None, batch_size: int
) -> Outputs:
    """Return the outputs of images; an error of the model names them."""
    try:
        return forward(model, images, transform, batch_size=batch_size)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # such as images of a shape that a layer does not take
        why = str(error).strip().partition("\n")[0]
        raise BadInput(f"the model fails on the images of {name}: {why}") from error


def have_names(sets: Any) -> bool:
    """Return whether sets are a mapping from texts that are not empty."""
    return isinstance(sets, Mapping) and all(isinstance(name, str) and name for name in sets)


def _detectors(
    chosen: AnyDetector | Iterable[AnyDetector] | Mapping[str, AnyDetector] | None,
) -> dict[str, Detector]:
    """Return detectors by name: created, or copied unless they are set up."""
    if chosen is None:
        chosen = DETECTORS.names()
    if isinstance(chosen, (str, Detector)):
        chosen = [chosen]
    if isinstance(chosen, Mapping):
        pairs: list[tuple[Any, Any]] = list(chosen.items())
    else:
        groups, items = DETECTORS.groups(), listed(chosen, "detectors")
        names = [groups.get(item, [item]) if isinstance(item, str) else [item] for item in items]
        pairs = [(None, item) for group in names for item in group]
    if not pairs:
        raise BadInput(f"detectors = {reprlib.repr(chosen)} is not allowed: names or detectors are needed")
    found: dict[str, Detector] = {}
    for name, item in pairs:
        if isinstance(item, str):
            name, detector = name or item, DETECTORS.create(item)
        elif isinstance(item, Detector):
            name = name or item.registered_name or type(item).__name__.lower()
            detector = item if item.ready else copy.deepcopy(item)
        else:
            raise BadInput(f"{reprlib.repr(item)} is no detector: a name or a detector is needed")
        if name in found:
            raise BadInput(f"two detectors are called {name!r}: a mapping, {{'name': detector}}, names both")
        found[name] = detector
    return found


def check_reads(model: Classifier, chosen: Mapping[str, Detector]) -> None:
    """Refuse detectors that read more than logits if the model is a function to logits."""
    if not isinstance(model, LogitsAlone):
        return
    reads = {n: d.reads_to_score | (set() if d.ready else d.reads_to_set_up) for n, d in chosen.items()}
    lacking = {name: " and ".join(sorted(fields - {"logits", "labels"})) for name, fields in reads.items()}
    if any(lacking.values()):
        wanting = ", ".join(f"{name} reads {more}" for name, more in lacking.items() if more)
        enough = ", ".join(name for name, more in lacking.items() if not more)
        raise BadInput(
            f"{model.name} gives logits alone, and {wanting}: {WRAP_HINT}; or name detectors that read logits"
            f"{f', such as {enough}' if enough else ''}"
        )


def _check_readable(
    chosen: Mapping[str, Detector], scored: Sequence[Pictures], setup: Pictures | None
) -> None:
    """Refuse, before any is read, images that cannot be read as often or in the order as detectors do."""
    for name, detector in chosen.items():
        to_fit = frozenset() if detector.ready else detector.reads_to_set_up
        again = [*scored] if {"images", "layers"} & detector.reads_to_score else []
        again += [setup] if setup is not None and "layers" in to_fit else []
        once = next((s.name for s in again if isinstance(s, ForeignImages) and not s.again), None)
        if once:
            raise BadInput(
                f"{name} reads images again, and {once} is an iterator: give a list of batches, a "
                "DataLoader or a Dataset"
            )
        if "images" in to_fit and isinstance(setup, ForeignImages) and setup.count is None:
            raise BadInput(
                f"{name} trains on set-up images in an order of its own, and setup is an iterable of "
                "batches: give a Dataset, a DataLoader over a Dataset, or an array"
            )


def with_labels(outputs: Outputs, name: str, given: AnyLabels | None = None) -> Outputs:
    """Return outputs with checked labels: the given labels, or the images' own."""
    classes = outputs.logits.shape[1]
    labels = outputs.labels if given is None else read_labels(given, name).to(outputs.logits.device)
    if labels is None:
        return outputs
    if len(labels) != len(outputs):
        raise BadInput(f"{name} has {len(labels)} labels: one for each of {len(outputs)} images is needed")
    low, high = (int(end) for end in labels.aminmax())
    if not 0 <= low <= high < classes:
        raise BadInput(f"labels of {name} range from {low} to {high}: the model knows 0 to {classes - 1}")
    return replace(outputs, labels=labels)


def _check_tasks(given: Sequence[int], test: Outputs) -> Tensor:
    """Return the task of each class, on the outputs' device."""
    tasks, classes = check_tasks(given).long(), test.logits.shape[1]
    if len(tasks) != classes or tasks.max() > classes:
        raise BadInput(
            f"tasks = {reprlib.repr(given)} is not allowed: each of the {classes} classes needs one from "
            f"1 to {classes}"
        )
    return tasks.to(test.logits.device)
