"""Measure a step: every metric of a model and of its detectors, on outputs computed once."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from opencil.data.precision import to_float64_device
from opencil.detectors.detector import Detector
from opencil.engine.forward import Inputs, Outputs, compute_by_ranks
from opencil.errors import BadInput
from opencil.evaluation.metric import Metric, Reading, Samples, Subject, chosen_metrics, concatenate, metrics
from opencil.evaluation.metrics import numbers


@dataclass(frozen=True)
class Measurement:
    """The value of a metric for an OOD or shifted set, or none, and a task from 1 on, or 0 for all."""

    ood: str
    metric: str
    value: float
    task: int = 0


def measure(
    detector: Detector | None,
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
    task is standardised by the scores of ``memory``, by default of ``setup``. Without a detector the metrics
    of the model itself are measured.
    """
    if detector is not None and setup is not None and not detector.ready:
        known = [o if o is None or tasks is None else replace(o, tasks=tasks) for o in (setup, memory)]
        detector.complete(*known)  # type: ignore[arg-type]
    names = chosen_metrics() if names is None else names

    def read(outputs: Outputs) -> Samples:
        """Return the samples for metrics, on a device with float64."""
        scores = None if detector is None else _score(detector, outputs)
        known = (outputs.labels, scores, tasks)
        others = (None if tensor is None else to_float64_device(tensor) for tensor in known)
        return Samples(to_float64_device(outputs.logits), *others)

    of_test, of_shifted = read(test), {name: read(outputs) for name, outputs in (shifted or {}).items()}
    of_ood = ((name, read(outputs)) for name, outputs in ood.items())
    return measure_samples(of_test, of_ood, of_shifted, names, of_model=detector is None)


def measure_samples(
    test: Samples,
    ood: Iterable[tuple[str, Samples]],
    shifted: Mapping[str, Samples],
    names: Iterable[str],
    of_model: bool,
) -> list[Measurement]:
    """Measure metrics of a model, or of a detector by its scores, on test samples and other sets."""
    wanted = set(names)
    chosen = [m for name, m in metrics().items() if name in wanted and m.of_model == of_model]
    together = concatenate(list(shifted.values()))
    measurements = _measure("", Reading(test), chosen, "id")
    for name, samples in ood:
        measurements += _measure(name, Reading(test, samples, together), chosen, "ood")
    for name, samples in shifted.items():
        measurements += _measure(name, Reading(test, shifted=samples), chosen, "shifted")
    return measurements


def measure_model(
    test: Outputs,
    shifted: Mapping[str, Outputs] | None = None,
    tasks: Tensor | None = None,
    names: Iterable[str] | None = None,
) -> list[Measurement]:
    """Measure the metrics of the model itself, on the test images and on each shifted set."""
    return measure(None, None, test, {}, tasks, shifted, names)


def _score(detector: Detector, outputs: Outputs) -> Tensor:
    """Return the scores of outputs; ranks share them if the network runs again."""

    def score_rows(inputs: Inputs, rows: slice) -> tuple[Tensor, ...]:
        part = Outputs(outputs.features[rows], outputs.logits[rows], None, inputs.model.classify, inputs)
        return (detector.score(part),)

    by_ranks = None
    if outputs.inputs is not None and detector.reads_to_score & {"images", "layers"}:
        by_ranks = compute_by_ranks(outputs.inputs, score_rows)
    return detector.score(outputs) if by_ranks is None else by_ranks[0]


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
        given = reprlib.repr(value if task == 0 else {task: value})
        raise BadInput(f"metric {metric!r} gives {given}: finite numbers, by task or not, or None are needed")
    return number
