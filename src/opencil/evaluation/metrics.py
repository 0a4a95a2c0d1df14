"""Compute metrics, exact with ties; all detection metrics from one sort of the scores.

Scores are larger for in-distribution (ID) samples, and a threshold accepts a sample whose score is not below
it. The threshold that accepts 95 % of ID is the highest that accepts at least 95 %. AP is a step-wise sum, as
in scikit-learn. The choice of the positive class, ID or OOD, changes only FPR and AP: the paper's are ``fpr``
and ``ap``; other libraries exchange the roles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.arrays import dense, on_one_device
from opencil.errors import BadInput
from opencil.evaluation.metric import register_metric
from opencil.evaluation.ranking import Array, Ranking, count_for, shift

_standard = partial(register_metric, standard=True)

# --- of the model -----------------------------------------------------------------------------------


@_standard(
    "accuracy",
    label="Accuracy",
    definition="share of test images of seen classes whose largest logit is their class's.",
)
def _accuracy(correct: Tensor) -> Tensor:
    return correct.double().mean()


@_standard(
    "accuracy_shifted",
    label="Accuracy (shifted)",
    definition="share of shifted test images of seen classes whose largest logit is their class's.",
)
def _accuracy_shifted(shifted_correct: Tensor) -> Tensor:
    return shifted_correct.double().mean()


# --- of detection -----------------------------------------------------------------------------------


@_standard("auc", label="AUC", definition="area under the ROC curve, ties counted half.", tables="all")
def _auc(ranking: Ranking) -> Tensor:
    return ranking.count_wins(ranking.accepted_id) / (2 * ranking.ids * ranking.oods)


@_standard(
    "fpr",
    label="FPR",
    definition="share of OOD accepted at the threshold that accepts 95 % of ID.",
    lower_is_better=True,
    tables="all",
)
def _fpr(ranking: Ranking) -> Tensor:
    return ranking.accepted_ood[ranking.threshold].double() / ranking.oods


@_standard("ap", label="AP", definition="area under precision-recall with OOD positive.", tables="near-far")
def _ap(ranking: Ranking) -> Tensor:
    rejected = ranking.rejected_ood
    precision = (ranking.new_ood * rejected).double() / (rejected + ranking.rejected_id)
    return precision.sum() / ranking.oods


@_standard(
    "fpr_ood_positive",
    label="FPR (OOD positive)",
    short="FPR(OOD+)",
    definition="share of ID rejected at the threshold that rejects 95 % of OOD.",
    lower_is_better=True,
    tables="extra",
)
def _fpr_ood_positive(ranking: Ranking) -> Tensor:
    # The highest group that rejects enough OOD samples.
    spared = ranking.oods - count_for(ranking.oods, ranking.recall)
    at = torch.searchsorted(shift(ranking.accepted_ood), spared, right=True) - 1
    return ranking.rejected_id[at].double() / ranking.ids


@_standard(
    "ap_id_positive",
    label="AP (ID positive)",
    short="AP(ID+)",
    definition="area under precision-recall with ID positive.",
    tables="extra",
)
def _ap_id_positive(ranking: Ranking) -> Tensor:
    new_id = ranking.accepted_id - shift(ranking.accepted_id)
    precision = (new_id * ranking.accepted_id).double() / ranking.accepted_all
    return precision.sum() / ranking.ids


def _trapezoids(found: Tensor, precision: Tensor) -> Tensor:
    """Return the area under precision over positives, with straight lines between points from precision 1."""
    steps = found - shift(found)
    left = F.pad(precision[:-1], (1, 0), value=1.0)
    return (steps * (left + precision)).sum() / (2 * found[-1])


@register_metric(
    "aupr_in",
    label="AUPR_IN",
    definition="area under precision-recall with ID positive, straight lines between points as in "
    "OpenOOD; AP (ID positive) is step-wise.",
)
def _aupr_in(ranking: Ranking) -> Tensor:
    return _trapezoids(ranking.accepted_id, ranking.accepted_id.double() / ranking.accepted_all)


@register_metric(
    "aupr_out",
    label="AUPR_OUT",
    definition="area under precision-recall with OOD positive, straight lines between points as in "
    "OpenOOD; AP is step-wise.",
)
def _aupr_out(ranking: Ranking) -> Tensor:
    found, wrong = ranking.rejected_ood.flip(0), ranking.rejected_id.flip(0)  # from the lowest score on
    return _trapezoids(found, found.double() / (found + wrong))


# --- of old and new classes apart -------------------------------------------------------------------


def _auc_of(ranking: Ranking, chosen: Tensor) -> Tensor | None:
    """Return the AUC of chosen ID samples, bool [ids]; None for no samples."""
    size = int(chosen.sum())
    return ranking.count_wins(ranking.count_accepted(chosen)) / (2 * size * ranking.oods) if size else None


def _fpr_of(ranking: Ranking, chosen: Tensor) -> Tensor | None:
    """Return the FPR of chosen ID samples, bool [ids]; None for no samples."""
    accepted, size = ranking.count_accepted(chosen), int(chosen.sum())
    return ranking.accepted_ood[ranking.find_group(accepted, size)].double() / ranking.oods if size else None


@_standard("auc_old", label="AUC (old)", definition="AUC of test images of old classes alone against OOD.")
def _auc_old(ranking: Ranking, old: Tensor) -> Tensor | None:
    return _auc_of(ranking, old)


@_standard(
    "fpr_old",
    label="FPR (old)",
    definition="share of OOD accepted at the threshold that accepts 95 % of old-class ID.",
    lower_is_better=True,
)
def _fpr_old(ranking: Ranking, old: Tensor) -> Tensor | None:
    return _fpr_of(ranking, old)


@_standard("auc_new", label="AUC (new)", definition="AUC of test images of new classes alone against OOD.")
def _auc_new(ranking: Ranking, new: Tensor) -> Tensor | None:
    return _auc_of(ranking, new)


@_standard(
    "fpr_new",
    label="FPR (new)",
    definition="share of OOD accepted at the threshold that accepts 95 % of new-class ID.",
    lower_is_better=True,
)
def _fpr_new(ranking: Ranking, new: Tensor) -> Tensor | None:
    return _fpr_of(ranking, new)


# --- of classifying and rejecting together ----------------------------------------------------------


@_standard(
    "oscr",
    label="OSCR",
    definition="area under the share of ID accepted and classified correctly, against the share of OOD "
    "accepted, over all thresholds, ties counted half.",
)
def _oscr(ranking: Ranking, correct: Tensor) -> Tensor:
    return ranking.count_wins(ranking.count_accepted(correct)) / (2 * ranking.ids * ranking.oods)


@_standard(
    "accuracy_with_rejection",
    label="Accuracy with rejection",
    definition="at the threshold that accepts 95 % of ID, share of all samples handled correctly: ID "
    "accepted and classified correctly, OOD rejected.",
)
def _accuracy_with_rejection(ranking: Ranking, correct: Tensor) -> Tensor:
    at = ranking.threshold
    right = ranking.count_accepted(correct)[at] + ranking.oods - ranking.accepted_ood[at]
    return right.double() / (ranking.ids + ranking.oods)


# --- under covariate shift --------------------------------------------------------------------------


@_standard(
    "fpr_shifted",
    label="Shifted rejected",
    definition="share of shifted ID rejected at the threshold that accepts 95 % of clean ID.",
    lower_is_better=True,
)
def _fpr_shifted(id_scores: Tensor, shifted_scores: Tensor) -> Tensor:
    ranking = Ranking(id_scores, shifted_scores)  # shifted samples in place of OOD samples
    return (ranking.oods - ranking.accepted_ood[ranking.threshold]).double() / ranking.oods


@_standard(
    "auc_full",
    label="AUC (full)",
    definition="AUC of test images, clean and shifted together, against OOD.",
)
def _auc_full(full_ranking: Ranking) -> Tensor:
    return _auc(full_ranking)


@_standard(
    "fpr_full",
    label="FPR (full)",
    definition="share of OOD accepted at the threshold that accepts 95 % of ID, clean and shifted together.",
    lower_is_better=True,
)
def _fpr_full(full_ranking: Ranking) -> Tensor:
    return _fpr(full_ranking)


@_standard(
    "ap_full",
    label="AP (full)",
    definition="AP of test images, clean and shifted together, with OOD positive.",
)
def _ap_full(full_ranking: Ranking) -> Tensor:
    return _ap(full_ranking)


# --- of the two biases ------------------------------------------------------------------------------


@_standard(
    "ood_as_new",
    label="OOD as new",
    definition="share of OOD whose largest logit is a new class's.",
    lower_is_better=True,
)
def _ood_as_new(ood_tasks: Tensor, tasks: Tensor) -> Tensor:
    return (ood_tasks == tasks.max()).double().mean()


@_standard(
    "confidence",
    label="Confidence",
    definition="mean score of a task's test images; of an OOD set, of the images predicted into a task.",
)
def _confidence(scores: Tensor, sample_tasks: Tensor) -> Mapping[int, float]:
    member = F.one_hot(sample_tasks).double()  # a product: index_add has no fixed order on a GPU
    counts, totals = member.sum(dim=0).tolist(), (scores.double() @ member).tolist()
    return {
        task: total / count for task, (count, total) in enumerate(zip(counts, totals, strict=True)) if count
    }


# --- for use without a run --------------------------------------------------------------------------


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
    on_one_device({"predictions": of_model, "labels": own})
    if of_model.shape != own.shape or not own.ndim or not own.numel():
        raise BadInput(f"predictions {list(of_model.shape)} do not fit labels {list(own.shape)}")
    return float(of_model.eq(own).double().mean())


def forgetting(accuracies: Tensor) -> float:
    """Return the mean over old tasks j of max_t a_tj, before the last step, minus the last a_tj.

    ``accuracies`` a_tj are [steps, tasks]; entries above the diagonal (tasks not learned yet) are ignored.
    """
    matrix = _accuracy_matrix(accuracies)
    best = torch.stack([matrix[j:-1, j].amax() for j in range(len(matrix) - 1)])
    return float((best - matrix[-1, :-1]).mean())


def backward_transfer(accuracies: Tensor) -> float:
    """Return the mean over old tasks j of the last a_tj minus a_jj; ``accuracies`` are [steps, tasks]."""
    matrix = _accuracy_matrix(accuracies)
    return float((matrix[-1, :-1] - matrix.diagonal()[:-1]).mean())


def _accuracy_matrix(accuracies: Tensor) -> Tensor:
    if accuracies.ndim != 2 or len(accuracies) != accuracies.shape[1] or len(accuracies) < 2:
        raise BadInput(f"accuracies are {list(accuracies.shape)}: a square of at least 2 steps is needed")
    return accuracies.double()


def numbers(values: Mapping[str, Tensor | None]) -> dict[str, float]:
    """Return the values that are not None as numbers, in one transfer from the device."""
    there = {name: value for name, value in values.items() if value is not None}
    return dict(zip(there, torch.stack(list(there.values())).tolist(), strict=True)) if there else {}


def _detection(ranking: Ranking) -> dict[str, Tensor]:
    """Compute the metrics of ``OODMetrics``."""
    functions = (_auc, _fpr, _ap, _fpr_ood_positive, _ap_id_positive)
    return {function.__name__.removeprefix("_"): function(ranking) for function in functions}
