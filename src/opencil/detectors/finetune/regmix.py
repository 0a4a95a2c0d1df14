"""RegMix: mixup as a regulariser."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Tuner, register_detector
from opencil.detectors.finetune.mixing import Concentration, beta
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.validation import Fraction


@register_detector(
    "regmix",
    paper=Paper(
        "RegMixup: Mixup as a Regularizer Can Surprisingly Improve Accuracy and Out Distribution Robustness",
        2022,
        "2206.14502",
    ),
)
@dataclass
class RegMix(Tuner):
    """A head trained by CE on images and, with half the weight, on mixtures of two images."""

    equation = (
        r"L = (1 - s) \text{CE}(x_i, y_i) "
        r"+ s \left[ \lambda \text{CE}(\bar x, y_i) + (1 - \lambda) \text{CE}(\bar x, y_j) \right] \\ "
        r"\bar x = \lambda x_i + (1 - \lambda) x_j"
    )

    changes_images = True

    share: Fraction = 0.5  #: of mixtures in the loss
    concentration: Concentration = 10.0  #: of λ ~ Beta(10, 10)

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """Draw λ of each part [iterations, parts], and the partners of images [iterations, parts, B]."""
        partners = torch.rand(iterations, parts, batch, generator=numbers).argsort(dim=2)
        return beta(self.concentration, (iterations, parts), numbers), partners

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return ½ CE(x, y) + ½ (λ CE(x̄, y_i) + (1−λ) CE(x̄, y_j)), summed over current images and memory."""
        total = batch.current.features.new_zeros(())
        for views, weight, partner in zip(batch.parts, *batch.drawn, strict=True):
            mixed = weight * views.images + (1 - weight) * views.images[partner]
            z = extra(batch.source.features(mixed))
            mixup = weight * F.cross_entropy(z, views.labels)
            mixup = mixup + (1 - weight) * F.cross_entropy(z, views.labels[partner])
            clean = F.cross_entropy(extra(views.features), views.labels)
            total = total + (1 - self.share) * clean + self.share * mixup
        return total
