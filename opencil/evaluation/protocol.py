"""The protocol of one step: every detector against every OOD set, on outputs computed once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from opencil.detectors.detector import Detector
from opencil.engine.forward import Outputs
from opencil.evaluation.metrics import joint_metrics


@dataclass(frozen=True)
class Measurement:
    """One metric; ``ood`` is the OOD set's name, or empty; ``task`` counts from 1, and 0 is all of them."""

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
) -> list[Measurement]:
    """Set a detector up on ``setup`` unless it is ready, and score test (ID) against each OOD set.

    ``tasks`` [C] gives the task, counted from 1, that each class came with; the highest is the new one. With
    it, and labels of the test samples, the two biases are measured: see ``docs/protocol.md``.
    """
    if setup is not None and not detector.ready:
        detector.fit(setup if tasks is None else replace(setup, tasks=tasks))
    id_scores, labels = detector.score(test), test.labels
    correct, subsets, found = None, {}, []
    if labels is not None:
        correct = test.logits.argmax(dim=1) == labels
        if tasks is not None:
            new = (tasks == tasks.max())[labels]
            subsets = {"old": ~new, "new": new}
            found += _confidence("", id_scores, tasks[labels])
    for name, outputs in ood.items():
        scores = detector.score(outputs)
        values = joint_metrics(id_scores, scores, correct=correct, subsets=subsets)
        found += [Measurement(name, metric, value) for metric, value in values.items()]
        if tasks is not None:
            predicted = tasks[outputs.logits.argmax(dim=1)]
            as_new = (predicted == tasks.max()).double().mean()
            found += [Measurement(name, "ood_as_new", float(as_new)), *_confidence(name, scores, predicted)]
    return found


def _confidence(ood: str, scores: Tensor, tasks: Tensor) -> list[Measurement]:
    """Mean score of the samples of each task [N] that has any."""
    member = F.one_hot(tasks).double()  # a product, since adding by index is in no fixed order on a GPU
    counts, totals = member.sum(dim=0).tolist(), (scores.double() @ member).tolist()
    return [
        Measurement(ood, "confidence", total / count, task)
        for task, (count, total) in enumerate(zip(counts, totals, strict=True))
        if count
    ]
