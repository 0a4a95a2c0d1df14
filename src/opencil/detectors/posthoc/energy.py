"""Energy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import LogitDetector, Outputs, Paper, register_detector
from opencil.validation import Positive


@register_detector("energy", paper=Paper("Energy-based Out-of-distribution Detection", 2020, "2010.03759"))
@dataclass
class Energy(LogitDetector):
    """Negative free energy of the logits: T · logsumexp(z / T)."""

    equation = r"S(x) = T \log \sum_c e^{z_c / T}"

    temperature: Positive = 1.0

    def scores(self, outputs: Outputs) -> Tensor:
        """Return T · logsumexp(z / T), [N]."""
        return self.temperature * torch.logsumexp(outputs.logits / self.temperature, dim=1)
