"""Compute metrics, exact with ties; all detection metrics from one sort of the scores.

Scores are larger for in-distribution (ID) samples, and a threshold accepts a sample whose score is not below
it. The threshold that accepts 95 % of ID is the highest that accepts at least 95 %. AP is a step-wise sum, as
in scikit-learn. The choice of the positive class, ID or OOD, changes only FPR and AP: the paper's are ``fpr``
and ``ap``; other libraries exchange the roles.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.arrays import dense
from opencil.errors import BadInput
from opencil.evaluation.metric import Function, register_metric
from opencil.evaluation.ranking import Array, Ranking, count_for, shift


def _metric(label: str, *, standard: bool = True, **more: Any) -> Callable[[Function], Function]:
    """Register a function as the metric of its name; its docstring, after "Return the", is the definition."""

    def add(function: Function) -> Function:
        name, text = function.__name__.removeprefix("_"), " ".join((function.__doc__ or "").split())
        definition = text.removeprefix("Return the ")
        return register_metric(name, label=label, definition=definition, standard=standard, **more)(function)

    return add


# Of the model:
@_metric("Accuracy")
def _accuracy(correct: Tensor) -> Tensor:
    """Return the share of test images of seen classes whose largest logit is their class's."""
    return correct.double().mean()


@_metric("Accuracy (shifted)")
def _accuracy_shifted(shifted_correct: Tensor) -> Tensor:
    """Return the share of shifted test images of seen classes whose largest logit is their class's."""
    return shifted_correct.double().mean()


def _share_of_new(id_logits: Tensor, tasks: Tensor, chosen: Tensor) -> Tensor | None:
    """Return the share of chosen test images, bool [N], whose largest logit is a new class's."""
    new = tasks == tasks.max()
    if new.all() or not chosen.any():
        return None
    return new[id_logits.argmax(dim=1)][chosen].double().mean()


@_metric("Old as new", lower_is_better=True, standard=False)
def _old_as_new(id_logits: Tensor, tasks: Tensor, old: Tensor) -> Tensor | None:
    """Return the share of test images of old classes whose largest logit is a new class's."""
    return _share_of_new(id_logits, tasks, old)


@_metric("New as old", lower_is_better=True, standard=False)
def _new_as_old(id_logits: Tensor, tasks: Tensor, new: Tensor) -> Tensor | None:
    """Return the share of test images of new classes whose largest logit is an old class's."""
    share = _share_of_new(id_logits, tasks, new)
    return None if share is None else 1 - share


# Of detection:
@_metric("AUC", tables="all")
def _auc(ranking: Ranking) -> Tensor:
    """Return the area under the ROC curve, ties counted half."""
    return ranking.count_wins(ranking.accepted_id) / (2 * ranking.ids * ranking.oods)


@_metric("FPR", lower_is_better=True, tables="all")
def _fpr(ranking: Ranking) -> Tensor:
    """Return the share of OOD accepted at the threshold that accepts 95 % of ID."""
    return ranking.accepted_ood[ranking.threshold].double() / ranking.oods


@_metric("AP", tables="near-far")
def _ap(ranking: Ranking) -> Tensor:
    """Return the area under precision-recall with OOD positive."""
    rejected = ranking.rejected_ood
    precision = (ranking.new_ood * rejected).double() / (rejected + ranking.rejected_id)
    return precision.sum() / ranking.oods


@_metric("FPR (OOD positive)", short="FPR(OOD+)", lower_is_better=True, tables="extra")
def _fpr_ood_positive(ranking: Ranking) -> Tensor:
    """Return the share of ID rejected at the threshold that rejects 95 % of OOD."""
    # The highest group that rejects enough OOD samples.
    spared = ranking.oods - count_for(ranking.oods, ranking.recall)
    at = torch.searchsorted(shift(ranking.accepted_ood), spared, right=True) - 1
    return ranking.rejected_id[at].double() / ranking.ids


@_metric("AP (ID positive)", short="AP(ID+)", tables="extra")
def _ap_id_positive(ranking: Ranking) -> Tensor:
    """Return the area under precision-recall with ID positive."""
    new_id = ranking.accepted_id - shift(ranking.accepted_id)
    precision = (new_id * ranking.accepted_id).double() / ranking.accepted_all
    return precision.sum() / ranking.ids


def _trapezoids(found: Tensor, precision: Tensor) -> Tensor:
    """Return the area under precision over positives, with straight lines between points from precision 1."""
    steps = found - shift(found)
    left = F.pad(precision[:-1], (1, 0), value=1.0)
    return (steps * (left + precision)).sum() / (2 * found[-1])


