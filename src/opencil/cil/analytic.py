"""Base of RanPAC and ACIL: ridge regression on random features, exact over all images seen."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Model, Setting, Step, Task
from opencil.cil.trained_once import TrainedOnce
from opencil.data.precision import as_float64, copy_to_device, widest
from opencil.engine.seeding import generator
from opencil.nets.random_features import ROWS, Drawn, RidgeModel
from opencil.validation import Count, Positive

EQUATION = (
    r"L = \sum \| y - W^T h \|^2 + \lambda \|W\|^2, \quad h = \text{ReLU}(\varphi R) \\ "
    r"W = \left(\sum h h^T + \lambda I\right)^{-1} \sum h y^T, \quad z = W^T h"
)
#: Choices of λ.
RIDGES = tuple(10.0**power for power in range(-8, 9))
_INPUTS = 64  #: for which 2,000 random features are enough


@dataclass(frozen=True)
class Analytic(TrainedOnce):
    """Ridge regression from random features to one-hot labels, by float64 sums over all images seen."""

    linear = False
    trained_head = "first_head"  #: not used after step 1

    width: Count | None = None  #: random features; None: 2,000 for 64 inputs or fewer, up to 10,000 for more
    unit: bool | None = None  #: whether inputs are scaled to length 1; None: if there are more than 64
    drawn: Drawn = "uniform"
    ridge: Positive | None = None  #: λ; None: chosen at every step

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return a model with a head over random features, and the sums from which it is solved."""
        backbone, exact = setting.new_backbone(), widest(setting.images.device)
        width = self.width or min(max(2_000, 2_000 * backbone.width // _INPUTS), 10_000)
        unit = backbone.width > _INPUTS if self.unit is None else self.unit
        return RidgeModel(backbone, step.sizes, width, self.drawn, exact, unit, sums=not setting.single)

    @torch.no_grad()
    def fit(self, task: Task) -> None:
        """Add the new images to the sums and solve for the head."""
        model, outputs = task.model, task.outputs(task.step.train)
        assert outputs.labels is not None
        targets = as_float64(F.one_hot(outputs.labels, task.step.seen).float())
        if task.setting.single:
            h = as_float64(model.head.expand(outputs.features))
            weights = solve_ridge(h, targets, self._ridge(task, h, targets))
            model.head.last.weight.copy_(copy_to_device(weights.T, model.head.last.weight.device))
            return
        gram, products = as_float64(model.gram), as_float64(model.products)
        pairs = (torch.split(tensor, ROWS) for tensor in (outputs.features, targets))
        for features, target in zip(*pairs, strict=True):
            h = as_float64(model.head.expand(features))
            gram.addmm_(h.T, h)
            products.addmm_(h.T, target)
        ridge = self.ridge or self._ridge(task, as_float64(model.head.expand(outputs.features)), targets)
        weights = torch.linalg.solve(gram + ridge * torch.eye(len(gram)).to(gram), products)
        sums = (model.gram, gram), (model.products, products)  # copies, on a device without float64
        for tensor, found in (*sums, (model.head.last.weight, weights.T)):
            tensor.copy_(copy_to_device(found, tensor.device))

    def _ridge(self, task: Task, h: Tensor, targets: Tensor) -> float:
        """Return λ: the value, or the best on a fifth of the rows, drawn at random."""
        if self.ridge is not None:
            return self.ridge
        numbers = generator(task.setting.data_seed, "held out", task.step.number)
        order = torch.randperm(len(targets), generator=numbers).to(targets.device)
        return best_ridge(h[order], targets[order])


def solve_ridge(h: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return the weights [width, classes] for all rows at once, by the smaller of two matrices."""
    if len(h) < h.shape[1]:
        square, right = h @ h.T, targets
    else:
        square, right = h.T @ h, h.T @ targets
    square.diagonal().add_(ridge)
    found: Tensor = torch.linalg.solve(square, right)
    return h.T @ found if len(h) < h.shape[1] else found


def best_ridge(h: Tensor, targets: Tensor) -> float:
    """Return the λ that predicts the last fifth of the rows best from the others, in squared error."""
    known = int(0.8 * len(h))
    train, y, held = h[:known], targets[:known], h[known:]
    if known < h.shape[1]:  # the same predictions, by the smaller of two matrices
        square, left, right = train @ train.T, held @ train.T, y
    else:
        square, left, right = train.T @ train, held, train.T @ y
    values, axes = torch.linalg.eigh(square)
    left, right, values = left @ axes, axes.T @ right, values.clamp(min=0)[:, None]
    errors = [float((left @ (right / (values + ridge)) - targets[known:]).square().sum()) for ridge in RIDGES]
    return RIDGES[errors.index(min(errors))]
