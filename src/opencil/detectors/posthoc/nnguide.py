"""NNGuide: nearest-neighbour guidance."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import compute_by_parts
from opencil.engine.seeding import generator
from opencil.validation import Count, PositiveFraction, Whole


@register_detector(
    "nnguide", paper=Paper("Nearest Neighbor Guidance for Out-of-Distribution Detection", 2023, "2309.14888")
)
@dataclass
class NNGuide(SetUpDetector):
    """Energy times the mean similarity to the K nearest of a bank of set-up features, scaled by energy."""

    equation = (
        r"S(x) = -E(x) \cdot \frac{1}{K} \sum_{j \in \text{largest } K} "
        r"\langle \tfrac{\varphi}{\|\varphi\|}, b_j \rangle \\ "
        r"b_j = -E(x_j) \tfrac{\varphi_j}{\|\varphi_j\|}"
    )
    differs = (
        "NNGuide is the exception in the paper's code: its bank is one random batch of augmented images."
    )

    neighbours: Count = 100
    share: PositiveFraction = 0.01
    smallest_bank: Count = 128
    seed: Whole = 0

    named = {**SetUpDetector.named, "released": {"setup": "batch"}}

    @property
    def fewest(self) -> int:
        """Return the number of neighbours."""
        return self.neighbours

    def set_up(self, outputs: Outputs) -> None:
        """Store b_j = Energy(x_j) · φ_j / ‖φ_j‖ of a random share of the set-up images."""
        count = len(outputs)
        size = min(count, max(self.smallest_bank, self.neighbours, round(self.share * count)))
        chosen = torch.randperm(count, generator=generator(self.seed, "nnguide"))[:size]
        chosen = chosen.to(outputs.features.device)
        energy = outputs.logits[chosen].logsumexp(dim=1, keepdim=True)
        self._bank = energy * F.normalize(outputs.features[chosen], dim=1)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return Energy(x) · mean of the K largest ⟨φ / ‖φ‖, b_j⟩, [N]."""
        features = F.normalize(outputs.features, dim=1)
        guidance = compute_by_parts(self._guidance, 2 * len(self._bank), features)
        return outputs.logits.logsumexp(dim=1) * guidance

    def _guidance(self, unit: Tensor) -> Tensor:
        return (unit @ self._bank.T).topk(self.neighbours, dim=1, sorted=False).values.mean(dim=1)
