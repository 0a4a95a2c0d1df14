"""ViM: virtual-logit matching."""

from dataclasses import dataclass

from torch import Tensor

from opencil import Outputs, register_detector
from opencil.detectors.posthoc.residual import VIM, Residual


@register_detector("vim", paper=VIM)
@dataclass
class ViM(Residual):
    """Energy minus a virtual logit, the residual in the scale of logits: logsumexp(z) − α‖R^T(φ − u)‖."""

    equation = (
        r"S(x) = \log \sum_c e^{z_c} - \alpha \| R^T (\varphi - u) \| \\ "
        r"\alpha = \frac{\sum_j \max_c z_{jc}}{\sum_j \| R^T (\varphi_j - u) \|} \text{ over set-up images}"
    )
    differs = (
        "If the principal space contains all set-up features, there is no residual to compare with: α is 0, "
        "and the score is Energy."
    )

    reads = frozenset({"features", "logits"})
    setup_reads = frozenset({"features", "logits", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute u, R and α."""
        super().set_up(outputs)
        lengths = self.lengths(outputs.features).double().mean()
        whole = outputs.features.norm(dim=1).double().mean()
        largest = outputs.logits.amax(dim=1).double().mean()
        # Smaller mean residuals, relative to the mean feature, are rounding errors.
        self._alpha = float(largest / lengths) if lengths > 1e-6 * whole else 0.0

    def scores(self, outputs: Outputs) -> Tensor:
        """Return logsumexp(z) − α‖R^T(φ − u)‖, [N]."""
        return outputs.logits.logsumexp(dim=1) - self._alpha * self.lengths(outputs.features)
