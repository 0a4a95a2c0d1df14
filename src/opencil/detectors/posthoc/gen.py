"""GEN: generalised entropy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import LogitDetector, Outputs, Paper, register_detector
from opencil.validation import Count, Positive


@register_detector(
    "gen",
    paper=Paper(
        "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection",
        2023,
        # arXiv does not have it.
        url="https://openaccess.thecvf.com/content/CVPR2023/html/Liu_GEN_Pushing_the_Limits_of_"
        "Softmax-Based_Out-of-Distribution_Detection_CVPR_2023_paper.html",
    ),
)
@dataclass
class GEN(LogitDetector):
    """Negative generalised entropy of the M largest probabilities: −Σ p^γ (1 − p)^γ."""

    equation = r"S(x) = -\sum_{c \in \text{largest } M} p_c^{\gamma} (1 - p_c)^{\gamma}"

    gamma: Positive = 0.1
    largest: Count = 100

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −Σ p^γ (1 − p)^γ over the M largest p, or over all where there are fewer classes, [N].

        In logarithms: with γ = 0.1 even p = 1e-9 matters, and 1 − p of a confident class would round to 0.
        """
        z = outputs.logits.sort(dim=1, descending=True).values
        log_rest = z[:, 1:].logsumexp(dim=1, keepdim=True)  # all but the largest; −inf for one class
        log_all = torch.logaddexp(z[:, :1], log_rest)
        log_p = (z - log_all)[:, : self.largest]
        # For the largest p, 1 − p is the sum of the other p; these are at most ½ and safe to subtract from 1.
        log_q = torch.cat([log_rest - log_all, torch.log1p(-log_p[:, 1:].exp())], dim=1)
        return -(self.gamma * (log_p + log_q)).exp().sum(dim=1)
