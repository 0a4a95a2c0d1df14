"""A detector as a user writes it, in a file of its own."""

from dataclasses import dataclass

import opencil


@opencil.register_detector("margin")
@dataclass
class Margin(opencil.LogitDetector):
    """Difference between the two largest logits."""

    scale: float = 1.0

    def scores(self, outputs):
        first, second = outputs.logits.topk(2, dim=1).values.T
        return self.scale * (first - second)
