"""AugMix: consistent predictions over augmented views."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import BadInput, Paper, Tuner, register_detector
from opencil.detectors.finetune.augmix_operations import AugMixDraw, Rule, Severity, augmix, draw
from opencil.detectors.finetune.mixing import Concentration
from opencil.detectors.finetune.tuner import Batch, Extra
from opencil.detectors.finetune.views import Views, ViewSource
from opencil.validation import Count, NonNegative, Whole

#: Augmented views of an image, besides the clean image.
_VIEWS = 2

#: Bytes of temporary tensors per pixel, and their limits: in all, and as a share of a GPU's memory.
_PER_PIXEL, _LIMIT, _SHARE = 400, 2**32, 1 / 16


@register_detector(
    "augmix",
    paper=Paper(
        "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", 2020, "1912.02781"
    ),
)
@dataclass
class AugMix(Tuner):
    """A head trained by CE on clean images, and to predict the same on two augmented views of each."""

    equation = (
        r"L = \text{CE}(z, y) + w \text{JSD}(p, p', p'') \\ "
        r"p', p'' \text{ of two augmented views}"
    )
    differs = (
        "AugMix's reference and torchvision, which the paper's code calls, have different rules for the "
        "strength of an operation (`rule`). On the memory the paper's code compares two augmented views, "
        "without the clean image."
    )

    changes_images = True

    weight: NonNegative = 12.0  #: of the Jensen-Shannon divergence
    severity: Severity = 1.0
    width: Count = 3
    depth: Whole = 0  #: operations in a chain; 0: 1 to 3 at random
    concentration: Concentration = 1.0  #: of the chains' weights (Dirichlet) and of their share (Beta)
    rule: Rule = "torchvision"  #: strength of an operation at a level: the paper's code's, or AugMix's

    #: ``original`` is the best detector in our results on CIFAR-100 at k = 10: see docs/detectors.md.
    named = {**Tuner.named, "original": {"rule": "original", **Tuner.named["stated"]}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule == "torchvision" and self.severity not in range(1, 11):
            raise ValueError(f"severity = {self.severity} is not allowed: it should be 1, 2, … or 10")

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """Draw operations, levels, weights and strengths of all views, [iterations, views, …]."""
        count = iterations * parts * _VIEWS * batch
        drawn = draw(count, self.width, self.depth, self.severity, self.concentration, self.rule, numbers)
        return tuple(t.view(iterations, -1, *t.shape[1:]) for t in drawn)

    def prepare(
        self, source: ViewSource, parts: list[Views], drawn: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return the normalised augmented views, [iterations, views · parts · batch, 3, H, W]."""
        count = len(drawn[0])
        clean = torch.stack([views.images.view(count, -1, *views.images.shape[1:]) for views in parts], dim=1)
        if clean.shape[3] != 3:
            raise BadInput(f"AugMix needs RGB images of 3 channels: these have {clean.shape[3]}")
        size = clean.shape[3:]
        pixels = source.scale.pixels(clean)[:, None].expand(-1, _VIEWS, *clean.shape[1:]).reshape(-1, *size)
        choices = AugMixDraw(*(tensor.flatten(0, 1) for tensor in drawn)).to(source.device)
        rows = max(1, _byte_limit(source.device) // (_PER_PIXEL * size[1] * size[2]))
        pieces = zip(*(torch.split(tensor, rows) for tensor in (pixels, *choices)), strict=True)
        augmented = [
            source.scale.normalise(augmix(part, AugMixDraw(*chosen), self.rule)) for part, *chosen in pieces
        ]
        return (torch.cat(augmented).view(count, -1, *size),)

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """Return CE(x, y) + 12 · JSD(x, x', x''), summed over the current images and the memory."""
        (images,) = batch.drawn
        z = extra(batch.source.features(images))
        augmented = z.view(_VIEWS, len(batch.parts), -1, z.shape[1])
        total: Tensor = z.new_zeros(())
        for i, views in enumerate(batch.parts):
            z = extra(views.features)
            consistency = divergence(torch.stack([z, *augmented[:, i]]))
            total = total + F.cross_entropy(z, views.labels) + self.weight * consistency
        return total


def _byte_limit(device: torch.device) -> int:
    """Return the limit of temporary tensors; large on a GPU, where launches dominate on small images."""
    if device.type != "cuda":
        return _LIMIT // 2
    return min(_LIMIT, int(_SHARE * torch.cuda.get_device_properties(device).total_memory))


def divergence(logits: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of the predictions of logits [views, B, classes]."""
    p, log_p = logits.softmax(dim=2), logits.log_softmax(dim=2)
    log_mean = p.mean(dim=0).clamp(1e-7, 1).log()
    return (p * (log_p - log_mean)).sum(dim=2).mean()
