"""BER: bi-directional energy regularisation, the paper's own detector."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from opencil import Paper, register_detector
from opencil.detectors.finetune.energy_margins import EnergyTuner
from opencil.detectors.finetune.mixing import Concentration, Mixer, mix_classes
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.detectors.finetune.views import ViewSource
from opencil.validation import Fraction


@register_detector(
    "ber",
    paper=Paper(
        "OpenCIL: Benchmarking Out-of-Distribution Detection in Class-Incremental Learning",
        2024,
        "2407.06045",
    ),
)
@dataclass
class BER(Mixer, EnergyTuner):
    """Energies pushed up for mixtures of new images (NTER), down for a slightly mixed memory (OTER)."""

    equation = (
        r"L = \text{CE}(x, y) + \text{CE}(\bar m, y_m) "
        r"+ \alpha \left( \text{in}(x) + \text{out}(\bar x) + \text{in}(\bar m) \right) \\ "
        r"\bar x = b x_i + (1 - b) x_j \\ \bar m = \lambda x + (1 - \lambda) m"
    )
    differs = (
        "The paper mixes images of different classes, as here; its code mixes any two. The paper's Eq. 2 "
        "prints x and x̄ exchanged in the energy terms. Fixed margins ask a head whose energies are small, as "
        "BiC's and WA's, to multiply its logits, and lose AUC there; `margins: model` follows the model."
    )

    nter: bool = True
    oter: bool = True
    concentration: Concentration = 1.0  #: of b ~ Beta(1, 1), the weight of a new image in a mixture
    share: Fraction = 0.002  #: λ, the weight of a new image in a memory image
    corrected: bool = True  #: f has the corrections of the model's head, as BiC's, or its linear layer alone

    named = {
        **EnergyTuner.named,
        "model-margins": {"margins": "model"},
        "uncorrected": {"corrected": False},
    }

    def head(self, source: ViewSource) -> nn.Module:
        """Return the initial f, without corrections of its logits unless it is ``corrected``."""
        head = super().head(source)
        return head if self.corrected else next(m for m in head.modules() if isinstance(m, nn.Linear))

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return CE(x, y) + CE(m̄, y_m) + α (L_n + L_o)."""
        x, m = batch.current, batch.memory
        z = extra(x.features)
        total = F.cross_entropy(z, x.labels)
        if self.nter:
            mixed, possible = mix_classes(batch)
            features = batch.source.features(mixed)
            outside = self.hinge_out(extra, features, extra(features)) * possible
            total = total + self.alpha * (self.hinge_in(extra, x.features, z) + outside)
        if m is None:
            return total
        if not self.oter:
            return total + F.cross_entropy(extra(m.features), m.labels)
        mixed = self.share * x.images + (1 - self.share) * m.images
        features = batch.source.features(mixed)
        z = extra(features)
        return total + F.cross_entropy(z, m.labels) + self.alpha * self.hinge_in(extra, features, z)
