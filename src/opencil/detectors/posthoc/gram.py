"""Gram: correlations within the maps of each stage."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from opencil import Outputs, Paper, SetUpDetector, register_detector
from opencil.engine.seeding import generator
from opencil.validation import BelowOne, Count, Whole


@register_detector(
    "gram",
    paper=Paper(
        "Detecting Out-of-Distribution Examples with In-distribution Examples and Gram Matrices",
        2020,
        "1912.12510",
    ),
)
@dataclass
class Gram(SetUpDetector):
    """How little the correlations of maps leave the range of the predicted class, stage by stage."""

    equation = (
        r"S(x) = -\frac{1}{\max_c p_c} \sum_{\text{stages } l} \frac{\delta_l(x)}{\text{mean } \delta_l} \\ "
        r"\delta_l = \sum_{p, i} \frac{\max(0, \text{lo} - g_{pi})}{|\text{lo}|} "
        r"+ \frac{\max(0, g_{pi} - \text{hi})}{|\text{hi}|} \\ "
        r"g_{pi} = \left( \sum_j F_i^p \cdot F_j^p \right)^{1/p} "
        r"\text{, lo and hi of set-up images predicted as } \hat y"
    )
    differs = (
        "The authors use powers 1 to 10 of every convolution and activation, OpenOOD 1 to 5, as here; here "
        "the maps are those after each stage. Ranges are by predicted class, as the authors', and means of "
        "δ are over held-out set-up images, as in OpenOOD."
    )

    powers: Count = 5
    held_out: BelowOne = 0.1  #: share of a class, of two images or more
    seed: Whole = 0

    reads = frozenset({"layers", "logits"})

    def set_up(self, outputs: Outputs) -> None:
        """Compute each class's range of correlations [C, columns], and each stage's mean deviation."""
        predicted = outputs.logits.argmax(dim=1)
        held = self._choose_held_out(predicted)
        aside, ranges = [], None
        for rows, stages in self._batches(outputs):
            found = torch.cat(stages, dim=1)
            if ranges is None:
                self._columns = [stage.shape[1] for stage in stages]
                shape = (outputs.logits.shape[1], found.shape[1])
                ranges = found.new_full(shape, torch.inf), found.new_full(shape, -torch.inf)
            kept = ~held[rows]
            places = predicted[rows][kept][:, None].expand(-1, found.shape[1])
            ranges[0].scatter_reduce_(0, places, found[kept], "amin")
            ranges[1].scatter_reduce_(0, places, found[kept], "amax")
            aside.append(found[~kept])
        assert ranges is not None
        low, high = ranges
        self._low = torch.where(low.isinf(), low.amin(dim=0), low)
        self._high = torch.where(high.isinf(), high.amax(dim=0), high)
        apart = self._deviations(torch.cat(aside), predicted[held])
        self._mean = apart.mean(dim=0) + 1e-7 if len(apart) else apart.new_ones(len(self._columns))

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −Σ_l δ_l / mean δ_l over the largest probability, [N]."""
        predicted = outputs.logits.argmax(dim=1)
        apart = [
            self._deviations(torch.cat(stages, dim=1), predicted[rows])
            for rows, stages in self._batches(outputs)
        ]
        total = (torch.cat(apart) / self._mean).sum(dim=1)
        return -total / outputs.logits.softmax(dim=1).amax(dim=1)

    def _choose_held_out(self, predicted: Tensor) -> Tensor:
        """Choose images to leave out of the ranges, bool [N]: some of each class, never all."""
        numbers, held = generator(self.seed, "gram"), torch.zeros(len(predicted), dtype=torch.bool)
        for c in torch.unique(predicted).tolist():
            members = (predicted.cpu() == c).nonzero().flatten()
            order = torch.randperm(len(members), generator=numbers)
            held[members[order[: min(len(members) - 1, ceil(self.held_out * len(members)))]]] = True
        return held.to(predicted.device)

    def _batches(self, outputs: Outputs) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield the rows of a batch, and the correlations of each stage's maps [B, powers · channels]."""
        start = 0
        for maps in outputs.layers():
            rows = slice(start, start + len(maps[0]))
            yield rows, [correlations(stage, self.powers) for stage in maps]
            start = rows.stop

    def _deviations(self, found: Tensor, predicted: Tensor) -> Tensor:
        """Return δ of each stage, [B, stages]."""
        low, high = self._low[predicted], self._high[predicted]
        # Divisors are increased as in the authors' code.
        below = (low - found).clamp(min=0) / (low.abs() + 1e-6)
        above = (found - high).clamp(min=0) / (high.abs() + 1e-6)
        stages = torch.split(below + above, self._columns, dim=1)
        return torch.stack([stage.sum(dim=1) for stage in stages], dim=1)


def correlations(maps: Tensor, powers: int) -> Tensor:
    """Return the p-th roots of the row sums of the Gram matrices of F^p, p = 1 … powers: [B, powers · C].

    A row sum is F_i^p · Σ_j F_j^p. Maps are scaled to 1 first, so that no power overflows.
    """
    scale = maps.abs().amax(dim=(1, 2, 3)).clamp(min=torch.finfo(maps.dtype).tiny)
    unit, found = maps.flatten(2) / scale[:, None, None], []
    for p in range(1, powers + 1):
        power = unit**p
        sums = (power * power.sum(dim=1, keepdim=True)).sum(dim=2)
        found.append(sums.sign() * sums.abs() ** (1 / p))
    return torch.cat(found, dim=1) * scale.square()[:, None]
