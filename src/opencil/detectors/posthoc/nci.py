"""NCI: neural collapse inspired."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import mean_of
from opencil.validation import NonNegative


@register_detector(
    "nci",
    paper=Paper("Detecting Out-of-Distribution Through the Lens of Neural Collapse", 2025, "2311.01479"),
)
@dataclass
class NCI(SetUpDetector):
    """Projection of the predicted class's weights on the centred feature, and a fraction of the L1 norm."""

    equation = (
        r"S(x) = \frac{\langle w_{\hat y}, \varphi - \bar\varphi \rangle}{\| \varphi - \bar\varphi \|} "
        r"+ \alpha \| \varphi \|_1 \\ \bar\varphi = \text{mean of set-up features}"
    )
    differs = (
        "The authors' code chooses α on OOD images, from 0.0001, the default here, to 0.1; pytorch-ood has "
        "0: `@pytorch-ood`."
    )

    alpha: NonNegative = 1e-4

    named = {**SetUpDetector.named, "pytorch-ood": {"alpha": 0.0}}
    reads = frozenset({"features", "logits"})
    setup_reads = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute W [C, D] and the mean feature [D]."""
        self._weight, _ = outputs.linear()
        self._mean = mean_of(outputs.features).float().to(outputs.features.device)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return ⟨w_ŷ, φ − mean φ⟩ / ‖φ − mean φ‖ + α‖φ‖₁, [N]."""
        features, predicted = outputs.features, outputs.logits.argmax(dim=1)
        near = (self._weight[predicted] * F.normalize(features - self._mean, dim=1)).sum(dim=1)
        return near + self.alpha * features.abs().sum(dim=1)
