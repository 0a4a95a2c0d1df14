"""pNML: regret against a learner with the label."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import copy_to_device
from opencil.detectors.moments import in_chunks, products_of, whitening


@register_detector(
    "pnml",
    paper=Paper(
        "Single Layer Predictive Normalized Maximum Likelihood for Out-of-Distribution Detection",
        2021,
        "2110.09246",
    ),
)
@dataclass
class PNML(SetUpDetector):
    """Negative regret of the head: its gain from one more training image, over all labels."""

    title = "pNML"
    equation = (
        r"S(x) = -\log_C \sum_c \frac{p_c}{p_c + (1 - p_c) p_c^{\kappa}}, \quad "
        r"p = \text{softmax} \, h(\hat{\varphi}) \\ "
        r"\kappa = \max \left( \frac{q}{1 + q}, \| \hat{\varphi}_\perp \|^2 \right), \quad "
        r"q = \hat{\varphi}^\top "
        r"\left( \textstyle\sum_j \hat{\varphi}_j \hat{\varphi}_j^\top \right)^{+} \hat{\varphi}, "
        r"\quad \hat{\varphi} = \tfrac{\varphi}{\|\varphi\|} \\ "
        r"\hat{\varphi}_\perp = \text{the part of } \hat{\varphi} \text{ that set-up features do not span}"
    )
    differs = (
        "As in the authors' code, probabilities are the head's for features of length 1. For a feature "
        "outside the span of the set-up features, versions of that code differ; only the maximum above "
        "still orders samples if there are fewer set-up images than features."
    )

    reads = frozenset({"features", "head"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute a factor of the pseudo-inverse of Σ φ̂φ̂ᵀ."""
        self._whitening = whitening(products_of(F.normalize(outputs.features, dim=1)))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −log_C Σ p / (p + (1 − p) p^κ), [N], in logarithms: p may round to 0 or 1."""
        assert outputs.classify is not None
        unit = F.normalize(outputs.features, dim=1)
        z, found = outputs.classify(unit).float(), []
        for rows, logits in in_chunks(unit, z):
            along = (rows @ self._whitening).square()
            q = along.sum(dim=1, keepdim=True)
            inside = (along / self._whitening.square().sum(dim=0)).sum(dim=1, keepdim=True)
            log_p = logits.double().log_softmax(dim=1)
            # p / (p + (1 − p) p^κ) is the sigmoid of log p^(1 − κ) − log(1 − p), and 1 − κ is the smaller
            # of 1 / (1 + q) and the squared length inside the span, 0 for a feature of 0.
            log_rest = torch.log(-torch.expm1(log_p))
            rest = torch.minimum(1 / (1 + q), inside)
            found.append(torch.sigmoid(rest * log_p - log_rest).sum(dim=1).log())
        regret = copy_to_device(torch.cat(found), unit.device)
        return -regret / (math.log(z.shape[1]) or 1.0)
