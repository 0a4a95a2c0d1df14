"""Measure detectors on any model, without a run: one forward pass serves all detectors and metrics."""

import copy
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from opencil.arrays import listed, whole_numbers
from opencil.data.foreign import ForeignImages, serve_images
from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector, check_tasks
from opencil.engine.forward import Outputs, device_of, forward
from opencil.errors import BadInput, no_exits
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
AnyLabels = Tensor | Array | Sequence[int]
AnyDetector = str | Detector


@no_exits()
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
    read = partial(compute_outputs, classifier, transform=transform, batch_size=batch_size)
    of_test = read(test, "test", given=labels)
    device, classes = of_test.logits.device, of_test.logits.shape[1]
    task_of = None if tasks is None else check_tasks(tasks, classes).to(device)
    of_setup = read(setup, "setup", given=setup_labels) if needing else None
    of_ood = {name: read(images, f"ood {name!r}", labelled=False) for name, images in ood.items()}
    of_shifted = {name: read(images, f"shifted {name!r}") for name, images in (shifted or {}).items()}
    wanted = chosen_metrics(() if metrics is None else metrics)
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
        warnings.warn(f"{name} is left out: {why}", stacklevel=3)  # no_exits() is a frame
    return pd.DataFrame(rows, columns=["detector", "ood", "task", "metric", "value"])


def compute_outputs(
    model: Classifier,
    images: AnyImages | None,
    name: str,
    transform: Transform | None,
    batch_size: int,
    labelled: bool = True,
    given: AnyLabels | None = None,
) -> Outputs:
    """Return the outputs of images, with their own or the given labels; ``name`` is theirs in errors."""
    served = serve_images(images, name, device_of(model), batch_size, labelled=labelled and given is None)
    if given is not None:  # wrong labels are refused before the forward pass
        given = whole_numbers(given, f"labels of {name}", least=0)
        if not isinstance(served, ForeignImages) or served.count is not None:
            _check_count(given, len(served), name)
    try:
        outputs = forward(model, served, transform, batch_size=batch_size)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # such as images of a shape that a layer does not take
        why = str(error).strip().partition("\n")[0]
        raise BadInput(f"the model fails on the images of {name}: {why}") from error
    labels, classes = outputs.labels if given is None else given, outputs.logits.shape[1]
    if not labelled or labels is None:
        return outputs
    found = whole_numbers(labels, f"labels of {name}", least=0).to(outputs.logits.device)
    _check_count(found, len(outputs), name)
    if (high := int(found.max())) >= classes:
        raise BadInput(f"labels of {name} go up to {high}: the model knows 0 to {classes - 1}")
    return replace(outputs, labels=found)


def _check_count(labels: Tensor, images: int, name: str) -> None:
    if len(labels) != images:
        raise BadInput(f"{name} has {len(labels)} labels: one for each of {images} images is needed")


def have_names(sets: Any) -> bool:
    """Return whether sets are a mapping from texts that are not empty."""
    return isinstance(sets, Mapping) and all(isinstance(name, str) and name for name in sets)


def _detectors(
    chosen: AnyDetector | Iterable[AnyDetector] | Mapping[str, AnyDetector] | None,
) -> dict[str, Detector]:
    """Return detectors by name: created, or copied unless they are set up."""
    chosen = DETECTORS.names() if chosen is None else chosen
    if isinstance(chosen, Mapping):
        pairs: list[tuple[Any, Any]] = list(chosen.items())
    else:
        items = [chosen] if isinstance(chosen, (str, Detector)) else listed(chosen, "detectors")
        groups = DETECTORS.groups()
        named = [groups.get(item, [item]) if isinstance(item, str) else [item] for item in items]
        pairs = [(None, item) for group in named for item in group]
    if not pairs:
        raise BadInput("detectors are an empty list: names or detectors are needed")
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
    for name, detector in chosen.items():
        reads = detector.reads_to_score | (frozenset() if detector.ready else detector.reads_to_set_up)
        if more := " and ".join(sorted(reads - {"logits", "labels"})):
            raise BadInput(f"{model.name} gives logits alone, and {name} reads {more}: {WRAP_HINT}")
