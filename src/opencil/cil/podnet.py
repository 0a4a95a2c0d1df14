"""PODNet: pooled outputs distillation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Paper, Schedule, Task, register_learner
from opencil.cil.rebalanced import Rebalanced, cosine_distance
from opencil.validation import Count, NonNegative


@register_learner(
    "podnet",
    paper=Paper(
        "PODNet: Pooled Outputs Distillation for Small-Tasks Incremental Learning", 2020, "2004.13513"
    ),
)
@dataclass(frozen=True)
class PODNet(Rebalanced):
    """Cosine head of ten proxies a class; sums over the maps of all stages stay close to the teacher's."""

    equation = (
        r"L = \text{NCA}(\sigma s, y) + \sqrt{\frac{\text{seen}}{\text{new}}} \left(\lambda_f "
        r"(1 - \cos(\varphi, \varphi')) + \lambda_c \, \text{mean}_l \| P(a_l) - P(a'_l) \|\right) \\ "
        r"\text{NCA}(z, y) = -z_y + \log\left(\sum_{c \neq y} e^{z_c} + \max_c e^{z_c}\right) \\ "
        r"s_c = \sum_k \text{softmax}_k(\cos(\varphi, w_{c,k})) \cos(\varphi, w_{c,k}) \\ "
        r"P(a) = \text{sums of } a^2 \text{ over rows and over columns, of length } 1"
    )
    differs = (
        "The paper's NCA has a margin and a hinge. In its code, as in PyCIL's copy, the margin cancels, and "
        "there is no hinge: so here. (With them a learned $`\\sigma`$ may shrink to 0, and does on digits.) "
        "The code also clips gradients, and has $`-\\|a - b\\|^2`$ for cosines, which doubles them. Its "
        "backbone has no ReLU at the end of any block, and four maps; here it is the benchmark's, with one "
        "map a stage, and `signed: true` in `benchmark.backbone` removes the last ReLU. While its head is "
        "tuned, its batch norm still follows the balanced images; here the backbone is in eval mode. "
        "`@pycil`: the values of PyCIL's copy, which has no imprinting, and tunes on as many images of a "
        "class as there were before the step."
    )
    named = {"pycil": {"spatial": 5.0, "tunes": "all", "balance": {"lr": 0.005, "decay": "cosine"}}}

    needs_images = True

    train: Schedule = Schedule(epochs=160, lr=0.1, decay="cosine", weight_decay=5e-4)
    balance: Schedule = Schedule(epochs=20, lr=0.05, decay="constant", weight_decay=5e-4)
    proxies: Count = 10
    flat: NonNegative = 1.0  #: λ_f
    spatial: NonNegative = 3.0  #: λ_c

    def classification(self, task: Task, cosines: Tensor, labels: Tensor) -> Tensor:
        """Return the NCA loss."""
        return nca(task.model.head.scale * cosines, labels)

    def retention(self, task: Task, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features, and √(seen / new) (λ_f (1 − cos) + λ_c POD)."""
        features, maps = task.model.backbone.features_and_maps(images)
        with torch.no_grad():
            before, maps_before = task.teacher.backbone.features_and_maps(images)
        cost = self.flat * cosine_distance(features, before)
        cost = cost + self.spatial * pooled_distance(maps, maps_before)
        return features, math.sqrt(task.step.seen / task.step.new) * cost


def nca(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the batch mean of −z_y + log(Σ_{c ≠ y} exp z_c + exp max z): CE if the prediction is right."""
    own = labels[:, None] == torch.arange(logits.shape[1], device=labels.device)
    others = logits.masked_fill(own, -torch.inf)
    terms = torch.cat([others, logits.amax(dim=1, keepdim=True)], dim=1)
    return (terms.logsumexp(dim=1) - torch.where(own, logits, 0).sum(dim=1)).mean()


def pooled_distance(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """Return the mean over stages of the batch mean of ‖P(a) − P(a')‖."""
    distances = [(pool(a) - pool(b)).norm(dim=1).mean() for a, b in zip(maps, before, strict=True)]
    return torch.stack(distances).mean()


def pool(maps: Tensor) -> Tensor:
    """Return sums of squares over rows and over columns of each channel, [B, C · (H + W)], of length 1."""
    squares = maps.float().square()
    return F.normalize(torch.cat([squares.sum(dim=3), squares.sum(dim=2)], dim=2).flatten(1), dim=1)
