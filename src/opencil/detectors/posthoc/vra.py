"""VRA: variational rectified activation."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.posthoc.shaping import Percentile, Shaper


@register_detector(
    "vra",
    paper=Paper(
        "VRA: Variational Rectified Activation for Out-of-distribution Detection", 2023, "2302.11716"
    ),
)
@dataclass
class VRA(Shaper, SetUpDetector):
    """Energy of features clipped above a percentile of the set-up features, and set to 0 below another."""

    equation = (
        r"S(x) = \log \sum_c e^{h(\tilde\varphi)_c} \\ "
        r"\tilde\varphi_i = 0 \text{ if } \varphi_i < \alpha_i, \text{ else } \min(\varphi_i, \beta_i) \\ "
        r"\alpha_i, \beta_i = \text{percentiles of set-up feature } i"
    )
    differs = (
        "60 and 95 are the authors' values for CIFAR-100, chosen on Gaussian noise and for ODIN's score. "
        "OpenOOD raises low features to the lower threshold, has one pair of thresholds for all features, "
        "and starts at percentiles 10 and 90, `@openood`."
    )

    low: Percentile = 60.0
    high: Percentile = 95.0
    below: Literal["zero", "low"] = "zero"  #: new value of features below the lower threshold
    thresholds: Literal["each", "all"] = "each"  #: for each feature, or for all together

    named = {
        **SetUpDetector.named,
        "openood": {"low": 10.0, "high": 90.0, "below": "low", "thresholds": "all"},
    }

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is not allowed: it should be at most high = {self.high}")

    def set_up(self, outputs: Outputs) -> None:
        """Compute both percentiles, interpolated linearly: [D] each, or one number."""
        values, axis = outputs.features.cpu().numpy(), 0 if self.thresholds == "each" else None
        found = np.percentile(values, (self.low, self.high), axis=axis).astype(np.float32)
        self._low, self._high = torch.from_numpy(found).to(outputs.features.device)

    def shape(self, features: Tensor) -> Tensor:
        """Return features between the thresholds; those below become 0 or the lower one."""
        raised = 0.0 if self.below == "zero" else self._low
        return torch.where(features < self._low, raised, torch.minimum(features, self._high))
