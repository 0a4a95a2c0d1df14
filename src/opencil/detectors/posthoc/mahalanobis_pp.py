"""Mahalanobis++ and its relative form: features of length 1."""

from dataclasses import dataclass, field

from opencil import Paper, register_detector
from opencil.detectors.detector import CarryingSetup
from opencil.detectors.posthoc.mahalanobis import Mahalanobis
from opencil.detectors.posthoc.relative_mahalanobis import RelativeMahalanobis

PAPER = Paper("Mahalanobis++: Improving OOD Detection via Feature Normalization", 2025, "2505.18032")
_DIFFERS = "The inverses are pseudo-inverses, and there is a Gaussian for each class of the set-up."


@register_detector("mahalanobis-pp", paper=PAPER)
@dataclass
class MahalanobisPP(Mahalanobis):
    """Mahalanobis distance to the nearest class, of features scaled to length 1."""

    title = "Mahalanobis++"
    equation = rf"{Mahalanobis.equation} \\ \varphi \leftarrow \varphi / \|\varphi\|"
    differs = _DIFFERS
    named = {"stated": {"setup": "train+"}}

    setup: CarryingSetup = field(default="statistics", kw_only=True)
    unit: bool = True


@register_detector("relative-mahalanobis-pp", paper=PAPER)
@dataclass
class RelativeMahalanobisPP(RelativeMahalanobis):
    """Relative Mahalanobis distance of features scaled to length 1."""

    title = "relative Mahalanobis++"
    equation = rf"{RelativeMahalanobis.equation} \\ \varphi \leftarrow \varphi / \|\varphi\|"
    differs = _DIFFERS
    named = {"stated": {"setup": "train+"}}

    setup: CarryingSetup = field(default="statistics", kw_only=True)  # type: ignore[assignment]
    unit: bool = True
