"""ReAct: rectified activations."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from opencil.detectors.detector import Reads, SetUpDetector
from opencil.engine.forward import Outputs
from opencil.registry import Paper, register_detector
from opencil.validation import Bound


@register_detector(
    "react",
    paper=Paper("ReAct: Out-of-distribution Detection With Rectified Activations", 2021, "2111.12797"),
)
@dataclass
class ReAct(SetUpDetector):
    """Energy of features cut off at a percentile q of the set-up features: logsumexp(h(min(φ, q)))."""

    equation: ClassVar[str] = (
        r"S(x) = \log \sum_c e^{h(\min(\varphi, q))_c} \\ "
        r"q = \text{percentile of all set-up features}"
    )

    percentile: Annotated[float, Bound(ge=0, le=100)] = 90.0

    reads: ClassVar[frozenset[Reads]] = frozenset({"features", "head"})

    def set_up(self, outputs: Outputs) -> None:
        """The percentile q of all feature values together, interpolated linearly."""
        # numpy selects in linear time; torch.quantile refuses more than 2^24 values.
        self._limit = float(np.percentile(outputs.features.cpu().numpy(), self.percentile))

    def scores(self, outputs: Outputs) -> Tensor:
        """logsumexp(h(min(φ, q))), [N]."""
        assert outputs.classify is not None
        return outputs.classify(outputs.features.clamp(max=self._limit)).float().logsumexp(dim=1)
