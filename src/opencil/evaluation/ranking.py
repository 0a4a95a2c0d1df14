"""Sort ID and OOD scores together, once for all metrics of detection."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.arrays import dense
from opencil.data.precision import to_float64_device
from opencil.errors import BadInput, not_allowed

Array = np.ndarray[Any, Any]


class Ranking:
    """ID scores [N] and OOD scores [M] in one order; a threshold accepts scores that are not below it.

    Samples with equal scores are one group. Entry g of ``accepted_id``, ``accepted_ood`` and ``accepted_all``
    counts the samples whose score is at least the g-th highest distinct score; of ``rejected_id`` and
    ``rejected_ood``, at most this score; of ``new_ood``, equal to it. ``threshold`` is the first group at
    which the share ``recall`` of the ID samples is accepted, as FPR needs it.
    """

    def __init__(self, id_scores: Tensor | Array, ood_scores: Tensor | Array, recall: float = 0.95) -> None:
        sets = {name: dense(s, name) for name, s in (("ID scores", id_scores), ("OOD scores", ood_scores))}
        for name, scores in sets.items():
            if scores.ndim != 1 or not len(scores) or scores.dtype == torch.bool:
                shape = list(scores.shape)
                raise BadInput(f"{name} are {scores.dtype} {shape}: a vector of numbers is needed")
            if len(bad := (~torch.isfinite(scores)).nonzero()):
                raise BadInput(f"{name} have {float(scores[bad[0]])} at {int(bad[0])}: they should be finite")
        self.ids, self.oods = map(len, sets.values())
        self.recall = recall
        keys, self._order = _descending_keys(*map(to_float64_device, sets.values())).sort()
        self._last = F.pad(keys[1:] != keys[:-1], (0, 1), value=True).nonzero().flatten()
        self.accepted_all = self._last + 1
        self.accepted_id = self._count(self._order < self.ids)
        self.accepted_ood = self.accepted_all - self.accepted_id
        self.rejected_id = self.ids - shift(self.accepted_id)
        self.rejected_ood = self.oods - shift(self.accepted_ood)
        self.new_ood = self.accepted_ood - shift(self.accepted_ood)
        self.threshold = self.find_group(self.accepted_id, self.ids)

    def check_choice(self, given: Tensor | Array) -> Tensor:
        """Return a user's choice of ID samples as bool [ids], on the scores' device."""
        chosen = dense(given, "samples to choose")
        if chosen.shape != (self.ids,) or chosen.dtype != torch.bool:
            shape = list(chosen.shape)
            raise BadInput(f"samples are chosen by {chosen.dtype} {shape}: bool [{self.ids}] is needed")
        return chosen

    def count_accepted(self, chosen: Tensor) -> Tensor:
        """Return the number of accepted samples among the chosen ID samples, bool [ids]."""
        return self._count(F.pad(chosen, (0, self.oods))[self._order])

    def count_wins(self, accepted: Tensor) -> Tensor:
        """Return twice the number of pairs with the ID sample above the OOD sample, ties counted half.

        For each group: OOD samples below it, plus half of its own, times its ID samples. Integers: exact.
        """
        new_id = accepted - shift(accepted)
        return (new_id * (2 * (self.oods - self.accepted_ood) + self.new_ood)).sum().double()

    def find_group(self, accepted: Tensor, size: int) -> Tensor:
        """Return the first group at which enough of ``size`` samples are accepted."""
        return torch.searchsorted(accepted, count_for(size, self.recall))

    def _count(self, flags: Tensor) -> Tensor:
        return flags.cumsum(0)[self._last]


def shift(counts: Tensor) -> Tensor:
    """Return the counts at the previous group, 0 at the first."""
    return F.pad(counts[:-1], (1, 0))


def count_for(size: int, recall: float) -> int:
    """Return the smallest count whose share of ``size`` is at least ``recall``."""
    if not (isinstance(recall, int | float | np.number) and 0 < recall <= 1):
        raise not_allowed("recall", recall, "it should be a number above 0 and at most 1")
    share = float(recall)  # numpy's float16 ends at 65,504
    least = int(share * size)
    return least + (least / size < share)


def _descending_keys(*sets: Tensor) -> Tensor:
    """Return integers that ascend as scores descend: on a CPU they sort ten times as fast as floats."""
    if not any(scores.is_floating_point() for scores in sets):
        return ~torch.cat([scores.long() for scores in sets])
    narrow = all(scores.is_floating_point() and scores.dtype != torch.float64 for scores in sets)
    kind, top, floating = (torch.int32, 31, torch.float32) if narrow else (torch.int64, 63, torch.float64)
    for whole in (scores.long() for scores in sets if not scores.is_floating_point()):
        if ((whole > 2**53) | (whole < -(2**53))).any():
            raise BadInput("whole numbers beyond 2^53 cannot be compared with floats: convert the scores")
    bits = (torch.cat([scores.to(floating) for scores in sets]) + 0.0).view(kind)  # −0.0 becomes 0.0
    # The bits of a float ascend with it if it is positive, and descend if it is negative.
    return ~(bits ^ ((bits >> top) & torch.iinfo(kind).max))
