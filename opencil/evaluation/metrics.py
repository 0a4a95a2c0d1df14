"""Metrics of OOD detection, exact with ties, all from one sort of the scores.

Definitions. Scores are larger for in-distribution (ID) samples, and

- AUC: area under the ROC curve, ties counted half; the same whichever side is called positive;
- FPR: share of OOD samples accepted at the highest threshold that accepts at least 95 % of ID samples;
- AP: average precision with OOD as the positive class (step-wise sum, as scikit-learn's);

and with the roles exchanged, since other libraries have it so:

- FPR (OOD positive): share of ID samples rejected at the threshold that rejects at least 95 % of OOD samples;
- AP (ID positive): average precision with ID as the positive class.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil.errors import BadInput

#: What each metric column means, for tables to print.
DEFINITIONS = {
    "auc": "AUC: area under the ROC curve, ties counted half.",
    "fpr": "FPR: share of OOD accepted at the threshold that accepts 95 % of ID.",
    "ap": "AP: area under precision-recall with OOD positive.",
    "fpr_ood_positive": "FPR (OOD positive): share of ID rejected at the threshold that rejects 95 % of OOD.",
    "ap_id_positive": "AP (ID positive): area under precision-recall with ID positive.",
}


@dataclass(frozen=True)
class OODMetrics:
    """Fractions between 0 and 1; see this module's definitions."""

    auc: float
    fpr: float
    ap: float
    fpr_ood_positive: float
    ap_id_positive: float


def ood_metrics(id_scores: Tensor, ood_scores: Tensor, recall: float = 0.95) -> OODMetrics:
    """All metrics of ID scores [N] against OOD scores [M], computed where the tensors lie."""
    for name, scores in (("ID", id_scores), ("OOD", ood_scores)):
        if scores.ndim != 1 or not len(scores):
            raise BadInput(
                f"{name} scores have shape {list(scores.shape)}: a vector of at least one score is needed"
            )
        if not torch.isfinite(scores).all():
            bad = int((~torch.isfinite(scores)).nonzero()[0])
            raise BadInput(f"{name} score {bad} is {float(scores[bad])}: metrics need finite scores")
    positives, negatives = len(id_scores), len(ood_scores)
    scores, order = torch.cat([id_scores, ood_scores]).sort(descending=True)
    is_id = order < positives
    # Samples with equal scores enter together: keep the running counts at the last of each group.
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool, device=scores.device)])
    accepted_id = is_id.cumsum(0)[last]
    accepted_ood = (~is_id).cumsum(0)[last]
    start = torch.zeros(1, dtype=torch.int64, device=scores.device)
    id_before, ood_before = torch.cat([start, accepted_id[:-1]]), torch.cat([start, accepted_ood[:-1]])
    new_id, new_ood = accepted_id - id_before, accepted_ood - ood_before
    # For each group: OOD samples below it, plus half of those in it, times its ID samples. Integers: exact.
    wins = (new_id * (2 * (negatives - accepted_ood) + new_ood)).sum()
    # From the other end: samples not above the group, those that a rising threshold has rejected.
    rejected_id, rejected_ood = positives - id_before, negatives - ood_before
    auc = wins.double() / (2 * positives * negatives)
    fpr = _first(accepted_ood, accepted_id.double() / positives >= recall) / negatives
    flipped = _first(rejected_id.flip(0), rejected_ood.flip(0).double() / negatives >= recall) / positives
    ap = (new_ood.double() * rejected_ood / (rejected_ood + rejected_id)).sum() / negatives
    ap_flipped = (new_id.double() * accepted_id / (accepted_id + accepted_ood)).sum() / positives
    values = torch.stack([auc, fpr, ap, flipped, ap_flipped]).tolist()  # one transfer
    return OODMetrics(*values)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Share of samples [N] whose predicted label is theirs."""
    if predicted.shape != labels.shape or not len(labels):
        raise BadInput(
            f"predictions {list(predicted.shape)} and labels {list(labels.shape)} give no accuracy: "
            "two vectors of the same length, at least 1, are needed"
        )
    return float(predicted.eq(labels).double().mean())


def forgetting(accuracies: Tensor) -> float:
    """Mean over old tasks j of the best accuracy before the last step minus the last: a_tj, [steps, tasks].

    Entries above the diagonal (tasks not learned yet) are ignored.
    """
    matrix = _accuracy_matrix(accuracies)
    best = torch.stack([matrix[j:-1, j].amax() for j in range(len(matrix) - 1)])
    return float((best - matrix[-1, :-1]).mean())


def backward_transfer(accuracies: Tensor) -> float:
    """Mean over old tasks j of the last accuracy minus that right after learning j: a_tj, [steps, tasks]."""
    matrix = _accuracy_matrix(accuracies)
    return float((matrix[-1, :-1] - matrix.diagonal()[:-1]).mean())


def _accuracy_matrix(accuracies: Tensor) -> Tensor:
    if accuracies.ndim != 2 or len(accuracies) != accuracies.shape[1] or len(accuracies) < 2:
        raise BadInput(f"accuracies are {list(accuracies.shape)}: a square of at least 2 steps is needed")
    return accuracies.double()


def _first(values: Tensor, reached: Tensor) -> Tensor:
    """The value at the first place where a condition that ends true is true."""
    return values[reached.int().argmax()].double()
