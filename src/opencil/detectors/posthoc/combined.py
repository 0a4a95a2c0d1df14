"""A density of features and a score of logits, as a sum of z-scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from opencil import BadInput, Detector, Outputs, register_detector
from opencil.detectors.detector import CarryingDetector
from opencil.detectors.moments import mean_of
from opencil.engine.forward import Statistics
from opencil.engine.seeding import generator
from opencil.registry import DETECTORS
from opencil.validation import Bound, Whole


@register_detector("combined")
@dataclass
class Combined(CarryingDetector):
    """The sum of a density score of features and a score of logits, each standardised on held-out images."""

    equation = r"S(x) = \frac{S_1(\varphi) - m_1}{s_1} + \frac{S_2(z) - m_2}{s_2}"
    differs = (
        "It is of this project. The means and standard deviations are those of set-up images that the "
        "density is not fitted on for this purpose; then it is fitted on all of them. No OOD image is used."
    )

    density: str | dict[str, Any] = "fecam-distance"  #: a name, or a mapping with a name and values
    logit: str | dict[str, Any] = "maxlogit"  #: likewise
    held_out: Annotated[float, Bound(gt=0, lt=1)] = 0.2  #: share of each class's set-up images
    seed: Whole = 0

    setup_reads = frozenset({"features", "logits", "labels"})
    #: With one covariance for all classes, which few images suffice for and which is quick to compute.
    named = {"shared": {"density": "mahalanobis-pp"}}

    def __post_init__(self) -> None:
        density, logit = _create(self.density, "density"), _create(self.logit, "logit")
        if not isinstance(density, CarryingDetector) or density.reads != {"features"}:
            raise BadInput(f"density = {self.density!r} is not allowed: a density of features is needed")
        if logit.reads != {"logits"} or logit.needs_setup:
            raise BadInput(f"logit = {self.logit!r} is not allowed: a score of logits alone is needed")
        self._density, self._logit = density, logit

    @property
    def summary(self) -> str:
        """Return that of the density."""
        return self._density.summary

    def summarise(self, outputs: Outputs) -> Statistics:
        """Return the density's statistics."""
        return self._density.summarise(outputs)

    def combine(self, parts: Sequence[Statistics], outputs: Outputs) -> None:
        """Standardise both scores on held-out images, then fit the density on all."""
        held = self._hold_out(outputs)
        if held.any():
            kept = _select(outputs, ~held)
            self._density.combine([*parts[:-1], self._density.summarise(kept)], kept)
            both = self._both(_select(outputs, held))
            self._density.combine(parts, outputs)
        else:
            self._density.combine(parts, outputs)
            both = self._both(outputs)
        self._mean = mean_of(both).to(both)
        spread = mean_of((both - self._mean).square()).sqrt().to(both)
        self._spread = torch.where(spread > 1e-6 * both.abs().amax(dim=0), spread, 1)

    def scores(self, outputs: Outputs) -> Tensor:
        """Return the sum of the standardised scores, [N]."""
        return ((self._both(outputs) - self._mean) / self._spread).sum(dim=1)

    def _both(self, outputs: Outputs) -> Tensor:
        density, logit = self._density.scores(outputs), self._logit.scores(outputs)
        wide = torch.promote_types(density.dtype, logit.dtype)  # by name: ONNX promotes nothing
        return torch.stack([density.to(wide), logit.to(wide)], dim=1)

    def _hold_out(self, outputs: Outputs) -> Tensor:
        """Return whether each sample is held out: of every class a share, and not all."""
        assert outputs.labels is not None
        labels = outputs.labels.cpu()
        held = torch.zeros(len(labels), dtype=torch.bool)
        for label in torch.unique(labels):
            rows = (labels == label).nonzero().flatten()
            order = torch.randperm(len(rows), generator=generator(self.seed, "held out", int(label)))
            held[rows[order[: int(self.held_out * len(rows))]]] = True
        return held.to(outputs.labels.device)


def _create(given: str | dict[str, Any], key: str) -> Detector:
    values = {"name": given} if isinstance(given, str) else given
    if "name" not in values:
        raise BadInput(f"{key}: the name of a detector is needed")
    found: Detector = DETECTORS.create(**values)
    return found


def _select(outputs: Outputs, rows: Tensor) -> Outputs:
    assert outputs.labels is not None
    features, logits, labels = outputs.features[rows], outputs.logits[rows], outputs.labels[rows]
    return replace(outputs, features=features, logits=logits, labels=labels, inputs=None)