@_metric("AUPR_IN", standard=False)
def _aupr_in(ranking: Ranking) -> Tensor:
    """Return the area under precision-recall with ID positive, straight lines between points as in OpenOOD;
    AP (ID positive) is step-wise.
    """
    return _trapezoids(ranking.accepted_id, ranking.accepted_id.double() / ranking.accepted_all)


@_metric("AUPR_OUT", standard=False)
def _aupr_out(ranking: Ranking) -> Tensor:
    """Return the area under precision-recall with OOD positive, straight lines between points as in OpenOOD;
    AP is step-wise.
    """
    found, wrong = ranking.rejected_ood.flip(0), ranking.rejected_id.flip(0)  # from the lowest score on
    return _trapezoids(found, found.double() / (found + wrong))


# Of old and new classes apart:
def _auc_of(ranking: Ranking, chosen: Tensor) -> Tensor | None:
    """Return the AUC of chosen ID samples, bool [ids]; None for no samples."""
    size = int(chosen.sum())
    return ranking.count_wins(ranking.count_accepted(chosen)) / (2 * size * ranking.oods) if size else None


def _fpr_of(ranking: Ranking, chosen: Tensor) -> Tensor | None:
    """Return the FPR of chosen ID samples, bool [ids]; None for no samples."""
    accepted, size = ranking.count_accepted(chosen), int(chosen.sum())
    return ranking.accepted_ood[ranking.find_group(accepted, size)].double() / ranking.oods if size else None


@_metric("AUC (old)")
def _auc_old(ranking: Ranking, old: Tensor) -> Tensor | None:
    """Return the AUC of test images of old classes alone against OOD."""
    return _auc_of(ranking, old)


@_metric("FPR (old)", lower_is_better=True)
def _fpr_old(ranking: Ranking, old: Tensor) -> Tensor | None:
    """Return the share of OOD accepted at the threshold that accepts 95 % of old-class ID."""
    return _fpr_of(ranking, old)


@_metric("AUC (new)")
def _auc_new(ranking: Ranking, new: Tensor) -> Tensor | None:
    """Return the AUC of test images of new classes alone against OOD."""
    return _auc_of(ranking, new)


@_metric("FPR (new)", lower_is_better=True)
def _fpr_new(ranking: Ranking, new: Tensor) -> Tensor | None:
    """Return the share of OOD accepted at the threshold that accepts 95 % of new-class ID."""
    return _fpr_of(ranking, new)


@_metric("AUC (task)")
def _auc_task(ranking: Ranking, id_tasks: Tensor) -> Mapping[int, float]:
    """Return the AUC of the test images of a task's classes alone against OOD."""
    tasks = sorted({*id_tasks.tolist()})
    values = {str(task): _auc_of(ranking, id_tasks == task) for task in tasks}
    return dict(zip(tasks, numbers(values).values(), strict=True))


# Of classifying and rejecting together:
@_metric("OSCR")
def _oscr(ranking: Ranking, correct: Tensor) -> Tensor:
    """Return the area under the share of ID accepted and classified correctly, against the share of OOD
    accepted, over all thresholds, ties counted half.
    """
    return ranking.count_wins(ranking.count_accepted(correct)) / (2 * ranking.ids * ranking.oods)


@_metric("Accuracy with rejection")
def _accuracy_with_rejection(ranking: Ranking, correct: Tensor) -> Tensor:
    """Return the share of ID accepted and classified correctly, and of OOD rejected, of all samples, at the
    threshold that accepts 95 % of ID.
    """
    at = ranking.threshold
    right = ranking.count_accepted(correct)[at] + ranking.oods - ranking.accepted_ood[at]
    return right.double() / (ranking.ids + ranking.oods)


# Under covariate shift:
@_metric("Shifted rejected", lower_is_better=True)
def _fpr_shifted(id_scores: Tensor, shifted_scores: Tensor) -> Tensor:
    """Return the share of shifted ID rejected at the threshold that accepts 95 % of clean ID."""
    ranking = Ranking(id_scores, shifted_scores)  # shifted samples in place of OOD samples
    return (ranking.oods - ranking.accepted_ood[ranking.threshold]).double() / ranking.oods


@_metric("AUC (full)")
def _auc_full(full_ranking: Ranking) -> Tensor:
    """Return the AUC of test images, clean and shifted together, against OOD."""
    return _auc(full_ranking)


@_metric("FPR (full)", lower_is_better=True)
def _fpr_full(full_ranking: Ranking) -> Tensor:
    """Return the share of OOD accepted at the threshold that accepts 95 % of ID, clean and shifted
    together.
    """
    return _fpr(full_ranking)


