"""Detectors on any model, without a run: one forward pass, then every detector and every metric."""

import copy
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from opencil.arrays import dense, listed, tensor_of
from opencil.data.foreign import ForeignImages, served
from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector
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
    """Every metric of detectors on a model, as a table: detector, ood, task, metric, value.

    ``model`` is a module with ``features(images)`` and ``classify(features)``, as ``opencil.wrap`` makes of
    one from elsewhere, or a function from images to logits, for detectors that read these alone. Images are
    image sets, which need a ``transform``, or normalised already: floating-point tensors or arrays
    [N, channels, H, W] (ODIN then divides its step by the std of ``transform``, if that is given), Datasets
    of images or of (image, label), DataLoaders and other iterables of batches, which are read batch by batch.
    ``test`` is in-distribution; its labels come with the images or as ``labels``. ``setup`` holds training
    images, for the detectors that need them; their labels likewise come with them or as ``setup_labels``.
    ``detectors`` are names, groups of them such as ``paper``, or detectors, or a mapping from names of your
    own. One that you have set up scores as it is; of one that is not a copy is set up, so that the next model
    has its own. By default they are all there are, less those that refuse to be set up on these images, or to
    score by this model: a warning names each.
    ``tasks`` gives the task, counted from 1, that each class came with; it adds the figures of old against
    new classes. ``shifted`` maps names to images of the same classes under a covariate shift; it adds the
    figures of shifted ID, and where these come with labels their accuracy. ``metrics`` are measured beside
    the standard ones: see ``opencil.list_metrics``. What a metric says of the model itself, its accuracy,
    stands with every detector: each row has one.
    """
    import pandas as pd

    classifier, chosen = as_classifier(model), _detectors(detectors)
    needing = [name for name, detector in chosen.items() if not detector.ready]
    check_reads(classifier, chosen)
    if setup is None and needing:
        raise BadInput(
            f"set-up images are needed for {', '.join(needing)}: give setup=..., or name other detectors"
        )
    if not isinstance(ood, Mapping) or not ood or not named(ood):
        raise BadInput("ood should map names, none of them empty, to images: at least one OOD set is needed")
    if shifted is not None and (
        not isinstance(shifted, Mapping) or not named(shifted) or set(shifted) & set(ood)
    ):
        raise BadInput(
            "shifted should map names, none of them empty or an OOD set's, to image sets with labels"
        )

    def read(images: AnyImages, name: str, labelled: bool = True) -> Images | Tensor | ForeignImages:
        return served(images, name, device_of(classifier), batch_size, labelled=labelled)

    test_images = read(test, "test", labels is None)
    ood_images = {name: read(images, f"ood {name!r}", labelled=False) for name, images in ood.items()}
    shifted_images = {n: read(images, f"shifted {n!r}") for n, images in (shifted or {}).items()}
    setup_images = read(setup, "setup", setup_labels is None) if needing and setup is not None else None
    _readable(chosen, [test_images, *ood_images.values(), *shifted_images.values()], setup_images)

    def outputs(images: Images | Tensor | ForeignImages, name: str) -> Outputs:
        return outputs_named(classifier, images, name, transform, batch_size)

    of_test = with_labels(outputs(test_images, "test"), "test", labels)
    task_of = _tasks(tasks, of_test)
    of_setup = None
    if setup_images is not None:
        of_setup = with_labels(outputs(setup_images, "setup"), "set-up", setup_labels)
        learning = [name for name in needing if "labels" in chosen[name].reads_to_set_up]
        if of_setup.labels is None and learning:
            raise BadInput(
                f"{', '.join(learning)} learn from the labels of set-up images: give setup_labels=..., or "
                "name other detectors"
            )
    of_ood = {name: outputs(images, f"ood {name!r}") for name, images in ood_images.items()}
    of_shifted = {
        name: with_labels(outputs(images, f"shifted {name!r}"), f"{name} (shifted)")
        for name, images in shifted_images.items()
    }
    wanted = chosen_metrics(() if metrics is None else metrics)
    of_model = measure_model(of_test, of_shifted, task_of, wanted)
    rows, refusals = [], {}
    for name, detector in chosen.items():
        try:
            found = measure(detector, of_setup, of_test, of_ood, task_of, of_shifted, wanted)
        except BadInput as refusal:
            if detectors is not None:
                raise BadInput(f"{name}: {refusal}") from refusal
            refusals[name] = refusal
            continue
        rows += [(name, measurement) for measurement in [*of_model, *found]]
    if not rows:
        raise BadInput("; ".join(f"{name}: {why}" for name, why in refusals.items()))
    for name, why in refusals.items():
        warnings.warn(f"{name} is left out: {why}", stacklevel=2)
    columns = ["detector", "ood", "task", "metric", "value"]
    return pd.DataFrame(
        [{"detector": name} | asdict(measurement) for name, measurement in rows], columns=columns
    )


def outputs_named(
    model: Classifier,
    images: Images | Tensor | ForeignImages,
    name: str,
    transform: Transform | None,
    batch_size: int,
) -> Outputs:
    """Outputs of images that have a name; those that the model fails on are refused by it."""
    try:
        return forward(model, images, transform, batch_size=batch_size)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # torch's words for images that a layer was not made for
        why = str(error).strip().partition("\n")[0]
        raise BadInput(f"the model fails on the images of {name}: {why}") from error


def named(sets: Mapping[Any, AnyImages]) -> bool:
    """Whether every set has a name: a text that is not empty."""
    return all(isinstance(name, str) and name for name in sets)


