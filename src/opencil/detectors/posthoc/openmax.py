"""OpenMax: an additional class for unknown samples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import copy_to_device, to_float64_device
from opencil.detectors.moments import check_labels, in_chunks, means_of
from opencil.validation import Count

#: libMR's shift of distances before a fit, which makes all of them positive.
_SHIFT = 1e4


@register_detector("openmax", paper=Paper("Towards Open Set Deep Networks", 2016, "1511.06233"))
@dataclass
class OpenMax(SetUpDetector):
    """Odds of the known classes against an unknown class, to which far samples' largest logits move."""

    equation = (
        r"S(x) = \log \sum_c e^{z_c - u_c} - \sum_c u_c, \quad "
        r"u_c = z_c \, \omega_c \, F_c(\| z - \mu_c \|) \\ "
        r"\omega_c = 1 - \tfrac{r_c - 1}{\alpha} \text{ for the rank } r_c \le \alpha, \text{ else } 0"
    )
    differs = (
        "F_c is a Weibull distribution of the largest distances of correctly predicted set-up logits, "
        "shifted by 10,000 as in the authors' libMR; α is OpenOOD's, 10 in the paper. A class without a "
        "correct prediction has the mean of all its images."
    )

    tail: Count = 20  #: number of largest distances in each class
    alpha: Count = 3  #: number of largest logits to revise

    named = {**SetUpDetector.named, "original": {"alpha": 10}}
    reads = frozenset({"logits"})
    setup_reads = frozenset({"logits", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute mean logits μ_c [C, C], and the Weibull distributions of the distances to them."""
        logits, classes = outputs.logits, outputs.logits.shape[1]
        labels = check_labels(outputs.labels, classes)
        right = logits.argmax(dim=1) == labels
        # A class without a correct prediction uses all its images.
        used = right | (torch.bincount(labels[right], minlength=classes) == 0)[labels]
        logits, labels = logits[used], labels[used]
        self._means, counts = means_of(logits, labels, classes)
        far = torch.cat([(z - self._means[y]).norm(dim=1) for z, y in in_chunks(logits, labels)])
        tails = far.new_full((classes, self.tail), torch.nan)
        for c in range(classes):
            largest = far[to_float64_device(labels) == c].sort().values[-self.tail :]
            tails[c, : len(largest)] = largest
        self._smallest = tails.nan_to_num(torch.inf).amin(dim=1)
        self._shape, self._scale = _fit_weibull(torch.log1p((tails - self._smallest[:, None]) / _SHIFT))
        self._known = counts > 0

    def scores(self, outputs: Outputs) -> Tensor:
        """Return log Σ exp(z − u) − Σ u, [N]."""
        found = []
        for (z,) in in_chunks(outputs.logits):
            largest, ranked = z.topk(min(self.alpha, z.shape[1]), dim=1)
            omega = 1 - torch.arange(ranked.shape[1], device=z.device) / self.alpha
            far = torch.cdist(z, self._means, compute_mode="use_mm_for_euclid_dist").gather(1, ranked)
            # Clamped where a distance is below the tail's smallest by more than the shift: its CDF is 0.
            shifted = torch.log1p(((far - self._smallest[ranked]) / _SHIFT).clamp(min=-1))
            cdf = -torch.expm1(-torch.exp(self._shape[ranked] * (shifted - self._scale[ranked])))
            taken = torch.where(self._known[ranked], largest * omega * cdf, 0.0)
            revised = z.scatter_add(1, ranked, -taken)
            found.append(revised.logsumexp(dim=1) - taken.sum(dim=1))
        return copy_to_device(torch.cat(found), outputs.logits.device)


def _fit_weibull(logs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum-likelihood shape and log scale, [C] each, for the logarithms of values [C, n].

    NaN marks a missing value, and is the result for a row without values. The shape k solves
    Σ wᵢ log xᵢ − mean log x = 1 / k, w ∝ x^k, by bisection: the left side grows with k. For equal values k
    is the largest.
    """
    there = ~logs.isnan()
    logs, count = logs.nan_to_num(0.0), there.sum(dim=1)
    mean = logs.sum(dim=1) / count
    low, high = torch.full_like(mean, -5.0), torch.full_like(mean, 20.0)
    for _ in range(60):
        shape = ((low + high) / 2).exp()
        weights = (shape[:, None] * logs).masked_fill(~there, -torch.inf).softmax(dim=1)
        above = (weights * logs).sum(dim=1) - mean > 1 / shape
        low, high = torch.where(above, low, (low + high) / 2), torch.where(above, (low + high) / 2, high)
    shape = ((low + high) / 2).exp()
    powers = (shape[:, None] * logs).masked_fill(~there, -torch.inf).logsumexp(dim=1)
    return shape, (powers - count.log()) / shape
