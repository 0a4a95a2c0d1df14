"""CADRef: class-aware decoupled relative features."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.detectors.moments import mean_of, means_of

#: Smaller energies and lengths count as this one.
_LEAST = 1e-6


@register_detector(
    "cadref",
    paper=Paper(
        "CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature Leveraging",
        2025,
        "2503.00325",
    ),
)
@dataclass
class CADRef(SetUpDetector):
    """Distance to the predicted class's mean, of features that raise its logit and of those that lower it."""

    equation = (
        r"S(x) = -\frac{E_+}{L(z)} - \frac{E_-}{\bar{L}}, \quad L(z) = \log \sum_c e^{z_c} \\ "
        r"E_\pm = \frac{\| \max(0, \pm \, \text{sign}(w_{\hat y}) (\varphi - \mu_{\hat y})) \|_1}"
        r"{\| \varphi \|_1} \\ "
        r"\mu_c, \bar{L} = \text{means over set-up images, predicted as } c \text{ and all}"
    )
    differs = (
        "Of the paper's four logit scores L it is Energy, which its authors recommend. An energy that is not "
        "positive, which their networks do not have, counts as 1e-6. A class that no set-up image is "
        "predicted as has the mean of all."
    )

    setup_reads = frozenset({"features", "logits", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute a mean feature per predicted class [C, D], the signs of W, and the mean energy."""
        features, logits = outputs.features, outputs.logits
        self._signs = outputs.linear()[0].sign()
        means, counts = means_of(features, logits.argmax(dim=1), logits.shape[1])
        means = torch.where(counts[:, None] > 0, means, mean_of(features))
        self._means = means.float().to(features.device)
        self._energy = float(self._energies(logits).double().mean())

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −E₊ / L(z) − E₋ / mean L, [N]."""
        features, predicted = outputs.features, outputs.logits.argmax(dim=1)
        apart = (features - self._means[predicted]) * self._signs[predicted]
        raising, lowering = (part.clamp(min=0).sum(dim=1) for part in (apart, -apart))
        sizes = features.abs().sum(dim=1).clamp(min=_LEAST)
        return -(raising / self._energies(outputs.logits) + lowering / self._energy) / sizes

    @staticmethod
    def _energies(logits: Tensor) -> Tensor:
        return logits.logsumexp(dim=1).clamp(min=_LEAST)
