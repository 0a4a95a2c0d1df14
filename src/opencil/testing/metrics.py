"""Check the contract of metrics."""

import copy
from dataclasses import replace

import torch

from opencil.engine.forward import Outputs
from opencil.evaluation.protocol import measure, measure_model
from opencil.registry import DETECTORS
from opencil.testing.contract import collect_checks, run_checks

_TASKS = torch.tensor([1, 1, 2, 2, 3, 3])


def _sets(count: int = 60) -> list[Outputs]:
    """Return outputs of ID test images, of shifted ID images and of OOD images."""
    random, classes = torch.Generator().manual_seed(0), len(_TASKS)
    labels, sets = torch.arange(count) % classes, []
    for sharpness in (3.0, 1.5, 0.0):
        logits = torch.randn(count, classes, generator=random)
        logits[torch.arange(count), labels] += sharpness
        sets.append(Outputs(logits.abs(), logits, labels))
    return [*sets[:2], replace(sets[2], labels=None)]


def _measure(metric: str, sets: list[Outputs]) -> dict[tuple[str, int], float]:
    """Return every value of a metric, by set and task."""
    test, shifted, ood = sets
    detector, under_shift = DETECTORS.create("msp"), {"shifted": shifted}
    found = measure_model(test, under_shift, _TASKS, [metric])
    found += measure(detector, None, test, {"ood": ood}, _TASKS, under_shift, [metric])
    return {(measured.ood, measured.task): measured.value for measured in found}


def check_value(metric: str) -> None:
    """On a model's outputs the value is a finite number, or a finite number for each task."""
    assert _measure(metric, _sets()), "has no value on outputs with all that it reads"


def check_few(metric: str) -> None:
    """On sets of a single image the value is a number or None."""
    _measure(metric, _sets(1))


def check_order(metric: str) -> None:
    """The order of the images makes no difference."""
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))

    def shuffle(outputs: Outputs) -> Outputs:
        labels = None if outputs.labels is None else outputs.labels[order]
        return Outputs(outputs.features[order], outputs.logits[order], labels)

    values, other = _measure(metric, _sets()), _measure(metric, list(map(shuffle, _sets())))
    same = all(abs(other.get(key, torch.inf) - value) <= 1e-6 for key, value in values.items())
    assert same, "has another value when the same images come in another order"


def check_inputs_unchanged(metric: str) -> None:
    """A second measurement gives the same value, and nothing that the metric reads changes."""
    sets = _sets()
    before = copy.deepcopy(sets)
    first = _measure(metric, sets)
    assert first == _measure(metric, sets), "has another value the second time"
    for outputs, old in zip(sets, before, strict=True):
        assert torch.equal(outputs.logits, old.logits), "changes the logits that it reads"
        if outputs.labels is not None and old.labels is not None:
            assert torch.equal(outputs.labels, old.labels), "changes the labels that it reads"


#: Every check of the metrics' contract, by name.
METRIC_CHECKS = collect_checks(vars())


def check_metric(metric: str) -> None:
    """Run every check on a registered metric."""
    run_checks(METRIC_CHECKS, metric, metric)
