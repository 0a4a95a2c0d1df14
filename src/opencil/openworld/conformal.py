"""Split-conformal thresholds: the share of known images that is rejected is bounded, for any detector."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Literal, NamedTuple

import torch
from torch import Tensor

#: Groups of predicted classes with a threshold each: a single group, the classes of a call, or each class.
Per = Literal["all", "class", "task"]


@dataclass(frozen=True)
class Calibration:
    """Scores of images of known classes that neither learning nor set-up used.

    ``group_of_class`` [C] is the group of the images that are predicted as a class; ``groups`` [n] are those
    of the ``scores`` [n], sorted. Of ``absent`` classes there is no image: nothing is promised for them.
    """

    scores: Tensor
    groups: Tensor
    group_of_class: Tensor
    absent: int = 0

    @classmethod
    def of(
        cls, scores: Tensor, predicted: Tensor, tasks: Sequence[int], per: Per, absent: int = 0
    ) -> "Calibration":
        """Return the calibration by scores and predicted classes of held-out images."""
        classes = len(tasks)
        kinds = {
            "all": torch.zeros(classes, dtype=torch.int64),
            "class": torch.arange(classes),
            "task": torch.tensor(tasks, dtype=torch.int64) - 1,
        }
        ordered, order = scores.sort()
        return cls(ordered, kinds[per][predicted[order]], kinds[per], absent)

    def p_values(self, scores: Tensor, predicted: Tensor) -> Tensor:
        """Return p = (1 + #{calibration scores ≤ s}) / (n + 1) among those of the group, [N].

        For an image of a known class p is at most α with probability at most α.
        """
        same = self.groups == self.group_of_class[predicted][:, None]
        below = (same & (self.scores <= scores[:, None])).sum(dim=1)
        return (1 + below) / (1 + same.sum(dim=1))

    def thresholds(self, reject: float) -> Tensor:
        """Return the score below which an image predicted as a class is unknown, [C].

        p ≤ α exactly if the score is below the k-th smallest of calibration, k = ⌊α (n + 1)⌋. With fewer than
        1 / α − 1 images k is 0, and no image is rejected.
        """
        found = []
        for group in self.group_of_class:
            scores = self.scores[self.groups == group]
            rank = rank_of(reject, len(scores))
            found.append(float(scores[rank - 1]) if rank else -inf)
        return torch.tensor(found)

    def promise(self, reject: float) -> "Promise":
        """Return what the thresholds promise, and for how many groups there are too few images."""
        counts = [int((self.groups == group).sum()) for group in torch.unique(self.group_of_class)]
        needed, least = ceil(1 / reject - 1 - 1e-9), min(counts)
        if least >= needed:
            low, high = spread(reject, least)
            text = (
                f"at most {reject:.1%} of images of known classes in the shares of the held-out ones are "
                f"rejected on average: in nine of ten models like this, with {least} held-out images, "
                f"{low:.1%} to {high:.1%}"
            )
            if not self.absent:
                return Promise(True, text)
            classes = f"{self.absent} of {len(self.group_of_class)} classes"
            return Promise(
                False,
                f"{text}; no image is held out of {classes}, and more of theirs may be rejected: learn at "
                "least two images of each class, better ten",
            )
        few = sum(count < needed for count in counts)
        where = "nothing is rejected" if len(counts) == 1 else f"{few} of {len(counts)} groups reject nothing"
        return Promise(
            False,
            f"{where}: reject = {reject:g} needs {needed} held-out images, and there are {least}; learn more "
            f"images, or take a larger reject or held_out{'' if len(counts) == 1 else ', or per = all'}",
        )


class Promise(NamedTuple):
    """What thresholds promise: whether each group can keep it, and a sentence."""

    holds: bool
    text: str


def rank_of(reject: float, count: int) -> int:
    """Return ⌊α (n + 1)⌋; products such as 0.05 · 20 may round below a whole number."""
    return floor(reject * (count + 1) + 1e-9)


def spread(reject: float, count: int) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles of the share of known images that a threshold rejects.

    Over draws of n calibration scores, without ties, it follows Beta(k, n + 1 − k).
    """
    from scipy.stats import beta

    rank = rank_of(reject, count)
    low, high = beta.ppf((0.05, 0.95), rank, count + 1 - rank)
    return float(low), float(high)
