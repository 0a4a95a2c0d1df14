"""FeCAM: a covariance for each class."""

from dataclasses import dataclass

from opencil import Model, Paper, Schedule, Setting, Step, Task, register_learner
from opencil.cil.simplecil import SimpleCIL
from opencil.data.precision import copy_to_device
from opencil.nets.cosine import CosineModel
from opencil.nets.distances import DistanceHead, class_inverse
from opencil.validation import NonNegative, Positive


@register_learner(
    "fecam",
    paper=Paper(
        "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual Learning",
        2023,
        "2309.14062",
    ),
)
@dataclass(frozen=True)
class FeCAM(SimpleCIL):
    """Mahalanobis distances to class means, with a shrunk correlation matrix for each class."""

    equation = (
        r"L = \text{CE}(\sigma \cos(\varphi, w), y) \text{ at step 1} \\ "
        r"z_c = -(g(\varphi) - g(\mu_c))^T R_c^{+} (g(\varphi) - g(\mu_c)) \\ "
        r"g(\varphi) = \frac{\varphi^{\beta}}{\|\varphi^{\beta}\|}"
    )
    differs = (
        "As in its authors' code, covariances are shrunk twice, and the mean is taken before the power. "
        "There step 1 trains on images that are augmented more strongly (AutoAugment, brightness), and is "
        "scored by the nearest row of its head; here it has the benchmark's transform, and is scored by "
        "distances as later ones are. "
        "$`\\varphi^{\\beta}`$ keeps the sign, for backbones whose features may be negative."
    )

    trained_head = "head.cosine_logits"

    first: Schedule = Schedule(epochs=200, lr=0.1, decay="cosine", weight_decay=5e-4)
    power: Positive = 0.5
    shrink_diagonal: NonNegative = 1.0
    shrink_rest: NonNegative = 1.0

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model whose head has a matrix for each class."""
        model = CosineModel(setting.new_backbone(), step.sizes)
        model.head = DistanceHead(model.backbone.width, step.sizes, self.power)
        return model

    def fit(self, task: Task) -> None:
        """Set SimpleCIL's means, and the pseudo-inverse of each new class's correlation matrix."""
        super().fit(task)
        inverses = task.model.head.inverses.newest
        for row, features in enumerate(task.new_features()):
            inverse = class_inverse(features, self.power, self.shrink_diagonal, self.shrink_rest)
            inverses[row] = copy_to_device(inverse, features.device)
