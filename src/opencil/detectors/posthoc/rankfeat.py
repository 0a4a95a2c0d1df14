"""RankFeat: maps without their first singular component."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import BadInput, Detector, Outputs, Paper, register_detector
from opencil.validation import Positive

#: Squarings of M Mᵀ, after which only the first singular direction remains.
_SQUARINGS = 10


@register_detector(
    "rankfeat",
    paper=Paper("RankFeat: Rank-1 Feature Removal for Out-of-distribution Detection", 2022, "2209.08590"),
)
@dataclass
class RankFeat(Detector):
    """Energy without the first singular component of the last maps, and of the maps before them."""

    equation = (
        r"S(x) = T \log \sum_c e^{z_c / T} \\ "
        r"z = \frac{1}{2} h(\text{mean of } M') + \frac{1}{2} h(\text{last stage of } N') \\ "
        r"M' = M - \sigma_1 u_1 v_1^T \text{ of the last maps } M \text{, [channels, pixels]; } "
        r"N' \text{ likewise of those before the last stage}"
    )

    differs = (
        "For several backbones, as DER's, maps are concatenated in one matrix, and each backbone runs its "
        "own last stage. `maps = last` is a variant in the paper, for models whose last stage cannot run "
        "separately."
    )

    temperature: Positive = 1.0
    maps: Literal["both", "last"] = "both"  #: that lose a component: the last, or also the maps before them

    reads = frozenset({"features", "head", "layers"})

    def scores(self, outputs: Outputs) -> Tensor:
        """Return T · logsumexp(z / T), [N], from φ − u₁ u₁ᵀ φ: φ is the mean of M."""
        classify, energies, start = outputs.classify, [], 0
        assert classify is not None
        for maps in outputs.layers():
            last = maps[-1]
            features = outputs.features[start : start + len(last)]
            if not _equal_features(last.mean(dim=(2, 3)), features):
                raise BadInput("RankFeat needs features that are the mean over pixels of the last maps")
            if self.maps == "both" and not start:
                _check_last_stage(outputs, maps)
            u = first_direction(last)
            z = classify(features - (features * u).sum(dim=1, keepdim=True) * u).float()
            if self.maps == "both":
                z = (z + classify(outputs.last_stage(remove_first(maps[-2]))).float()) / 2
            energies.append(self.temperature * (z / self.temperature).logsumexp(dim=1))
            start += len(last)
        return torch.cat(energies)


def _check_last_stage(outputs: Outputs, maps: list[Tensor]) -> None:
    """Refuse a model whose last stage does not compute the features from the maps before it."""
    few = [stage[:8] for stage in maps]
    try:
        if len(few) < 2 or not _equal_features(outputs.last_stage(few[-2]), outputs.features[: len(few[0])]):
            raise BadInput("RankFeat needs a last stage that computes the features from the maps before it")
    except BadInput as refusal:
        raise BadInput(f"{refusal}; with maps = last RankFeat does not need it") from None


def remove_first(maps: Tensor) -> Tensor:
    """Return maps without the first singular component of each image, [B, C, H, W]."""
    matrix, u = maps.flatten(2), first_direction(maps)[:, :, None]
    return (matrix - u @ (u.mT @ matrix)).view(maps.shape)


def first_direction(maps: Tensor) -> Tensor:
    """Return the first left singular vector [B, C] of each image's maps as a matrix [C, pixels].

    Repeated squaring leaves only the first direction of M Mᵀ, or of Mᵀ M if it is smaller; a GPU is far
    slower at the singular value decomposition of thousands of small matrices.
    """
    matrix = maps.flatten(2)
    # Scaled, so that squares neither overflow nor vanish.
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
    # Each further product reduces the rounding errors of the squares.
    for _ in range(3):
        found = F.normalize(square @ found, dim=1)
    return F.normalize(found if wide else matrix @ found, dim=1)[:, :, 0]


def _equal_features(found: Tensor, features: Tensor) -> bool:
    least = 1e-3 * float(features.abs().max())
    return found.shape == features.shape and torch.allclose(found, features, rtol=1e-3, atol=least)
