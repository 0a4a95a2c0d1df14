"""Residual: what the principal space of the set-up features does not hold."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from opencil.data.precision import widened
from opencil.detectors.detector import Reads, SetUpDetector
from opencil.detectors.moments import in_chunks, products_of
from opencil.engine.forward import Outputs
from opencil.errors import BadInput
from opencil.registry import Paper, register_detector
from opencil.validation import Whole

VIM = Paper("ViM: Out-Of-Distribution with Virtual-logit Matching", 2022, "2203.10807")
#: Directions whose eigenvalue is a smaller part of the largest are roundings of float32 features.
_ROUNDING = 1e-12


@register_detector("residual", paper=VIM)
@dataclass
class Residual(SetUpDetector):
    """Negative length of what lies outside the principal space of the set-up features: −‖R^T(φ − u)‖."""

    equation: ClassVar[str] = (
        r"S(x) = -\| R^T (\varphi - u) \| \\ u = -W^{+} b \\ "
        r"R = \text{eigenvectors of } \sum_j (\varphi_j - u)(\varphi_j - u)^T \text{ after the first } d"
    )
    differs: ClassVar[str] = (
        "d is by the authors' code 1000 of 2048 features or more, 512 of 768 or more, else half of them; "
        "OpenOOD begins with 256 of 512 and chooses on OOD images. A principal space has no direction that "
        "the set-up features do not have."
    )

    dimensions: Whole = 0  #: d; 0: by the features' width

    reads: ClassVar[frozenset[Reads]] = frozenset({"features"})
    setup_reads: ClassVar[frozenset[Reads]] = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """u [D] and R [D, D − d], in float64."""
        weight, bias = map(widened, outputs.linear())
        width = outputs.features.shape[1]
        first = self.dimensions or authors_dimensions(width)
        if first >= width:
            raise BadInput(
                f"{type(self).__name__}'s dimensions = {first} leave nothing of {width} features: fewer are "
                "needed"
            )
        self._origin = -torch.linalg.pinv(weight) @ bias
        # The largest last.
        values, vectors = torch.linalg.eigh(products_of(outputs.features, self._origin[None]))
        first = min(first, int((values > _ROUNDING * values[-1]).sum()))
        self._rest = vectors[:, : width - first]

    def scores(self, outputs: Outputs) -> Tensor:
        """−‖R^T(φ − u)‖, [N]."""
        return -self.lengths(outputs.features)

    def lengths(self, features: Tensor) -> Tensor:
        """‖R^T(φ − u)‖ of each sample, [N]."""
        found = [((part - self._origin) @ self._rest).norm(dim=1) for (part,) in in_chunks(features)]
        return torch.cat(found).float().to(features.device)


def authors_dimensions(width: int) -> int:
    """d of features of a width."""
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2
