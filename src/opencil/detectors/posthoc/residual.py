"""Residual: the part of a feature outside the principal space of the set-up features."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import BadInput, Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64
from opencil.detectors.moments import in_chunks, products_of
from opencil.validation import Whole

VIM = Paper("ViM: Out-Of-Distribution with Virtual-logit Matching", 2022, "2203.10807")


@register_detector("residual", paper=VIM)
@dataclass
class Residual(SetUpDetector):
    """Negative length of the part outside the principal space of the set-up features: −‖R^T(φ − u)‖."""

    equation = (
        r"S(x) = -\| R^T (\varphi - u) \| \\ u = -W^{+} b \\ "
        r"R = \text{eigenvectors of } \sum_j (\varphi_j - u)(\varphi_j - u)^T \text{ after the first } d"
    )
    differs = (
        "As in the authors' code, d is 1000 for at least 2048 features, 512 for at least 768, else half of "
        "them; OpenOOD chooses it on OOD images. The principal space lies within the span of the set-up "
        "features."
    )

    dimensions: Whole = 0  #: d; 0: by the width of the features

    reads = frozenset({"features"})
    setup_reads = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute u [D] and R [D, D − d], in float64."""
        weight, bias = map(as_float64, outputs.linear())
        width = outputs.features.shape[1]
        first = self.dimensions or (1000 if width >= 2048 else 512 if width >= 768 else width // 2)
        if first >= width:
            raise BadInput(f"dimensions = {first} is not allowed: it should be below the {width} features")
        self._origin = -torch.linalg.pinv(weight) @ bias
        values, vectors = torch.linalg.eigh(products_of(outputs.features, self._origin[None]))
        # Smaller eigenvalues are rounding errors of float32 features.
        first = min(first, int((values > 1e-12 * values[-1]).sum()))
        self._rest = vectors[:, : width - first]

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −‖R^T(φ − u)‖, [N]."""
        return -self.lengths(outputs.features)

    def lengths(self, features: Tensor) -> Tensor:
        """Return ‖R^T(φ − u)‖ of each sample, [N]."""
        found = [((part - self._origin) @ self._rest).norm(dim=1) for (part,) in in_chunks(features)]
        return torch.cat(found).float().to(features.device)
