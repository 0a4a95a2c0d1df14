"""FSA: first-session adaptation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Paper, Schedule, register_learner
from opencil.cil.slda import SLDA
from opencil.data.precision import as_float64
from opencil.nets.class_statistics import ModelWithScatter
from opencil.validation import NonNegative

PAPER = Paper(
    "First Session Adaptation: A Strong Replay-Free Baseline for Class-Incremental Learning",
    2023,
    "2303.13199",
)


@register_learner("fsa", paper=PAPER)
@dataclass(frozen=True)
class FSA(SLDA):
    """The whole backbone is tuned at step 1; then a linear head follows from means and one covariance."""

    equation = (
        r"L = \text{CE}(z, y) \text{ at step 1, then} \\ "
        r"z_c = w_c^\top \varphi - \tfrac{1}{2} w_c^\top \mu_c, \quad w_c = (\Sigma + I)^{-1} \mu_c"
    )
    differs = (
        "As in its authors' code, Σ is the covariance of all features, not that within classes. Their head "
        "has a dropout of 0.5 while the backbone is tuned, and batches of 256; here there is none, and "
        "batches have the benchmark's size. On a frozen backbone nothing is tuned."
    )

    first: Schedule = Schedule(epochs=200, lr=0.005, optimiser="adam", milestones=(50, 100, 150), factor=0.7)
    shrinkage: NonNegative = 1.0  #: added to the variances

    def regularise(self, model: ModelWithScatter) -> Tensor:
        """Return the matrix to invert, [D, D]: the covariance of all images plus a multiple of I."""
        counts, means, within = map(as_float64, (model.counts, model.means, model.scatter))
        centred = means - counts @ means / counts.sum()
        spread = (within + (counts * centred.T) @ centred) / (counts.sum() - 1).clamp(min=1)
        return spread + self.shrinkage * torch.eye(len(spread)).to(spread)
