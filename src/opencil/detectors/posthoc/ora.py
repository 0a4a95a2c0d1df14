"""ORA: relative angles."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64, copy_to_device
from opencil.detectors.moments import in_chunks, mean_of


@register_detector(
    "ora", paper=Paper("Out-of-Distribution Detection with Relative Angles", 2025, "2410.04525")
)
@dataclass
class ORA(SetUpDetector):
    """Largest angle, seen from the mean feature, between a feature and its projections on boundaries."""

    equation = (
        r"S(x) = \max_{c \ne \hat y} \angle (\varphi - \bar\varphi, \varphi_c - \bar\varphi) \\ "
        r"\varphi_c = \varphi - \frac{z_{\hat y} - z_c}{\| w_{\hat y} - w_c \|^2} (w_{\hat y} - w_c) \\ "
        r"\bar\varphi = \text{mean of set-up features}"
    )
    differs = (
        "In radians; the authors' code divides by π. Their mean is of class means: the same where classes "
        "have equally many images, as in the memory. Classes of equal weights have no boundary and add none."
    )

    setup_reads = frozenset({"features", "linear"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute W [C, D], ‖w_a − w_b‖² [C, C] and the mean feature [D], in float64."""
        self._weight, self._mean = as_float64(outputs.linear()[0]), mean_of(outputs.features)
        self._apart = torch.stack([(self._weight - row).square().sum(dim=1) for row in self._weight])

    def scores(self, outputs: Outputs) -> Tensor:
        """Return the largest angle, [N]."""
        found = [self._angles(*part).amax(dim=1) for part in in_chunks(outputs.features, outputs.logits)]
        return copy_to_device(torch.cat(found), outputs.features.device).float()

    def _angles(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the angle to the boundary of each class, [n, C].

        With g = φ − φ̄, v = w_ŷ − w_c and the step t v to the boundary, it is that of g and g − t v: the
        arctangent of t √(‖g‖²‖v‖² − ⟨g, v⟩²) over ‖g‖² − t ⟨g, v⟩. Near 0 an arccosine would lose digits.
        """
        centred, logits = features - self._mean, as_float64(logits)
        highest, predicted = logits.max(dim=1, keepdim=True)
        apart = self._apart[predicted[:, 0]]
        steps = torch.where(apart > 0, (highest - logits) / apart, 0.0)
        along = centred @ self._weight.T
        along = along.gather(1, predicted) - along
        length = centred.square().sum(dim=1, keepdim=True)
        across = (length * apart - along.square()).clamp(min=0).sqrt()
        return torch.atan2(steps * across, length - steps * along)
