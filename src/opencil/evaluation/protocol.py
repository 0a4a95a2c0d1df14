"""Measure a step: every metric of a model and of its detectors, on outputs computed once."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from opencil.data.precision import to_float64_device
from opencil.detectors.detector import Detector
from opencil.engine.forward import Inputs, Outputs, compute_by_ranks
from opencil.errors import BadInput
from opencil.evaluation.metric import Metric, Subject, metrics, standard_metrics
from opencil.evaluation.metrics import numbers
from opencil.evaluation.reading import Reading, Samples, concatenate


@dataclass(frozen=True)
class Measurement:
    """The value of a metric; ``ood`` is the name of the OOD or shifted set, or empty.

    ``task`` counts from 1, and 0 stands for all tasks.
    """

    ood: str
    metric: str
    value: float
    task: int = 0


def measure(
    detector: Detector,
    setup: Outputs | None,
    test: Outputs,
    ood: Mapping[str, Outputs],
    tasks: Tensor | None = None,
    shifted: Mapping[str, Outputs] | None = None,
    names: Iterable[str] | None = None,
    memory: Outputs | None = None,
) -> list[Measurement]:
    """Fit a detector on ``setup`` unless it is ready, and measure it on test (ID) against each OOD set.

    ``tasks`` [C] gives the task of each class, counted from 1; the highest is the new one. With tasks and
    labels of the test samples, the two biases are measured: see ``docs/protocol.md``. ``shifted`` are ID
    images under a shift. ``names`` are the metrics, by default the standard ones. A detector that scores by
    task is standardised by the scores of ``memory``, by default of ``setup``.
    """

    if setup is not None and not detector.ready:
        known = [o if o is None or tasks is None else replace(o, tasks=tasks) for o in (setup, memory)]
        detector.complete(*known)  # type: ignore[arg-type]

    def score(outputs: Outputs) -> Samples:
        return _samples(outputs, tasks, _scores(detector, outputs))

    of_test = score(test)
    of_shifted = {name: score(outputs) for name, outputs in (shifted or {}).items()}
    chosen = [metric for metric in _chosen(names) if not metric.of_model]
    measurements = _measure("", Reading(of_test), chosen, "id")
    for name, outputs in ood.items():
        together = concatenate(list(of_shifted.values()))
        measurements += _measure(name, Reading(of_test, score(outputs), together), chosen, "ood")
    for name, samples in of_shifted.items():
        measurements += _measure(name, Reading(of_test, shifted=samples), chosen, "shifted")
    return measurements


def measure_model(
    test: Outputs,
    shifted: Mapping[str, Outputs] | None = None,
    tasks: Tensor | None = None,
    names: Iterable[str] | None = None,
) -> list[Measurement]:
    """Measure the metrics of the model itself, on the test images and on each shifted set."""
    of_test, chosen = _samples(test, tasks), [metric for metric in _chosen(names) if metric.of_model]
    measurements = _measure("", Reading(of_test), chosen, "id")
    for name, outputs in (shifted or {}).items():
        measurements += _measure(name, Reading(of_test, shifted=_samples(outputs, tasks)), chosen, "shifted")
    return measurements


def _scores(detector: Detector, outputs: Outputs) -> Tensor:
    """Return the scores of outputs; ranks share them if the network runs again."""
    found = None
    if outputs.inputs is not None and detector.reads_to_score & {"images", "layers"}:
        of_rows = partial(_scores_of_rows, detector, outputs.features, outputs.logits)
        found = compute_by_ranks(outputs.inputs, of_rows)
    return detector.score(outputs) if found is None else found[0]


def _scores_of_rows(
    detector: Detector, features: Tensor, logits: Tensor, inputs: Inputs, rows: slice
) -> tuple[Tensor, ...]:
    outputs = Outputs(features[rows], logits[rows], None, inputs.model.classify, inputs)
    return (detector.score(outputs),)


def _samples(outputs: Outputs, tasks: Tensor | None, scores: Tensor | None = None) -> Samples:
    """Return what metrics read, on a device with float64."""
    known = (outputs.logits, outputs.labels, scores, tasks)
    logits, labels, scores, tasks = (
        None if tensor is None else to_float64_device(tensor) for tensor in known
    )
    assert logits is not None
    return Samples(logits, labels, scores, tasks)


def _chosen(names: Iterable[str] | None) -> list[Metric]:
    wanted = set(standard_metrics() if names is None else names)
    return [metric for name, metric in metrics().items() if name in wanted]


def _measure(ood: str, reading: Reading, chosen: list[Metric], subject: Subject) -> list[Measurement]:
    """Measure metrics that have a value in a reading; all tensors leave the device together."""
    values = {m.name: m.measure(reading) for m in chosen if subject in m.subjects}
    single = {n: v.reshape(()) for n, v in values.items() if isinstance(v, Tensor) and v.numel() == 1}
    return [
        Measurement(ood, name, _number(name, task, number), task)
        for name, value in (values | numbers(single)).items()
        for task, number in (value if isinstance(value, Mapping) else {0: value}).items()
        if number is not None
    ]


def _number(metric: str, task: object, value: Any) -> float:
    """Return a metric's value as a finite number, as averages need it."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number) or not isinstance(task, int):
        raise BadInput(
            f"metric {metric!r} gives {reprlib.repr(value)}{f' for {task!r}' if task != 0 else ''}: a finite "
            "number is needed, None for no value, or numbers by task, counted from 1"
        )
    return number
