"""AugMix: predictions that agree over augmented views."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.detectors.finetune.augmix_operations import (
    FULL_LEVEL,
    LOWEST_LEVEL,
    AugMixDraw,
    Rule,
    augmix,
    draw,
    refused_severity,
)
from opencil.detectors.finetune.mixing import Concentration
from opencil.detectors.finetune.tuner import Batch, Extra, Tuner
from opencil.detectors.finetune.views import Views, ViewSource
from opencil.errors import BadInput
from opencil.registry import Paper, register_detector
from opencil.validation import Bound, Count, NonNegative, Whole

#: Augmented views of an image, beside the clean one.
_VIEWS = 2

#: Bytes of temporary tensors per pixel, how many may be taken at once, and which share of a GPU's memory.
_PER_PIXEL, _AT_ONCE, _SHARE = 400, 2**32, 1 / 16


@register_detector(
    "augmix",
    paper=Paper(
        "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", 2020, "1912.02781"
    ),
)
@dataclass
class AugMix(Tuner):
    """A head trained by CE on clean images and to predict alike on two augmented views of each."""

    equation: ClassVar[str] = (
        r"L = \text{CE}(z, y) + w \text{JSD}(p, p', p'') \\ "
        r"p', p'' \text{ of two augmented views}"
    )
    differs: ClassVar[str] = (
        "AugMix's own reference has another `rule` of how strong an operation is than torchvision, which "
        "the paper's code calls: at severity 1 torchvision's operations do nothing but posterise, solarise, "
        "stretch and equalise. On the memory the paper's code compares two augmented views alone, without "
        "the clean one."
    )

    weight: NonNegative = 12.0  #: of the Jensen-Shannon divergence
    severity: Annotated[float, Bound(ge=LOWEST_LEVEL, le=FULL_LEVEL)] = 1.0
    width: Count = 3
    depth: Whole = 0  #: operations in a chain; 0: 1 to 3, by chance
    concentration: Concentration = 1.0  #: of the chains' weights (Dirichlet) and of their share (Beta)
    rule: Rule = (
        "torchvision"  #: how strong an operation is at a level: as the paper's code has it, or AugMix's
    )

    #: With both it was the best detector here on CIFAR-100 at k = 10: see docs/detectors.md.
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **Tuner.named,
        "original": {"rule": "original", **Tuner.named["stated"]},
    }
    formerly: ClassVar[Mapping[str, Any]] = {"rule": "original"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if problem := refused_severity(self.severity, self.rule):
            raise ValueError(problem)

    def draw(self, iterations: int, batch: int, parts: int, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """Operations, levels, weights and strengths of each iteration's views, [iterations, views, …]."""
        count = iterations * parts * _VIEWS * batch
        drawn = draw(count, self.width, self.depth, self.severity, self.concentration, self.rule, numbers)
        return tuple(t.view(iterations, -1, *t.shape[1:]) for t in drawn.tensors)

    def prepared(
        self, source: ViewSource, parts: list[Views], drawn: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The augmented views of each iteration, normalised: [iterations, views · parts · batch, 3, H, W]."""
        count = len(drawn[0])
        clean = torch.stack([views.images.view(count, -1, *views.images.shape[1:]) for views in parts], dim=1)
        if clean.shape[3] != 3:
            raise BadInput(
                f"AugMix needs images of 3 channels, red, green and blue: these have {clean.shape[3]}"
            )
        size = clean.shape[3:]
        pixels = source.scale.pixels(clean)[:, None].expand(-1, _VIEWS, *clean.shape[1:]).reshape(-1, *size)
        choices = AugMixDraw(*(tensor.flatten(0, 1) for tensor in drawn)).to(source.device)
        rows = max(1, _most_bytes(source.device) // (_PER_PIXEL * size[1] * size[2]))
        made = [
            source.scale.normalised(augmix(pixels[i : i + rows], choices[i : i + rows], self.rule))
            for i in range(0, len(pixels), rows)
        ]
        return (torch.cat(made).view(count, -1, *size),)

    def loss(self, extra: Extra, batch: Batch) -> Tensor:
        """CE(x, y) + 12 · JSD(x, x', x''), the current images' plus the memory's."""
        (made,) = batch.drawn
        z = extra(batch.source.features(made))
        augmented = z.view(_VIEWS, len(batch.parts), -1, z.shape[1])
        total: Tensor = z.new_zeros(())
        for i, views in enumerate(batch.parts):
            z = extra(views.features)
            consistency = divergence(torch.stack([z, *augmented[:, i]]))
            total = total + F.cross_entropy(z, views.labels) + self.weight * consistency
        return total


def _most_bytes(device: torch.device) -> int:
    """That temporary tensors may take. A GPU is given many small images at once: it waits for launches."""
    if device.type != "cuda":
        return _AT_ONCE // 2
    return min(_AT_ONCE, int(_SHARE * torch.cuda.get_device_properties(device).total_memory))


def divergence(logits: Tensor) -> Tensor:
    """Jensen-Shannon divergence of predictions, from logits [views, B, classes]: mean over the batch."""
    p, log_p = logits.softmax(dim=2), logits.log_softmax(dim=2)
    log_mean = p.mean(dim=0).clamp(1e-7, 1).log()
    return (p * (log_p - log_mean)).sum(dim=2).mean()
