"""RankFeat: maps without their first singular component."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.detectors.detector import Detector, Reads
from opencil.engine.forward import Outputs
from opencil.errors import BadInput
from opencil.registry import Paper, register_detector
from opencil.validation import Positive

#: The first singular vector's share in M Mᵀ to the power 2 to the so-manieth is all that is left.
_SQUARINGS = 10


@register_detector(
    "rankfeat",
    paper=Paper("RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection", 2022, "2209.08590"),
)
@dataclass
class RankFeat(Detector):
    """Energy of the last maps' mean when their first singular component is taken out of them."""

    equation: ClassVar[str] = (
        r"S(x) = T \log \sum_c e^{h(\text{mean of } M')_c / T} \\ "
        r"M' = M - \sigma_1 u_1 v_1^T, \quad M = \text{the last maps, [channels, pixels]}"
    )

    differs: ClassVar[str] = (
        "The authors also take the first component out of the maps before the last stage, run that stage on "
        "what is left, and average both logits; here it is the last maps alone, a variant in their paper."
    )

    temperature: Positive = 1.0

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "head", "layers"})

    def scores(self, outputs: Outputs) -> Tensor:
        """T · logsumexp(h(φ − u₁ u₁ᵀ φ) / T), [N]: φ is the mean of M, and u₁ u₁ᵀ M its first component."""
        classify, energies, start = outputs.classify, [], 0
        assert classify is not None
        for maps in outputs.layers():
            last = maps[-1]
            features, start = outputs.features[start : start + len(last)], start + len(last)
            if last.shape[:2] != features.shape or not _same(last.mean(dim=(2, 3)), features):
                raise BadInput(
                    "RankFeat needs features that are the mean over pixels of the last maps: this model's "
                    "are made of them in another way"
                )
            u = first_direction(last)
            z = classify(features - (features * u).sum(dim=1, keepdim=True) * u).float()
            energies.append(self.temperature * (z / self.temperature).logsumexp(dim=1))
        return torch.cat(energies)


def first_direction(maps: Tensor) -> Tensor:
    """The first left singular vector of each image's maps as a matrix [channels, pixels]: [B, channels].

    Squared again and again, M Mᵀ has nothing left but its first direction; a GPU is far slower at the whole
    decomposition of thousands of small matrices. Of M and Mᵀ the one with fewer rows is taken.
    """
    matrix = maps.flatten(2)
    # Neither overflows nor vanishes when it is squared.
    matrix = matrix / matrix.abs().amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    wide = matrix.shape[1] <= matrix.shape[2]
    square = matrix @ matrix.mT if wide else matrix.mT @ matrix
    power = square
    for _ in range(_SQUARINGS):
        trace = power.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None]
        power = power / trace.clamp(min=torch.finfo(maps.dtype).tiny)
        power = power @ power
    column = power.diagonal(dim1=1, dim2=2).argmax(dim=1)
    found = power.gather(2, column[:, None, None].expand(-1, len(power[0]), 1))
    # Roundings of the squares fade with each further product.
    for _ in range(3):
        found = F.normalize(square @ found, dim=1)
    return F.normalize(found if wide else matrix @ found, dim=1)[:, :, 0]


def _same(found: Tensor, features: Tensor) -> bool:
    return torch.allclose(found, features, rtol=1e-3, atol=1e-3 * float(features.abs().max()))
