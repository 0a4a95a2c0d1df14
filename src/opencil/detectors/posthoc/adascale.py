"""AdaSCALE: SCALE with a percentile for each sample."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from opencil import BadInput, Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.posthoc.odin import image_gradient
from opencil.detectors.posthoc.shaping import Percentile
from opencil.engine.forward import Inputs, evaluating
from opencil.nets.model import Classifier
from opencil.validation import Bound, Count, NonNegative, PositiveFraction

#: Percentage of features.
Percent = Annotated[float, Bound(gt=0, le=100)]


@register_detector(
    "adascale", paper=Paper("AdaSCALE: Adaptive Scaling for OOD Detection", 2025, "2503.08023")
)
@dataclass
class AdaSCALE(SetUpDetector):
    """SCALE whose percentile falls with the shift of the largest features when some pixels are moved."""

    equation = (
        r"S(x) = \log \sum_c e^{h(r \varphi)_c}, \quad "
        r"r = \exp \frac{\sum_j \varphi_j^+}{\sum_{j \in \text{above the percentile}} \varphi_j^+} \\ "
        r"\text{percentile} = q_0 + (1 - \hat{F}(Q)) (q_1 - q_0), \quad "
        r"\hat{F} = \text{distribution of } Q \text{ over set-up images} \\ "
        r"Q = \sum_{j \in \text{largest } k_1} \varphi_j(x')^+ "
        r"+ \lambda \sum_{j \in \text{largest } k_2} | \varphi_j(x) - \varphi_j(x') | \\ "
        r"x' = x + \epsilon \, \text{sign} \nabla_x z_{\hat y}(x) "
        r"\text{ in the pixels of the smallest gradient}"
    )
    differs = (
        "AdaSCALE-A with OpenOOD's values; both percentiles are chosen on OOD images there. The authors' own "
        "code exchanges k₁ and k₂ in one of two places. ε is for normalised images. At least one feature "
        "counts as the largest: 1 % of 64 features are none."
    )

    low: Percentile = 75.0
    high: Percentile = 85.0
    k1: Percent = 5.0  #: percentage of the features
    k2: Percent = 1.0
    weight: NonNegative = 10.0  #: λ
    pixels: PositiveFraction = 0.05  #: share of the values of an image that are moved
    epsilon: NonNegative = 0.5
    batch_size: Count = 256  #: a gradient needs all activations

    reads = frozenset({"images"})

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise BadInput(f"low = {self.low} is not allowed: it should be at most high = {self.high}")

    def set_up(self, outputs: Outputs) -> None:
        """Store the shifts Q of the set-up images, sorted."""
        assert outputs.inputs is not None
        self._known = self._shifts(outputs.inputs)[1].sort().values

    def scores(self, outputs: Outputs) -> Tensor:
        """Return logsumexp(h(r φ)), [N]."""
        inputs = outputs.inputs
        assert inputs is not None
        features, shifts = self._shifts(inputs)
        above = 1 - torch.searchsorted(self._known, shifts, right=True) / len(self._known)
        percentile = self.low + above * (self.high - self.low)
        width = features.shape[1]
        kept = (width - (width * percentile / 100).round()).long().clamp(1, width)
        sums = features.clamp(min=0).sort(dim=1, descending=True).values.cumsum(dim=1)
        largest = sums.gather(1, kept[:, None] - 1)
        ratio = torch.where(largest > 0, sums[:, -1:] / largest, 1.0)
        with evaluating(inputs.model):
            return inputs.model.classify(features * ratio.exp()).float().logsumexp(dim=1)

    def _shifts(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return features [N, D] and the shift Q of each image, [N]."""
        parts = (part for images in inputs.batches() for part in torch.split(images, self.batch_size))
        with evaluating(inputs.model):
            found = [self._shift(inputs.model, part) for part in parts]
        features, shifts = (torch.cat(tensors) for tensors in zip(*found, strict=True))
        return features, shifts

    def _shift(self, model: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
        gradient = image_gradient(model, images, lambda logits: logits.amax(dim=1).sum())
        flat = gradient.flatten(1)
        chosen = flat.abs().argsort(dim=1, stable=True)[:, : int(flat.shape[1] * self.pixels)]
        step = torch.zeros_like(flat).scatter_(1, chosen, self.epsilon * flat.gather(1, chosen).sign())
        features, moved = (model.features(x).float() for x in (images, images + step.view_as(images)))
        order = features.argsort(dim=1, descending=True, stable=True)
        first, second = (
            order[:, : max(1, int(features.shape[1] * percent / 100))] for percent in (self.k1, self.k2)
        )
        perturbed = moved.clamp(min=0).gather(1, first).sum(dim=1)
        return features, perturbed + self.weight * (features - moved).abs().gather(1, second).sum(dim=1)
