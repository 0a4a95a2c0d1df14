"""The metrics' contract as checks."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opencil.engine.forward import Outputs
from opencil.errors import OpenCILError
from opencil.evaluation.metric import metrics
from opencil.evaluation.protocol import Measurement, measure, measure_model
from opencil.registry import DETECTORS

_TASKS = torch.tensor([1, 1, 2, 2, 3, 3])


def check_metric(metric: str) -> None:
    """Run every check on a registered metric."""
    for check in METRIC_CHECKS.values():
        try:
            check(metric)
        except OpenCILError as error:
            raise AssertionError(f"{metric} refuses good samples: {error}") from error


@dataclass(frozen=True)
class _Sets:
    """Outputs of ID test images, of the same under a shift, and of OOD images."""

    test: Outputs
    shifted: Outputs
    ood: Outputs


def _sets(count: int = 60) -> _Sets:
    random, classes = torch.Generator().manual_seed(0), len(_TASKS)
    labels = torch.arange(count) % classes

    def outputs(sharpness: float, labels: Tensor | None) -> Outputs:
        logits = torch.randn(count, classes, generator=random)
        if labels is not None:
            logits[torch.arange(count), labels] += sharpness
        return Outputs(logits.abs(), logits, labels)

    return _Sets(outputs(3.0, labels), outputs(1.5, labels), outputs(0.0, None))


def _measured(metric: str, sets: _Sets) -> dict[tuple[str, int], float]:
    """Every value that a metric has, by set and task."""
    shifted = {"shifted": sets.shifted}
    if metrics()[metric].of_model:
        found: list[Measurement] = measure_model(sets.test, shifted, _TASKS, [metric])
    else:
        detector = DETECTORS.create("msp")
        found = measure(detector, None, sets.test, {"ood": sets.ood}, _TASKS, shifted, [metric])
    return {(measured.ood, measured.task): measured.value for measured in found}


def check_value(metric: str) -> None:
    """On a model's outputs it has a value: a finite number, or finite numbers by task."""
    assert _measured(metric, _sets()), (
        f"{metric} has no value on outputs that have all it reads: it returns None, or nothing"
    )


def check_few(metric: str) -> None:
    """Where each set has a single image it has a number or, by None, no value."""
    _measured(metric, _sets(1))


def check_order(metric: str) -> None:
    """The order of the images makes no difference."""
    sets, order = _sets(), torch.randperm(60, generator=torch.Generator().manual_seed(1))

    def moved(outputs: Outputs) -> Outputs:
        labels = None if outputs.labels is None else outputs.labels[order]
        return Outputs(outputs.features[order], outputs.logits[order], labels)

    values = _measured(metric, sets)
    other = _measured(metric, _Sets(moved(sets.test), moved(sets.shifted), moved(sets.ood)))
    differing = [key for key, value in values.items() if abs(other.get(key, torch.inf) - value) > 1e-6]
    assert not differing, f"{metric} has another value when the same images come in another order"


def check_inputs_unchanged(metric: str) -> None:
    """Measured twice it is the same, and what it reads stays as it is."""
    sets = _sets()
    before = copy.deepcopy([(o.logits, o.labels) for o in (sets.test, sets.shifted, sets.ood)])
    first = _measured(metric, sets)
    assert first == _measured(metric, sets), f"{metric} has another value the second time"
    for outputs, (logits, labels) in zip((sets.test, sets.shifted, sets.ood), before, strict=True):
        assert torch.equal(outputs.logits, logits), f"{metric} changes the logits that it reads"
        same = labels is None or (outputs.labels is not None and torch.equal(outputs.labels, labels))
        assert same, f"{metric} changes the labels that it reads"


#: Every check of the metrics' contract, by name.
METRIC_CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (check_value, check_few, check_order, check_inputs_unchanged)
}
