"""ODIN: temperature and a small step towards the predicted class."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import BadInput, Detector, Outputs, Paper, register_detector
from opencil.engine.forward import evaluating
from opencil.nets.model import Classifier
from opencil.validation import Count, NonNegative, Positive


@register_detector(
    "odin",
    paper=Paper(
        "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks",
        2018,
        "1706.02690",
    ),
)
@dataclass
class ODIN(Detector):
    """Largest softmax(z / T) after a step of ε that raises it: x − ε · sign(∇ CE) / std."""

    equation = (
        r"S(x) = \max_c \text{softmax}(z(x') / T)_c \\ "
        r"x' = x - \frac{\epsilon}{s} \text{sign} \nabla_x \text{CE}(z(x) / T, \text{argmax} z(x))"
    )

    temperature: Positive = 1000.0
    epsilon: NonNegative = 0.0014
    batch_size: Count = 256  #: a gradient needs all activations: 2.5 MB per image for ResNet-32

    reads = frozenset({"images"})

    def scores(self, outputs: Outputs) -> Tensor:
        """Return max softmax(z' / T) of the perturbed images x', [N]."""
        inputs = outputs.inputs
        assert inputs is not None
        # ε is for pixels in [0, 1], the images are normalised.
        std = (1.0,) if inputs.transform is None else inputs.transform.std
        step = self.epsilon / torch.tensor(std, device=inputs.images.device).view(-1, 1, 1)
        parts = (part for images in inputs.batches() for part in torch.split(images, self.batch_size))
        with evaluating(inputs.model):
            return torch.cat([self._score(inputs.model, part, step) for part in parts])

    def _score(self, model: Classifier, images: Tensor, step: Tensor) -> Tensor:
        def loss(logits: Tensor) -> Tensor:
            scaled = logits / self.temperature
            # A sum: with a mean, gradients would shrink with the batch size and underflow.
            return F.cross_entropy(scaled, scaled.argmax(dim=1), reduction="sum")

        moved = images.detach() - step * image_gradient(model, images, loss).sign()
        logits = model.classify(model.features(moved)).float()
        return (logits / self.temperature).softmax(dim=1).amax(dim=1)


def image_gradient(model: Classifier, images: Tensor, objective: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient of a function of the logits with respect to the images; parameters get none."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        logits = model.classify(model.features(images)).float()
        if not logits.requires_grad:
            raise BadInput("the model gives no gradient: its forward pass may be under torch.no_grad")
        return torch.autograd.grad(objective(logits), images)[0]
