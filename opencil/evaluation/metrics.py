"""Metrics of OOD detection, exact with ties, all from one sort of the scores.

Definitions. Scores are larger for in-distribution (ID) samples, a sample is accepted by a threshold that its
score reaches, and

- AUC: area under the ROC curve, ties counted half; the same whichever side is called positive;
- FPR: share of OOD samples accepted at the highest threshold that accepts at least 95 % of ID samples;
- AP: average precision with OOD as the positive class (step-wise sum, as scikit-learn's);

with the roles exchanged, since other libraries have it so:

- FPR (OOD positive): share of ID samples rejected at the threshold that rejects at least 95 % of OOD samples;
- AP (ID positive): average precision with ID as the positive class;

of some ID samples alone, those of old classes or those of new classes, against all OOD samples:

- AUC and FPR (old), (new): as above, the threshold of FPR accepting 95 % of these ID samples;

and of classifying and rejecting together:

- OSCR: area under the curve, over all thresholds, of the share of ID samples that are accepted and classified
  correctly against the share of OOD samples that are accepted; ties counted half;
- accuracy with rejection: at the threshold of FPR, the share of all samples, ID and OOD, that are dealt with
  rightly: an ID sample accepted and classified correctly, an OOD sample rejected.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.errors import BadInput

#: What each metric means, for tables to print.
DEFINITIONS = {
    "accuracy": "Accuracy: share of test images of seen classes whose largest logit is their class's.",
    "auc": "AUC: area under the ROC curve, ties counted half.",
    "fpr": "FPR: share of OOD accepted at the threshold that accepts 95 % of ID.",
    "ap": "AP: area under precision-recall with OOD positive.",
    "fpr_ood_positive": "FPR (OOD positive): share of ID rejected at the threshold that rejects 95 % of OOD.",
    "ap_id_positive": "AP (ID positive): area under precision-recall with ID positive.",
    "auc_old": "AUC (old): AUC of test images of old classes alone against OOD.",
    "fpr_old": "FPR (old): share of OOD accepted at the threshold that accepts 95 % of old-class ID.",
    "auc_new": "AUC (new): AUC of test images of new classes alone against OOD.",
    "fpr_new": "FPR (new): share of OOD accepted at the threshold that accepts 95 % of new-class ID.",
    "oscr": "OSCR: area under the share of ID accepted and classified correctly, against the share of OOD "
    "accepted, over all thresholds, ties counted half.",
    "accuracy_with_rejection": "Accuracy with rejection: at the threshold that accepts 95 % of ID, share "
    "of all samples dealt with rightly: ID accepted and classified correctly, OOD rejected.",
    "confidence": "Confidence: mean score of a task's test images; of an OOD set, of the images predicted "
    "into a task.",
    "ood_as_new": "OOD as new: share of OOD whose largest logit is a new class's.",
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
    """The five metrics of ID scores [N] against OOD scores [M], computed where the tensors lie."""
    return OODMetrics(**_values(_Ranking(id_scores, ood_scores).detection(recall)))


def joint_metrics(
    id_scores: Tensor,
    ood_scores: Tensor,
    *,
    correct: Tensor | None = None,
    subsets: dict[str, Tensor] | None = None,
    recall: float = 0.95,
) -> dict[str, float]:
    """All metrics of ID scores [N] against OOD scores [M] from one sort, by name.

    ``correct`` [N] says which ID samples are classified correctly, and adds ``oscr`` and
    ``accuracy_with_rejection``; a subset of them, bool [N], adds ``auc_NAME`` and ``fpr_NAME`` where it has
    any samples.
    """
    ranking = _Ranking(id_scores, ood_scores)
    found = ranking.detection(recall)
    for name, chosen in (subsets or {}).items():
        accepted = ranking.accepted(chosen)
        if size := int(chosen.sum()):
            found[f"auc_{name}"] = ranking.wins(accepted) / (2 * size * ranking.oods)
            found[f"fpr_{name}"] = (
                ranking.accepted_ood[_reaching(accepted, size, recall)].double() / ranking.oods
            )
    if correct is not None:
        accepted = ranking.accepted(correct)
        at = _reaching(ranking.accepted_id, ranking.ids, recall)
        found["oscr"] = ranking.wins(accepted) / (2 * ranking.ids * ranking.oods)
        right = accepted[at] + ranking.oods - ranking.accepted_ood[at]
        found["accuracy_with_rejection"] = right.double() / (ranking.ids + ranking.oods)
    return _values(found)


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


class _Ranking:
    """ID and OOD scores sorted together, once.

    Samples with equal scores enter together: entry g of a count is of the samples whose score is at least the
    g-th highest distinct one.
    """

    def __init__(self, id_scores: Tensor, ood_scores: Tensor) -> None:
        for name, scores in (("ID", id_scores), ("OOD", ood_scores)):
            if not isinstance(scores, Tensor) or scores.is_complex():
                raise BadInput(f"{name} scores are no tensor of real numbers: one is needed")
            if scores.ndim != 1 or not len(scores):
                raise BadInput(
                    f"{name} scores have shape {list(scores.shape)}: a vector of at least one score is needed"
                )
            if not torch.isfinite(scores).all():
                bad = int((~torch.isfinite(scores)).nonzero()[0])
                raise BadInput(f"{name} score {bad} is {float(scores[bad])}: metrics need finite scores")
        self.ids, self.oods = len(id_scores), len(ood_scores)
        keys, self._order = _descending_keys(torch.cat([id_scores, ood_scores])).sort()
        self._last = F.pad(keys[1:] != keys[:-1], (0, 1), value=True).nonzero().flatten()
        self.accepted_id = self._counted(self._order < self.ids)
        self.accepted_ood = self._last + 1 - self.accepted_id

    def accepted(self, chosen: Tensor) -> Tensor:
        """How many of the chosen ID samples, bool [ids], are accepted."""
        if chosen.shape != (self.ids,) or chosen.dtype != torch.bool:
            raise BadInput(
                f"samples are chosen by {chosen.dtype} {list(chosen.shape)}: bool [{self.ids}] is needed, "
                "one for each ID score"
            )
        return self._counted(F.pad(chosen, (0, self.oods))[self._order])

    def wins(self, accepted: Tensor) -> Tensor:
        """Twice the number of pairs in which an ID sample scores above an OOD sample, ties counted half.

        For each group: OOD samples below it, plus half of those in it, times its ID samples. Integers: exact.
        """
        new_id, new_ood = accepted - _before(accepted), self.accepted_ood - _before(self.accepted_ood)
        return (new_id * (2 * (self.oods - self.accepted_ood) + new_ood)).sum().double()

    def detection(self, recall: float) -> dict[str, Tensor]:
        """The metrics of ``OODMetrics``."""
        id_before, ood_before = _before(self.accepted_id), _before(self.accepted_ood)
        new_id, new_ood = self.accepted_id - id_before, self.accepted_ood - ood_before
        # From the other end: samples not above the group, those that a rising threshold has rejected.
        rejected_id, rejected_ood = self.ids - id_before, self.oods - ood_before
        at = _reaching(self.accepted_id, self.ids, recall)
        # The highest group at which enough OOD samples are rejected.
        enough = self.oods - _enough(self.oods, recall)
        flipped = torch.searchsorted(ood_before, enough, right=True) - 1
        ap = (new_ood * rejected_ood).double() / (rejected_ood + rejected_id)
        ap_id_positive = (new_id * self.accepted_id).double() / (self._last + 1)
        return {
            "auc": self.wins(self.accepted_id) / (2 * self.ids * self.oods),
            "fpr": self.accepted_ood[at].double() / self.oods,
            "ap": ap.sum() / self.oods,
            "fpr_ood_positive": rejected_id[flipped].double() / self.ids,
            "ap_id_positive": ap_id_positive.sum() / self.ids,
        }

    def _counted(self, flags: Tensor) -> Tensor:
        return flags.cumsum(0)[self._last]


def _descending_keys(scores: Tensor) -> Tensor:
    """Integers that ascend as scores descend: on a CPU they sort ten times as fast as floats do."""
    exact = scores.is_floating_point() and scores.dtype != torch.float64  # in float32; integers may not be
    kind, top = (torch.int32, 31) if exact else (torch.int64, 63)
    scores = scores.float() if exact else scores.double()
    bits = (scores + 0.0).view(kind)  # −0.0 becomes 0.0
    # The bits of a float ascend with it where it is positive and descend where it is negative.
    return ~(bits ^ ((bits >> top) & torch.iinfo(kind).max))


def _before(counts: Tensor) -> Tensor:
    """Counts at the group before, 0 at the first."""
    return F.pad(counts[:-1], (1, 0))


def _enough(size: int, recall: float) -> int:
    """The smallest count whose share of ``size`` is at least ``recall``."""
    if not 0 < recall <= 1:
        raise BadInput(f"recall = {recall} is not allowed: it should be above 0 and at most 1")
    guess = int(recall * size)  # rounding makes it too large by 1 at most
    return next(count for count in range(max(guess - 1, 0), size + 1) if count / size >= recall)


def _reaching(accepted: Tensor, size: int, recall: float) -> Tensor:
    """The first group at which enough of ``size`` samples are accepted."""
    return torch.searchsorted(accepted, _enough(size, recall))


def _values(found: dict[str, Tensor]) -> dict[str, float]:
    """Numbers, in one transfer from the device."""
    return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))
