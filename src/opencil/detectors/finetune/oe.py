"""OE: outlier exposure, with BER's mixtures as outliers."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Tuner, register_detector
from opencil.detectors.finetune.mixing import Concentration, Mixer, mix_classes
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.validation import NonNegative


@register_detector("oe", paper=Paper("Deep Anomaly Detection with Outlier Exposure", 2019, "1812.04606"))
@dataclass
class OE(Mixer, Tuner):
    """A head trained by CE, and to predict uniformly on mixtures of new images: a control of BER."""

    equation = (
        r"L = \text{CE}(x, y) + \text{CE}(m, y_m) - w \frac{1}{C} \sum_c \log p_c(\bar x) \\ "
        r"\bar x = b x_i + (1 - b) x_j"
    )
    differs = (
        "A control of BER: the same mixtures, pushed to a uniform prediction instead of above an energy. "
        "The authors' outliers are images of other datasets, and they score by the largest probability."
    )

    weight: NonNegative = 0.5  #: of the mixtures' cross-entropy with the uniform prediction
    concentration: Concentration = 1.0  #: of b ~ Beta(1, 1), the weight of a new image in a mixture

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return CE(x, y) + CE(m, y_m) + w · mean −log p of the mixtures."""
        mixed, possible = mix_classes(batch)
        undecided = -extra(batch.source.features(mixed)).log_softmax(dim=1).mean()
        losses = [F.cross_entropy(extra(views.features), views.labels) for views in batch.parts]
        return sum(losses, self.weight * undecided * possible)
