"""Measure detectors on any model, without a run: one forward pass serves all detectors and metrics."""

import copy
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from opencil.arrays import listed, whole_numbers
from opencil.data.file_dataset import serve_path
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


#: Images as ``evaluate`` takes them: image sets of ours, folders, tensors and arrays, Datasets, DataLoaders
#: and other iterables of batches.
AnyImages = Images | str | Path | Tensor | ForeignImages | Array | TorchDataset[Any] | Iterable[Any]
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
    progress: bool = True,
) -> "pd.DataFrame":
    """Return every metric of detectors on a model, as a table: detector, ood, task, metric, value.

    ``model`` is a module with ``features(images)`` and ``classify(features)``, as ``opencil.wrap`` makes it,
    or a function from images to logits, for detectors that read only these. Images are image sets or paths of
    folders, which need a ``transform``, or normalised: floating-point tensors or arrays [N, channels, H, W]
    (ODIN then divides its step by the std of ``transform``, if there is one), Datasets of images or of
    (image, label), DataLoaders and other iterables of batches. Folders are read at the size of the image set
    ``test``, or of the transform's crop. Those of ``test``, ``setup`` and ``shifted`` have a folder per
    class.

    ``test`` is in-distribution; its labels come with the images or as ``labels``. ``setup`` holds training
    images for the detectors that need them, with labels likewise, or as ``setup_labels``. ``detectors`` are
    names, groups such as ``all``, detectors, or a mapping from your own names. A detector that is set up
    scores as it is; otherwise a copy is set up. By default those are used that one forward pass is enough
    for: they read neither images nor maps of layers, and without ``setup`` they need none. Of these, or of a
    group such as ``all``, those that cannot be set up or score here are left out, with a warning.

    ``tasks`` gives the task, counted from 1, that each class came with; it adds metrics of old and new
    classes. ``shifted`` maps names to images of the same classes under a covariate shift; it adds metrics of
    shifted ID, and their accuracy if they have labels. ``metrics`` are measured beside the standard ones: see
    ``opencil.list_metrics``. Metrics of the model itself, such as its accuracy, are repeated for every
    detector. Values are fractions, as in all rows of this library. ``progress`` draws a bar in a terminal or
    a notebook.
    """
    import pandas as pd

    classifier = as_classifier(model)
    named = detectors is not None and not (isinstance(detectors, str) and detectors in DETECTORS.groups())
    chosen = _detectors(_quick(classifier, setup is not None) if detectors is None else detectors)
    needing = [name for name, detector in chosen.items() if not detector.ready]
    check_reads(classifier, chosen)
    if setup is None and needing:
        raise BadInput(f"set-up images are needed for {', '.join(needing)}: give setup=...")
    if not have_names(ood) or not ood:
        raise BadInput("ood should map names, none of them empty, to images: at least one OOD set is needed")
    if shifted is not None and (not have_names(shifted) or set(shifted) & set(ood)):
        raise BadInput("shifted should map names, none of them empty or an OOD set's, to image sets")
    side = test.side if isinstance(test, Images) else None
    parts = 1 + bool(needing) + len(ood) + len(shifted or {}) + len(chosen)
    with _bar(parts, progress) as advance:

        def read(images: AnyImages | None, name: str, **more: Any) -> Outputs:
            advance(name)
            return compute_outputs(classifier, images, name, transform, batch_size, side=side, **more)

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
            advance(name)
            try:
                found = measure(detector, of_setup, of_test, of_ood, task_of, of_shifted, wanted)
            except BadInput as refusal:
                if named:
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
    batch_size: int = 512,
    labelled: bool = True,
    given: AnyLabels | None = None,
    side: int | None = None,
) -> Outputs:
    """Return the outputs of images, with their own or the given labels; ``name`` is theirs in errors.

    Images of a folder have ``side`` pixels, by default those that the transform needs.
    """
    if isinstance(images, str | Path):
        images = serve_path(images, name, transform, labelled, side)
        images = images.to(device_of(model) or torch.device("cpu"))
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


@contextmanager
def _bar(parts: int, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to begin the next part, drawn as a bar in a terminal or a notebook."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    columns = SpinnerColumn(), *Progress.get_default_columns()[:3], TimeElapsedColumn()
    hidden = not (shown and (screen.is_terminal or screen.is_jupyter))
    with Progress(*columns, console=screen, transient=True, disable=hidden) as bar:
        task, begun = bar.add_task("", total=parts), count()
        yield lambda name: bar.update(task, description=name, completed=next(begun))


def _quick(model: Classifier, has_setup: bool) -> list[str]:
    """Return the detectors that one forward pass is enough for, without a set-up if there are no images."""
    further, names = {"images", "layers"}, []
    if isinstance(model, LogitsAlone):
        further |= {"features", "head", "linear"}
    for name in DETECTORS.names():
        detector = DETECTORS.create(name)
        reads = detector.reads_to_score | detector.reads_to_set_up
        if not reads & further and (has_setup or detector.ready):
            names.append(name)
    return names


def _detectors(
    chosen: AnyDetector | Iterable[AnyDetector] | Mapping[str, AnyDetector],
) -> dict[str, Detector]:
    """Return detectors by name: created, or copied unless they are set up."""
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
            detector = DETECTORS.create(item)
            name = name or detector.registered_name
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
