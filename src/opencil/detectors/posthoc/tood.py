"""TOOD: task-normalised energies."""

from dataclasses import dataclass

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.data.precision import copy_to_device, to_float64_device
from opencil.detectors.moments import check_labels
from opencil.validation import NonNegative


@register_detector(
    "tood",
    paper=Paper(
        "tood-continual-ood: code for out-of-distribution detection in continual learning",
        2025,
        url="https://github.com/mostafaelaraby/tood-continual-ood",
    ),
)
@dataclass
class TOOD(SetUpDetector):
    """Largest energy of a task, on one scale, plus its lead over the second largest."""

    family = "continual"
    equation = (
        r"S(x) = \tilde{E}_{(1)} + \lambda (\tilde{E}_{(1)} - \tilde{E}_{(2)}) \\ "
        r"\tilde{E}_t = m_T + s_T \frac{E_t - m_t}{s_t}, \quad E_t = \log \sum_{c \in t} e^{z_c} \\ "
        r"m_t, s_t = \text{median and median absolute deviation of } E_t \text{ over set-up images of } t"
    )
    differs = (
        "Known from its code, for which there are no published figures. The median and the deviation of a "
        "task's energy are those of its own set-up images. A task without such images, or of equal "
        "energies, keeps its energies as they are; with a single task the score is Energy."
    )

    margin: NonNegative = 0.5  #: λ

    reads = frozenset({"logits"})
    setup_reads = frozenset({"logits", "labels"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute the slope and shift of each task's energies, from its median and deviation."""
        labels = check_labels(outputs.labels, outputs.logits.shape[1])
        tasks = torch.ones_like(labels[:1]).expand(outputs.logits.shape[1])
        tasks = tasks if outputs.tasks is None else outputs.tasks.to(labels.device)
        known = torch.unique(tasks)
        self._columns = tasks == known[:, None]
        energies, own = to_float64_device(self._energies(outputs.logits)).double(), tasks[labels]
        parts = [energies[(own == task).to(energies.device), i] for i, task in enumerate(known)]
        middles = [part.quantile(0.5) if len(part) else energies.new_zeros(()) for part in parts]
        spreads = [
            (part - middle).abs().quantile(0.5) if len(part) else middle
            for part, middle in zip(parts, middles, strict=True)
        ]
        middle, spread = torch.stack(middles), torch.stack(spreads)
        least = 1e-6 * energies.abs().max()
        usable = (spread > least) & (spread[-1] > least)
        slope = torch.where(usable, spread[-1] / spread, 1.0)
        shift = torch.where(usable, middle[-1] - slope * middle, 0.0)
        self._slope, self._shift = (copy_to_device(t, labels.device).float() for t in (slope, shift))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return Ẽ₍₁₎ + λ (Ẽ₍₁₎ − Ẽ₍₂₎), [N]."""
        energies = self._slope * self._energies(outputs.logits) + self._shift
        best = energies.topk(min(2, energies.shape[1]), dim=1).values
        return best[:, 0] + self.margin * (best[:, 0] - best[:, -1])

    def _energies(self, logits: Tensor) -> Tensor:
        """Return each task's energy, [N, T]."""
        return torch.stack([logits[:, own].logsumexp(dim=1) for own in self._columns], dim=1)
