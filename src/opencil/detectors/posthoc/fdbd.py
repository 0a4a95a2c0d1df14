"""fDBD: feature distance to decision boundaries."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64
from opencil.detectors.moments import mean_of


@register_detector(
    "fdbd", paper=Paper("Fast Decision Boundary based Out-of-Distribution Detector", 2024, "2312.11536")
)
@dataclass
class FDBD(SetUpDetector):
    """Mean distance to the decision boundaries of other classes, over the distance to the mean feature."""

    title = "fDBD"
    equation = (
        r"S(x) = \frac{1}{(C - 1) \| \varphi - \bar\varphi \|} "
        r"\sum_{c \ne \hat y} \frac{z_{\hat y} - z_c}{\| w_{\hat y} - w_c \|} \\ "
        r"\bar\varphi = \text{mean of set-up features}"
    )
    differs = (
        "OpenOOD chooses on OOD images whether to divide by the distance, as the paper does, or by the "
        "feature's norm, `@norm`. Classes of equal weights have no boundary and add nothing."
    )

    divided_by: Literal["distance", "norm"] = "distance"

    named = {**SetUpDetector.named, "norm": {"divided_by": "norm"}}
    reads = frozenset({"features", "logits"})
    setup_reads = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute the mean feature [D], and 1 / ‖w_a − w_b‖ [C, C]."""
        features, weight = outputs.features, as_float64(outputs.linear()[0])
        apart = torch.stack([(weight - row).norm(dim=1) for row in weight])
        nearness = torch.where(apart > 0, 1 / apart, 0.0)
        self._nearness, self._mean = (t.float().to(features.device) for t in (nearness, mean_of(features)))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return Mean of (z_ŷ − z_c) / ‖w_ŷ − w_c‖ over ‖φ − mean φ‖, [N]."""
        features, logits = outputs.features, outputs.logits
        highest, predicted = logits.max(dim=1, keepdim=True)
        distances = (highest - logits) * self._nearness[predicted[:, 0]]
        scale = features - self._mean if self.divided_by == "distance" else features
        others = max(1, logits.shape[1] - 1)
        length = scale.norm(dim=1)
        score: Tensor = distances.sum(dim=1) / others / length.clamp(min=1e-12)
        return score if self.divided_by == "distance" else torch.where(length > 0, score, 0.0)