def _detectors(
    chosen: AnyDetector | Iterable[AnyDetector] | Mapping[str, AnyDetector] | None,
) -> dict[str, Detector]:
    """Detectors by name: those given by name are made, those given as they are have their own."""
    if chosen is None:
        chosen = DETECTORS.names()
    if isinstance(chosen, (str, Detector)):
        chosen = [chosen]
    pairs: list[tuple[str | None, AnyDetector]] = []
    if isinstance(chosen, Mapping):
        pairs = list(chosen.items())
    elif isinstance(chosen, Iterable):
        groups = DETECTORS.groups()
        pairs = [
            (None, name)
            for one in listed(chosen, "detectors")
            for name in (groups.get(one, [one]) if isinstance(one, str) else [one])
        ]
    if not pairs:
        raise BadInput(f"detectors = {reprlib.repr(chosen)} is not allowed: names or detectors are needed")
    found: dict[str, Detector] = {}
    for own, one in pairs:
        if not isinstance(one, (str, Detector)):
            raise BadInput(
                f"{reprlib.repr(one)} is no detector: a name, or what create_detector makes, is needed"
            )
        name = own or (one if isinstance(one, str) else one.registered_name or type(one).__name__.lower())
        detector: Detector = DETECTORS.create(one) if isinstance(one, str) else _own_copy(one, name)
        if name in found:
            raise BadInput(
                f"two detectors are called {name!r}: a mapping, {{'name': detector}}, tells them apart"
            )
        found[name] = detector
    return found


def _own_copy(given: Detector, name: str) -> Detector:
    """A detector that is to be set up, for one model; one that the user has set up as it is."""
    try:
        return given if given.ready else copy.deepcopy(given)
    except (TypeError, copy.Error) as error:
        raise BadInput(
            f"{name} cannot be copied, so that each model has a set-up of its own ({error}): set it up by "
            "fit, or register it and give its name"
        ) from error


def check_reads(model: Classifier, chosen: Mapping[str, Detector]) -> None:
    """Refuse detectors that read more than a function gives that gives logits alone."""
    if not isinstance(model, LogitsAlone):
        return
    lacking = {
        name: sorted(
            (one.reads_to_score | (one.reads_to_set_up if not one.ready else set())) - {"logits", "labels"}
        )
        for name, one in chosen.items()
    }
    if wanting := {name: needs for name, needs in lacking.items() if needs}:
        named = ", ".join(f"{name} reads {' and '.join(needs)}" for name, needs in wanting.items())
        enough = ", ".join(name for name in lacking if name not in wanting)
        raise BadInput(
            f"{model.name} gives logits alone, and {named}: {WRAP_HINT}; or name detectors that read logits"
            f"{f', such as {enough}' if enough else ''}"
        )


def _readable(
    chosen: Mapping[str, Detector],
    scored: Sequence[Images | Tensor | ForeignImages],
    setup: Images | Tensor | ForeignImages | None,
) -> None:
    """Refuse images that cannot be read as often, or in the order, as detectors do, before any is read."""
    again = [name for name, one in chosen.items() if not {"images", "layers"}.isdisjoint(one.reads_to_score)]
    unready = {name: one.reads_to_set_up for name, one in chosen.items() if not one.ready}
    training = [name for name, reads in unready.items() if "images" in reads]
    looking = [name for name, reads in unready.items() if "layers" in reads]
    for names, sets in ((again, scored), (looking, [setup])):
        once = next((one.name for one in sets if isinstance(one, ForeignImages) and not one.again), None)
        if names and once:
            raise BadInput(
                f"{', '.join(names)} read images again, and {once} is an iterator, which gives them once: "
                "give a list of batches, a DataLoader or a Dataset, or name other detectors"
            )
    if training and isinstance(setup, ForeignImages) and not setup.by_index:
        raise BadInput(
            f"{', '.join(training)} train on set-up images in an order of their own, and setup is an "
            "iterable of batches: give a Dataset, a DataLoader over one or an array, or name other detectors"
        )


def with_labels(outputs: Outputs, which: str, given: AnyLabels | None = None) -> Outputs:
    """Outputs whose labels, the given ones where there are some, are fit to be used."""
    labels, classes = outputs.labels, outputs.logits.shape[1]
    if given is not None:
        try:
            labels = dense(torch.as_tensor(tensor_of(given)), f"labels of {which} images")
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"labels of {which} images are no numbers: whole numbers are needed") from None
        labels = labels.to(outputs.logits.device)
    if labels is None:
        return outputs
    if labels.shape != (len(outputs),) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise BadInput(
            f"labels are {labels.dtype} {list(labels.shape)}: integers [{len(outputs)}] are needed, "
            f"one for each {which} image"
        )
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise BadInput(
            f"labels range from {int(labels.min())} to {int(labels.max())}: "
            f"the model knows 0 to {classes - 1}"
        )
    return replace(outputs, labels=labels.long())


def _tasks(tasks: Sequence[int] | None, test: Outputs) -> Tensor | None:
    """The task of each class, on the outputs' device."""
    if tasks is None:
        return None
    try:
        classes = test.logits.shape[1]
        tasks = dense(torch.as_tensor(tensor_of(tasks)), "tasks").flatten().tolist()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"tasks = {reprlib.repr(tasks)} is not allowed: whole numbers are") from None
    if len(tasks) != classes or not all(type(task) is int for task in tasks) or min(tasks) < 1:
        raise BadInput(
            f"tasks has {len(tasks)} numbers from {min(tasks, default=0)} on: "
            f"one for each of the {classes} classes is needed, from 1 on"
        )
    if max(tasks) > classes:
        raise BadInput(f"tasks has a number {max(tasks)}: {classes} classes come in {classes} tasks at most")
    return torch.tensor(list(tasks), device=test.logits.device)
