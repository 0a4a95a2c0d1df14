"""The protocol of one step: every detector against every OOD set, on outputs computed once."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from opencil.detectors.detector import Detector
from opencil.engine.forward import Outputs
from opencil.evaluation.metrics import ood_metrics


@dataclass(frozen=True)
class Measurement:
    """One metric of one detector; ``ood`` is the OOD set's name."""

    ood: str
    metric: str
    value: float


def measure(
    detector: Detector, setup: Outputs | None, test: Outputs, ood: Mapping[str, Outputs]
) -> list[Measurement]:
    """Set a detector up on ``setup`` where it needs that, and score test (ID) against each OOD set."""
    if setup is not None and detector.needs_setup:
        detector.fit(setup)
    id_scores = detector.score(test)
    return [
        Measurement(name, metric, value)
        for name, outputs in ood.items()
        for metric, value in asdict(ood_metrics(id_scores, detector.score(outputs))).items()
    ]
