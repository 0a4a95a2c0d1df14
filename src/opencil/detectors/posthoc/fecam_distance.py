"""FeCAM's distance: a correlation matrix for each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from opencil import Outputs, Paper, register_detector
from opencil.data.precision import copy_to_device
from opencil.detectors.detector import CarryingDetector
from opencil.detectors.moments import compute_by_parts
from opencil.engine.forward import Statistics
from opencil.nets.distances import class_distances, class_inverse
from opencil.validation import NonNegative, Positive


@register_detector(
    "fecam-distance",
    paper=Paper(
        "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual Learning",
        2023,
        "2309.14062",
    ),
)
@dataclass
class FeCAMDistance(CarryingDetector):
    """Negative distance to the nearest class mean, with a shrunk correlation matrix for each class."""

    title = "FeCAM distance"
    equation = (
        r"S(x) = -\min_c (g(\varphi) - g(\mu_c))^\top R_c^{+} (g(\varphi) - g(\mu_c)) \\ "
        r"g(\varphi) = \frac{\varphi^{\beta}}{\|\varphi^{\beta}\|}"
    )
    differs = "The paper classifies by this distance; as a score it is the largest logit of `fecam`."

    power: Positive = 0.5
    shrink_diagonal: NonNegative = 1.0
    shrink_rest: NonNegative = 1.0

    reads = frozenset({"features"})
    setup_reads = frozenset({"features", "labels"})

    @property
    def summary(self) -> str:
        """Return the values behind the matrices."""
        return f"fecam-{self.power}-{self.shrink_diagonal}-{self.shrink_rest}"

    def summarise(self, outputs: Outputs) -> Statistics:
        """Return the mean of each class, and the inverse of its correlation matrix."""
        assert outputs.labels is not None
        means, inverses = [], []
        for label in torch.unique(outputs.labels):
            rows = outputs.features[outputs.labels == label]
            inverse = class_inverse(rows, self.power, self.shrink_diagonal, self.shrink_rest)
            means.append(rows.mean(dim=0))
            inverses.append(copy_to_device(inverse, rows.device).float())
        return {"means": torch.stack(means), "inverses": torch.stack(inverses)}

    def combine(self, parts: Sequence[Statistics], outputs: Outputs) -> None:
        """Store the means and matrices of all classes."""
        self._means = torch.cat([part["means"] for part in parts])
        self._inverses = [*chain.from_iterable(part["inverses"] for part in parts)]

    def scores(self, outputs: Outputs) -> Tensor:
        """Return −min_c of the squared distances, [N]."""
        return -compute_by_parts(self._nearest, 4 * self._means.shape[1], outputs.features)

    def _nearest(self, features: Tensor) -> Tensor:
        return class_distances(features, self._means, self._inverses, self.power).amin(dim=1)
