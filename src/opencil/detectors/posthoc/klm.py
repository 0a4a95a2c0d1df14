"""KLM: KL matching."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64
from opencil.detectors.moments import rows_at_a_time


@register_detector(
    "klm", paper=Paper("Scaling Out-of-Distribution Detection for Real-World Settings", 2022, "1911.11132")
)
@dataclass
class KLM(SetUpDetector):
    """Nearness to a class's mean prediction: −min KL(p ‖ q_c), q_c from set-up images predicted as c."""

    equation = (
        r"S(x) = -\min_c \text{KL}(p \,\|\, q_c) \\ "
        r"q_c = \text{mean} \{ p_j : \text{argmax} p_j = c \}"
    )

    named = {**SetUpDetector.named, "released": {"setup": "memory+test"}}
    reads = frozenset({"logits"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute log q_c [C, C]; q_c is one-hot if no image is predicted as c.

        Probabilities are at least the smallest normal float32 (1.2e-38), so that every divergence is finite.
        """
        logits = outputs.logits
        classes = logits.shape[1]
        total = as_float64(logits.new_zeros(classes, classes))
        for z in map(as_float64, torch.split(logits, rows_at_a_time(4 * classes))):
            predicted = F.one_hot(z.argmax(dim=1), classes).double()
            total += predicted.T @ z.softmax(dim=1)
        count = total.sum(dim=1, keepdim=True)  # softmax rows sum to 1
        q = torch.where(count > 0, total / count, torch.eye(classes, device=total.device))
        self._log_q = q.clamp(min=torch.finfo(torch.float32).tiny).log().float().to(logits.device)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −min_c KL(p ‖ q_c) = max_c (p · log q_c) − Σ p log p, [N]."""
        p = outputs.logits.softmax(dim=1)
        entropy: Tensor = torch.special.entr(p).sum(dim=1)
        return (p @ self._log_q.T).amax(dim=1) + entropy
