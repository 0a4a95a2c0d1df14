"""ID and OOD scores sorted together, once: what every metric of detection is counted from."""

import reprlib
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.arrays import dense, on_one_device
from opencil.data.precision import reachable
from opencil.errors import BadInput

Array = np.ndarray[Any, Any]
_EXACT = 2**53  # whole numbers up to here have a float64 each


class Ranking:
    """ID scores [N] and OOD scores [M] in one order; a threshold accepts the samples whose score reaches it.

    Samples with equal scores enter together: entry g of a count is of the samples whose score is at least the
    g-th highest distinct one. ``recall`` is the share of ID samples that the threshold of FPR accepts.
    """

    def __init__(self, id_scores: Tensor | Array, ood_scores: Tensor | Array, recall: float = 0.95) -> None:
        inside, outside = dense(id_scores, "ID scores"), dense(ood_scores, "OOD scores")
        on_one_device({"ID scores": inside, "OOD scores": outside})
        for name, scores in (("ID", inside), ("OOD", outside)):
            if scores.dtype == torch.bool:
                raise BadInput(f"{name} scores are bool: numbers that put samples in an order are needed")
            if scores.ndim != 1 or not len(scores):
                raise BadInput(
                    f"{name} scores have shape {list(scores.shape)}: a vector of at least one score is needed"
                )
            if not torch.isfinite(scores).all():
                bad = int((~torch.isfinite(scores)).nonzero()[0])
                raise BadInput(f"{name} score {bad} is {float(scores[bad])}: metrics need finite scores")
            if not scores.is_floating_point() and bool(((scores > _EXACT) | (scores < -_EXACT)).any()):
                raise BadInput(
                    f"{name} scores are whole numbers beyond 2^53, which float64 cannot tell apart"
                )
        self.ids, self.oods, self.recall = len(inside), len(outside), recall
        keys, self._order = _descending_keys(reachable(torch.cat([inside, outside]))).sort()
        self._last = F.pad(keys[1:] != keys[:-1], (0, 1), value=True).nonzero().flatten()
        self.accepted_id = self._counted(self._order < self.ids)
        self.accepted_ood = self.accepted_all - self.accepted_id

    @property
    def accepted_all(self) -> Tensor:
        """How many samples, ID and OOD, are accepted."""
        return self._last + 1

    @cached_property
    def new_id(self) -> Tensor:
        """ID samples of each group."""
        return self.accepted_id - before(self.accepted_id)

    @cached_property
    def new_ood(self) -> Tensor:
        """OOD samples of each group."""
        return self.accepted_ood - before(self.accepted_ood)

    @cached_property
    def threshold(self) -> Tensor:
        """The first group at which enough ID samples are accepted."""
        return self.reaching(self.accepted_id, self.ids)

    def chosen(self, given: Tensor | Array) -> Tensor:
        """Which ID samples are chosen by what a user gives: bool [ids], where the scores lie."""
        chosen = dense(given, "samples to choose")
        if chosen.shape != (self.ids,) or chosen.dtype != torch.bool:
            raise BadInput(
                f"samples are chosen by {chosen.dtype} {list(chosen.shape)}: bool [{self.ids}] is needed, "
                "one for each ID score"
            )
        on_one_device({"samples are chosen": chosen, "they are sorted": self._order})
        return chosen

    def accepted(self, chosen: Tensor) -> Tensor:
        """How many of the chosen ID samples, bool [ids], are accepted."""
        chosen = self.chosen(chosen)
        return self._counted(F.pad(chosen, (0, self.oods))[self._order])

    def wins(self, accepted: Tensor) -> Tensor:
        """Twice the number of pairs in which an ID sample scores above an OOD sample, ties counted half.

        For each group: OOD samples below it, plus half of those in it, times its ID samples. Integers: exact.
        """
        new_id = accepted - before(accepted)
        return (new_id * (2 * (self.oods - self.accepted_ood) + self.new_ood)).sum().double()

    def reaching(self, accepted: Tensor, size: int) -> Tensor:
        """The first group at which enough of ``size`` samples are accepted."""
        return torch.searchsorted(accepted, enough(size, self.recall))

    def _counted(self, flags: Tensor) -> Tensor:
        return flags.cumsum(0)[self._last]


def before(counts: Tensor) -> Tensor:
    """Counts at the group before, 0 at the first."""
    return F.pad(counts[:-1], (1, 0))


def enough(size: int, recall: float) -> int:
    """The smallest count whose share of ``size`` is at least ``recall``."""
    if not _is_share(recall):
        raise BadInput(
            f"recall = {reprlib.repr(recall)} is not allowed: it should be a number above 0 and at most 1"
        )
    share = float(recall)  # numpy's float16 ends at 65,504
    least = int(share * size)
    return least + (least / size < share)


def _is_share(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return bool(number and 0 < value <= 1)


def _descending_keys(scores: Tensor) -> Tensor:
    """Integers that ascend as scores descend: on a CPU they sort ten times as fast as floats do."""
    exact = scores.is_floating_point() and scores.dtype != torch.float64  # in float32; integers may not be
    kind, top = (torch.int32, 31) if exact else (torch.int64, 63)
    scores = scores.float() if exact else scores.double()
    bits = (scores + 0.0).view(kind)  # −0.0 becomes 0.0
    # The bits of a float ascend with it where it is positive and descend where it is negative.
    return ~(bits ^ ((bits >> top) & torch.iinfo(kind).max))
