"""A detector that reads the maps of two stages."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import opencil
from opencil.validation import Count


@opencil.register_detector("two-layers")
@dataclass
class TwoLayers(opencil.SetUpDetector):
    """Cosine to the nearest set-up image, summed over the channel means of the first and the last stage."""

    neighbours: Count = 1

    reads: ClassVar[frozenset[str]] = frozenset({"layers"})

    @property
    def fewest(self) -> int:
        """As many as there are neighbours."""
        return self.neighbours

    def set_up(self, outputs: opencil.Outputs) -> None:
        self.banks = self.means(outputs)

    def scores(self, outputs: opencil.Outputs) -> Tensor:
        pairs = zip(self.means(outputs), self.banks, strict=True)
        near = [(means @ bank.T).topk(self.neighbours, dim=1).values.mean(dim=1) for means, bank in pairs]
        return near[0] + near[1]

    def means(self, outputs: opencil.Outputs) -> list[Tensor]:
        """Of each of the two stages, [N, C], rows of length 1; no more than a batch's maps is held."""
        found = [[maps[i].mean(dim=(2, 3)) for i in (0, -1)] for maps in outputs.layers()]
        return [F.normalize(torch.cat(parts), dim=1) for parts in zip(*found, strict=True)]
