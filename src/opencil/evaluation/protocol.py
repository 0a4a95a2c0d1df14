"""The protocol of one step: every metric of a model and of every detector, on outputs computed once."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from opencil.data.precision import reachable
from opencil.detectors.detector import Detector
from opencil.engine.forward import Inputs, Outputs, by_ranks
from opencil.engine.turns import let_others
from opencil.errors import BadInput
from opencil.evaluation.metric import Metric, Subject, metrics, standard_metrics
from opencil.evaluation.metrics import numbers
from opencil.evaluation.reading import Reading, Samples, joined


@dataclass(frozen=True)
class Measurement:
    """One metric; ``ood`` is the OOD or shifted set's name, or empty.

    ``task`` counts from 1, and 0 is all of them.
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
    """Set a detector up on ``setup`` unless it is ready, and score test (ID) against each OOD set.

    ``tasks`` [C] gives the task, counted from 1, that each class came with; the highest is the new one. With
    it, and labels of the test samples, the two biases are measured: see ``docs/protocol.md``. ``shifted`` are
    ID images under a shift. ``names`` are the metrics to measure: by default the standard ones. A detector
    that scores by task compares with what ``memory`` scores, by default with what ``setup`` does.
    """

    def told(outputs: Outputs) -> Outputs:
        return outputs if tasks is None else replace(outputs, tasks=tasks)

    if setup is not None and not detector.ready:
        detector.complete(told(setup), None if memory is None else told(memory))

    def scored(outputs: Outputs) -> Samples:
        return _samples(outputs, tasks, _scores(detector, outputs))

    of_test = scored(test)
    of_shifted = {name: scored(outputs) for name, outputs in (shifted or {}).items()}
    chosen = [metric for metric in _chosen(names) if not metric.of_model]
    measurements = _measured("", Reading(of_test), chosen, "id")
    for name, outputs in ood.items():
        let_others()
        together = joined(list(of_shifted.values()))
        measurements += _measured(name, Reading(of_test, scored(outputs), together), chosen, "ood")
    for name, samples in of_shifted.items():
        measurements += _measured(name, Reading(of_test, shifted=samples), chosen, "shifted")
    return measurements


def measure_model(
    test: Outputs,
    shifted: Mapping[str, Outputs] | None = None,
    tasks: Tensor | None = None,
    names: Iterable[str] | None = None,
) -> list[Measurement]:
    """The metrics of a model itself, on the test images and on each shifted set."""
    of_test, chosen = _samples(test, tasks), [metric for metric in _chosen(names) if metric.of_model]
    measurements = _measured("", Reading(of_test), chosen, "id")
    for name, outputs in (shifted or {}).items():
        measurements += _measured(name, Reading(of_test, shifted=_samples(outputs, tasks)), chosen, "shifted")
    return measurements


def _scores(detector: Detector, outputs: Outputs) -> Tensor:
    """Scores of outputs; ranks share them where the network runs again for it, which takes its time."""
    found = None
    if outputs.inputs is not None and detector.reads_to_score & {"images", "layers"}:
        of_rows = partial(_scores_of_rows, detector, outputs.features, outputs.logits)
        found = by_ranks(outputs.inputs, of_rows)
    return detector.score(outputs) if found is None else found[0]


def _scores_of_rows(
    detector: Detector, features: Tensor, logits: Tensor, inputs: Inputs, rows: slice
) -> tuple[Tensor, ...]:
    outputs = Outputs(features[rows], logits[rows], None, inputs.model.classify, inputs)
    return (detector.score(outputs),)


def _samples(outputs: Outputs, tasks: Tensor | None, scores: Tensor | None = None) -> Samples:
    """What metrics read, where they can count in float64."""
    known = (outputs.logits, outputs.labels, scores, tasks)
    logits, labels, scores, tasks = (None if tensor is None else reachable(tensor) for tensor in known)
    assert logits is not None
    return Samples(logits, labels, scores, tasks)


def _chosen(names: Iterable[str] | None) -> list[Metric]:
    wanted = set(standard_metrics() if names is None else names)
    return [metric for name, metric in metrics().items() if name in wanted]


def _measured(ood: str, reading: Reading, chosen: list[Metric], subject: Subject) -> list[Measurement]:
    """The metrics that have a value in a reading; all tensors come from the device together."""
    values = {m.name: m.measure(reading) for m in chosen if subject in m.subjects}
    single = {n: v.reshape(()) for n, v in values.items() if isinstance(v, Tensor) and v.numel() == 1}
    return [
        Measurement(ood, name, _number(name, task, number), task)
        for name, value in (values | numbers(single)).items()
        for task, number in (value if isinstance(value, Mapping) else {0: value}).items()
        if number is not None
    ]


def _number(metric: str, task: object, value: Any) -> float:
    """A value of a metric; what is none is refused, since a row of it would spoil every average."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number) or not isinstance(task, int):
        raise BadInput(
            f"metric {metric!r} gives {reprlib.repr(value)}{f' for {task!r}' if task != 0 else ''}: a finite "
            "number is needed, None where there is no value, or numbers by task, counted from 1"
        )
    return number
