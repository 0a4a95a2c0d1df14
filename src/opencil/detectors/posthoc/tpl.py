"""TPL: likelihood ratio of a task against all others."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import as_float64, copy_to_device
from opencil.detectors.moments import Gaussians, check_labels, compute_by_parts, moments_of
from opencil.validation import Count

#: Smaller squared distances are at the mean of the class, as the only image of a class is.
_AT_MEAN = 1e-6


@register_detector(
    "tpl",
    paper=Paper("Class Incremental Learning via Likelihood Ratio Based Task Prediction", 2024, "2309.15048"),
)
@dataclass
class TPL(SetUpDetector):
    """Best task by nearness to its classes, distance to other tasks' images, and largest logit."""

    family = "continual"
    equation = (
        r"S(x) = \max_t \, (a_t s_t + b_t), \quad s_t = -\log ( e^{-(i_t + o_t)} + e^{-m_t} ) \\ "
        r"i_t \propto \max_{c \in t} 1 / d_c(\varphi), \quad m_t \propto \max_{c \in t} z_c \\ "
        r"o_t = \| \hat{\varphi} - \hat{\varphi}_j \|^2 , \quad "
        r"j \text{ the } K \text{-th nearest of the memory of other tasks}"
    )
    differs = (
        "Adapted: the paper has a network with a mask for each task; here all tasks share one backbone, and"
        " a sample's score is that of its best task. d_c is a squared Mahalanobis distance with one "
        "covariance per task, i_t and m_t are divided by their means, and a_t and b_t are fitted as in the "
        "authors' code."
    )

    neighbours: Count = 5  #: K

    setup_reads = frozenset({"features", "logits", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Store Gaussians and features of each task with images, the scales of its scores, a_t and b_t."""
        features, classes = outputs.features, outputs.logits.shape[1]
        labels = check_labels(outputs.labels, classes)
        tasks = torch.ones_like(labels[:1]).expand(classes) if outputs.tasks is None else outputs.tasks
        tasks = tasks.to(labels.device)
        present, own = torch.unique(tasks[labels], return_inverse=True)
        self._columns = tasks == present[:, None]
        moments = [moments_of(features[own == t], labels[own == t]) for t in range(len(present))]
        self._gaussians = [Gaussians.of(of_task) for of_task in moments]
        self._banks = [F.normalize(features[own == t], dim=1) for t in range(len(present))]
        near, out, largest = self._parts(outputs)
        member = F.one_hot(own, len(present)).to(near)
        apart = member * (near < 1 / _AT_MEAN)
        apart = torch.where(apart.sum(dim=0) > 0, apart, member)
        self._scales = [
            ((part * weights).sum(dim=0) / weights.sum(dim=0)).clamp(min=_AT_MEAN)
            for part, weights in ((near, apart), (largest.abs(), member))
        ]
        self._slope, self._shift = _calibrate(self._compose(near, out, largest), member)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return max_t (a_t s_t + b_t), [N]."""
        return (self._slope * self._compose(*self._parts(outputs)) + self._shift).amax(dim=1)

    def _compose(self, near: Tensor, out: Tensor, largest: Tensor) -> Tensor:
        """Return s_t, [N, T]."""
        return -torch.logaddexp(-(near / self._scales[0] + out), -largest / self._scales[1])

    def _parts(self, outputs: Outputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return 1 / d to the nearest class of each task, o_t, and the task's largest logit, [N, T] each."""
        features = outputs.features
        near = [1 / gaussians.nearest(features).clamp(min=_AT_MEAN) for gaussians in self._gaussians]
        numbers = 2 * sum(map(len, self._banks))
        out = compute_by_parts(self._distances, numbers, F.normalize(features, dim=1))
        largest = [outputs.logits[:, columns].amax(dim=1) for columns in self._columns]
        return torch.stack(near, dim=1).float(), out, torch.stack(largest, dim=1)

    def _distances(self, unit: Tensor) -> Tensor:
        """Return the squared distances to the K-th nearest feature of the tasks other than t, [n, T]."""
        if len(self._banks) == 1:
            return torch.zeros_like(unit[:, :1])
        each = [(unit @ bank.T).topk(min(self.neighbours, len(bank)), dim=1).values for bank in self._banks]
        found = []
        for t in range(len(each)):
            others = torch.cat([*each[:t], *each[t + 1 :]], dim=1)
            found.append(others.topk(min(self.neighbours, others.shape[1]), dim=1).values[:, -1])
        return 2 - 2 * torch.stack(found, dim=1)


def _calibrate(scores: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slope and shift of each task's scores [T] after 100 steps of SGD on the CE over tasks."""
    wide, target = as_float64(scores), as_float64(member)
    slope, shift = torch.ones_like(wide[0]), torch.zeros_like(wide[0])
    speed = torch.stack([shift, shift])
    for _ in range(100):
        wrong = ((slope * wide + shift).softmax(dim=1) - target) / len(wide)
        speed = 0.8 * speed + torch.stack([(wrong * wide).sum(dim=0), wrong.sum(dim=0)])
        slope, shift = slope - 0.01 * speed[0], shift - 0.01 * speed[1]
    return copy_to_device(slope, scores.device).float(), copy_to_device(shift, scores.device).float()
