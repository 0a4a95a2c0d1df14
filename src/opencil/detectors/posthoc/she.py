"""SHE: simplified Hopfield energy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import copy_to_device
from opencil.detectors.moments import check_labels, means_of


@register_detector(
    "she",
    paper=Paper(
        "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern "
        "Hopfield Energy",
        2023,
        # arXiv does not have it.
        url="https://openreview.net/forum?id=KkazG4lgKL",
    ),
)
@dataclass
class SHE(SetUpDetector):
    """Inner product with the predicted class's pattern: the mean of its correctly predicted features."""

    equation = (
        r"S(x) = \langle \varphi, s_{\hat{y}} \rangle, \quad \hat{y} = \text{argmax} z \\ "
        r"s_c = \text{mean} \{ \varphi_j : y_j = c = \text{argmax} z_j \}"
    )
    differs = (
        "For a class without a correctly predicted set-up image OpenOOD has no pattern: here it is the mean "
        "of the class, and for a class without images the mean of all."
    )

    setup_reads = frozenset({"features", "logits", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute the patterns s_c [C, D]."""
        features, classes = outputs.features, outputs.logits.shape[1]
        labels = check_labels(outputs.labels, classes)
        right = outputs.logits.argmax(dim=1) == labels
        patterns, correct = means_of(features[right], labels[right], classes)
        means, counts = means_of(features, labels, classes)
        everything = means_of(features, torch.zeros_like(labels), 1)[0]
        means = torch.where((counts > 0)[:, None], means, everything)
        patterns = torch.where((correct > 0)[:, None], patterns, means)
        self._patterns = copy_to_device(patterns, features.device).float()

    def scores(self, outputs: Outputs) -> Tensor:
        """Return ⟨φ, s_ŷ⟩, [N]."""
        each = outputs.features @ self._patterns.T
        return each.gather(1, outputs.logits.argmax(dim=1, keepdim=True)).squeeze(1)