@_metric("AP (full)")
def _ap_full(full_ranking: Ranking) -> Tensor:
    """Return the AP of test images, clean and shifted together, with OOD positive."""
    return _ap(full_ranking)


# Of the two biases:
@_metric("OOD as new", lower_is_better=True)
def _ood_as_new(ood_tasks: Tensor, tasks: Tensor) -> Tensor:
    """Return the share of OOD whose largest logit is a new class's."""
    return (ood_tasks == tasks.max()).double().mean()


@_metric("Confidence")
def _confidence(scores: Tensor, sample_tasks: Tensor) -> Mapping[int, float]:
    """Return the mean score of a task's test images; of an OOD set, of the images predicted into a task."""
    member = F.one_hot(sample_tasks).double()  # a product: index_add has no fixed order on a GPU
    counts, totals = member.sum(dim=0).tolist(), (scores.double() @ member).tolist()
    return {
        task: total / count for task, (count, total) in enumerate(zip(counts, totals, strict=True)) if count
    }


# For use without a run:
@dataclass(frozen=True)
class OODMetrics:
    """Detection metrics as fractions between 0 and 1."""

    auc: float
    fpr: float
    ap: float
    fpr_ood_positive: float
    ap_id_positive: float


def ood_metrics(id_scores: Tensor | Array, ood_scores: Tensor | Array, recall: float = 0.95) -> OODMetrics:
    """Return the five metrics of ID scores [N] against OOD scores [M], tensors or numpy arrays."""
    return OODMetrics(**numbers(_detection(Ranking(id_scores, ood_scores, recall))))


def joint_metrics(
    id_scores: Tensor | Array,
    ood_scores: Tensor | Array,
    *,
    correct: Tensor | Array | None = None,
    subsets: Mapping[str, Tensor | Array] | None = None,
    recall: float = 0.95,
) -> dict[str, float]:
    """Return all metrics of ID scores [N] against OOD scores [M] by name, from one sort.

    ``correct`` [N] marks ID samples that are classified correctly, and adds ``oscr`` and
    ``accuracy_with_rejection``. Each non-empty subset of ID samples, bool [N], adds ``auc_NAME`` and
    ``fpr_NAME``.
    """
    ranking = Ranking(id_scores, ood_scores, recall)
    values: dict[str, Tensor | None] = dict(_detection(ranking))
    for name, given in (subsets or {}).items():
        chosen = ranking.check_choice(given)
        values |= {f"auc_{name}": _auc_of(ranking, chosen), f"fpr_{name}": _fpr_of(ranking, chosen)}
    if correct is not None:
        right = ranking.check_choice(correct)
        values["oscr"] = _oscr(ranking, right)
        values["accuracy_with_rejection"] = _accuracy_with_rejection(ranking, right)
    return numbers(values)


def accuracy(predicted: Tensor | Array, labels: Tensor | Array) -> float:
    """Return the share of samples [N] with the correct prediction; tensors or numpy arrays."""
    of_model, own = dense(predicted, "predictions"), dense(labels, "labels")
    if of_model.shape != own.shape or not own.ndim or not own.numel():
        raise BadInput(f"predictions {list(of_model.shape)} do not fit labels {list(own.shape)}")
    if of_model.dtype != own.dtype:  # torch would round whole numbers as the other's floats
        of_model, own = of_model.cpu().double(), own.cpu().double()
    return float(of_model.eq(own).double().mean())


def forgetting(accuracies: Tensor) -> float:
    """Return the mean over old tasks j of max_t a_tj, before the last step, minus the last a_tj.

    ``accuracies`` a_tj are [steps, tasks], of two steps or more; tasks not learned yet are ignored.
    """
    matrix = accuracies.double()
    best = torch.stack([matrix[j:-1, j].amax() for j in range(len(matrix) - 1)])
    return float((best - matrix[-1, :-1]).mean())


def backward_transfer(accuracies: Tensor) -> float:
    """Return the mean over old tasks j of the last a_tj minus a_jj; ``accuracies`` are [steps, tasks]."""
    matrix = accuracies.double()
    return float((matrix[-1, :-1] - matrix.diagonal()[:-1]).mean())


def numbers(values: Mapping[str, Tensor | None]) -> dict[str, float]:
    """Return the values other than None as numbers, in one transfer from the device."""
    there = {name: value for name, value in values.items() if value is not None}
    return dict(zip(there, torch.stack(list(there.values())).tolist(), strict=True)) if there else {}


def _detection(ranking: Ranking) -> dict[str, Tensor]:
    """Compute the metrics of ``OODMetrics``."""
    functions = (_auc, _fpr, _ap, _fpr_ood_positive, _ap_id_positive)
    return {function.__name__.removeprefix("_"): function(ranking) for function in functions}
