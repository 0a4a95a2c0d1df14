"""RankFeat: maps without their first singular component."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
#: Images by which a model's last stage is compared with its features.
_LOOKED_AT = 8


@register_detector(
    "rankfeat",
    paper=Paper("RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection", 2022, "2209.08590"),
)
@dataclass
class RankFeat(Detector):
    """Energy when the first singular component is taken out of the last maps, and of those before them."""

    equation: ClassVar[str] = (
        r"S(x) = T \log \sum_c e^{z_c / T} \\ "
        r"z = \frac{1}{2} h(\text{mean of } M') + \frac{1}{2} h(\text{last stage of } N') \\ "
        r"M' = M - \sigma_1 u_1 v_1^T \text{ of the last maps } M \text{, [channels, pixels]; } "
        r"N' \text{ likewise of those before the last stage}"
    )

    differs: ClassVar[str] = (
        "The authors look at models of one backbone; where there are several, as DER's, their maps are side "
        "by side in one matrix, and each runs its last stage on its own. `maps = last` is a variant in their "
        "paper, for models whose last stage does not run by itself."
    )

    temperature: Positive = 1.0
    maps: Literal["both", "last"] = "both"  #: that lose a component: the last, or those before them too

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "head", "layers"})
    formerly: ClassVar[Mapping[str, Any]] = {"maps": "last"}

    def scores(self, outputs: Outputs) -> Tensor:
        """T · logsumexp(z / T), [N], z by φ − u₁ u₁ᵀ φ: φ is the mean of M, and u₁ u₁ᵀ M its component."""
        classify, energies, start = outputs.classify, [], 0
        assert classify is not None
        for maps in outputs.layers():
            last = maps[-1]
            features = outputs.features[start : start + len(last)]
            if not _same(last.mean(dim=(2, 3)), features):
                raise BadInput(
                    "RankFeat needs features that are the mean over pixels of the last maps: this model's "
                    "are made of them in another way"
                )
            if self.maps == "both" and not start:
                _check_last_stage(outputs, maps)
            u = first_direction(last)
            z = classify(features - (features * u).sum(dim=1, keepdim=True) * u).float()
            if self.maps == "both":
                z = (z + classify(outputs.last_stage(without_first(maps[-2]))).float()) / 2
            energies.append(self.temperature * (z / self.temperature).logsumexp(dim=1))
            start += len(last)
        return torch.cat(energies)


def _check_last_stage(outputs: Outputs, maps: list[Tensor]) -> None:
    """Refuse a model whose last stage does not make the features of the maps before it."""
    few = [stage[:_LOOKED_AT] for stage in maps]
    try:
        if len(few) < 2:
            raise BadInput("RankFeat needs maps of two stages: this model has one")
        if not _same(outputs.last_stage(few[-2]), outputs.features[: len(few[-1])]):
            raise BadInput("RankFeat needs a last stage that makes the features of the maps before it alone")
    except BadInput as refusal:
        raise BadInput(f"{refusal}; RankFeat of the last maps alone does without: maps = last") from None


def without_first(maps: Tensor) -> Tensor:
    """Maps less the first singular component of each image's, [B, C, H, W]."""
    matrix, u = maps.flatten(2), first_direction(maps)[:, :, None]
    return (matrix - u @ (u.mT @ matrix)).view(maps.shape)


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
    least = 1e-3 * float(features.abs().max())
    return found.shape == features.shape and torch.allclose(found, features, rtol=1e-3, atol=least)
