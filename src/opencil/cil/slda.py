"""SLDA: linear discriminant analysis from running means and one covariance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Model, Paper, Setting, Step, Task, register_learner
from opencil.cil.trained_once import TrainedOnce
from opencil.data.precision import as_float64, copy_to_device, widest
from opencil.nets.class_statistics import ModelWithScatter
from opencil.validation import Fraction


@register_learner(
    "slda",
    paper=Paper(
        "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", 2020, "1909.01520"
    ),
)
@dataclass(frozen=True)
class SLDA(TrainedOnce):
    """A linear head computed from class means and one covariance within classes, over all images seen."""

    equation = (
        r"z_c = w_c^\top \varphi - \tfrac{1}{2} w_c^\top \mu_c, \quad w_c = \Lambda \mu_c \\ "
        r"\Lambda = \left((1 - \varepsilon) \Sigma + \varepsilon I\right)^{-1}"
    )
    differs = (
        "Its authors update the covariance image by image, with weights that are exact only in the limit; "
        "here it is that of all images seen, whatever their order. Their backbone is pretrained and frozen; "
        "one that is not frozen is trained at step 1."
    )

    shrinkage: Fraction = 1e-4  #: ε

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with the classes' counts, means and scatter."""
        return ModelWithScatter(setting.new_backbone(), step.seen, widest(setting.images.device))

    def regularise(self, model: ModelWithScatter) -> Tensor:
        """Return the matrix to invert, [D, D]: the covariance within classes, shrunk to the identity."""
        spread = as_float64(model.scatter / model.counts.sum())
        return (1 - self.shrinkage) * spread + self.shrinkage * torch.eye(len(spread)).to(spread)

    @torch.no_grad()
    def fit(self, task: Task) -> None:
        """Add the new classes to the statistics, and compute the head."""
        model, head = task.model, task.model.head
        model.add_classes(task.new_features())
        means = as_float64(model.means)
        weights = torch.linalg.solve(self.regularise(model), means.T).T
        head.weight.copy_(copy_to_device(weights, head.weight.device))
        head.bias.copy_(copy_to_device(-(weights * means).sum(dim=1) / 2, head.bias.device))
