"""Detectors on any model, without a run: one forward pass, then every detector and every metric."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from opencil.data.images import Images
from opencil.data.transforms import Transform
from opencil.detectors.detector import Detector
from opencil.engine.forward import Outputs, forward
from opencil.errors import BadInput
from opencil.evaluation.metric import chosen_metrics
from opencil.evaluation.protocol import measure, measure_model
from opencil.nets.model import Classifier
from opencil.registry import DETECTORS

if TYPE_CHECKING:
    import pandas as pd


def evaluate(
    model: Classifier,
    test: Images | Tensor,
    ood: Mapping[str, Images | Tensor],
    *,
    setup: Images | Tensor | None = None,
    shifted: Mapping[str, Images | Tensor] | None = None,
    detectors: Sequence[str] | Mapping[str, Detector] | None = None,
    transform: Transform | None = None,
    labels: Tensor | None = None,
    setup_labels: Tensor | None = None,
    tasks: Sequence[int] | None = None,
    metrics: Sequence[str] | None = None,
    batch_size: int = 512,
) -> "pd.DataFrame":
    """Every metric of detectors on a model, as a table: detector, ood, task, metric, value.

    ``model`` is any module with ``features(images)`` and ``classify(features)``. Images are image sets, which
    need a ``transform``, or floating-point tensors [N, channels, H, W] that are normalised already (ODIN then
    divides its step by the std of ``transform``, if that is given). ``test`` is in-distribution; its labels
    come with the image set or as ``labels``. ``setup`` holds training images, for the detectors that need
    them; their labels likewise come with them or as ``setup_labels``. ``detectors`` are names (default: all)
    or detectors of your own by name. ``tasks`` gives the task, counted from 1, that each class came with; it
    adds the figures of old against new classes. ``shifted`` maps names to images of the same classes
    under a covariate shift; it adds the figures of shifted ID, and where these come with labels their
    accuracy. ``metrics`` are measured beside the standard ones: see ``opencil.list_metrics``.
    """
    import pandas as pd

    chosen = _detectors(detectors)
    needing = [name for name, detector in chosen.items() if not detector.ready]
    if setup is None and needing:
        raise BadInput(f"{', '.join(needing)} need set-up images: give setup=..., or name other detectors")
    if not isinstance(ood, Mapping) or not ood or not all(ood):
        raise BadInput("ood should map names, none of them empty, to images: at least one OOD set is needed")
    if shifted is not None and (
        not isinstance(shifted, Mapping) or not all(shifted) or set(shifted) & set(ood)
    ):
        raise BadInput(
            "shifted should map names, none of them empty or an OOD set's, to image sets with labels"
        )

    def outputs(images: Images | Tensor) -> Outputs:
        return forward(model, images, transform, batch_size=batch_size)

    of_test, of_ood = outputs(test), {name: outputs(images) for name, images in ood.items()}
    if labels is not None:
        of_test = replace(of_test, labels=labels.to(of_test.logits.device))
    of_test = _with_labels(of_test, "test")
    task_of = _tasks(tasks, of_test)
    of_setup = None
    if needing and setup is not None:
        of_setup = outputs(setup)
        if setup_labels is not None:
            of_setup = replace(of_setup, labels=setup_labels.to(of_setup.logits.device))
        of_setup = _with_labels(of_setup, "set-up")
        learning = [name for name in needing if "labels" in chosen[name].reads_to_set_up]
        if of_setup.labels is None and learning:
            raise BadInput(
                f"{', '.join(learning)} learn from the labels of set-up images: give setup_labels=..., or "
                "name other detectors"
            )
    of_shifted = {
        name: _with_labels(outputs(images), f"{name} (shifted)") for name, images in (shifted or {}).items()
    }
    wanted = chosen_metrics(metrics or ())
    rows = [("", measurement) for measurement in measure_model(of_test, of_shifted, task_of, wanted)]
    for name, detector in chosen.items():
        measurements = measure(detector, of_setup, of_test, of_ood, task_of, of_shifted, wanted)
        rows += [(name, measurement) for measurement in measurements]
    columns = ["detector", "ood", "task", "metric", "value"]
    return pd.DataFrame(
        [{"detector": name} | asdict(measurement) for name, measurement in rows], columns=columns
    )


def _detectors(chosen: Sequence[str] | Mapping[str, Detector] | None) -> dict[str, Detector]:
    if isinstance(chosen, Mapping):
        return dict(chosen)
    if isinstance(chosen, str):
        chosen = [chosen]
    return {name: DETECTORS.create(name) for name in (DETECTORS.names() if chosen is None else chosen)}


def _with_labels(outputs: Outputs, which: str) -> Outputs:
    """Outputs whose labels, where there are any, are fit to be used."""
    labels, classes = outputs.labels, outputs.logits.shape[1]
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
    classes = test.logits.shape[1]
    if len(tasks) != classes or not all(type(task) is int for task in tasks) or min(tasks) < 1:
        raise BadInput(
            f"tasks has {len(tasks)} numbers from {min(tasks, default=0)} on: "
            f"one for each of the {classes} classes is needed, from 1 on"
        )
    return torch.tensor(list(tasks), device=test.logits.device)
