"""One step's measurements, on outputs that are planted."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from opencil.detectors.detector import Detector, LogitDetector, Reads
from opencil.engine.forward import Outputs
from opencil.errors import BadInput
from opencil.evaluation.protocol import measure


def outputs(values: list[float]) -> Outputs:
    column = torch.tensor(values)[:, None]
    return Outputs(column, column)


TEST, OOD = outputs([3.0, 4.0, 5.0]), {"close": outputs([2.0, 3.0, 6.0]), "apart": outputs([0.0, 1.0])}


@dataclass
class Planted(LogitDetector):
    """The logit itself."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.logits[:, 0]

    def set_up(self, outputs: Outputs) -> None:
        raise AssertionError("it needs no set-up")


@dataclass
class Centred(Detector):
    """Minus the distance to the mean of the set-up features, which are recorded."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features"})
    needs_setup: ClassVar[bool] = True

    def set_up(self, outputs: Outputs) -> None:
        self.tasks = outputs.tasks
        self.fitted = [*getattr(self, "fitted", []), outputs.features.flatten().tolist()]

    def scores(self, outputs: Outputs) -> Tensor:
        centre = sum(self.fitted[-1]) / len(self.fitted[-1])
        return -(outputs.features[:, 0] - centre).abs()


def test_values_by_hand() -> None:
    values = {(m.ood, m.metric): m.value for m in measure(Planted(), None, TEST, OOD)}
    assert values["apart", "auc"] == 1.0
    assert values["apart", "fpr"] == 0.0
    assert values["close", "auc"] == pytest.approx(5.5 / 9)  # 3 beats 2 and draws; 4 and 5 beat two each
    assert values["close", "fpr"] == pytest.approx(2 / 3)  # the threshold is 3


def test_a_detector_is_set_up_on_the_set_up_outputs_alone() -> None:
    detector = Centred()
    found = measure(detector, outputs([4.0, 4.0, 4.0]), TEST, OOD)
    assert detector.fitted == [[4.0, 4.0, 4.0]]
    values = {(m.ood, m.metric): m.value for m in found}
    assert values["apart", "auc"] == 1.0
    assert values["close", "auc"] == pytest.approx(8 / 9)  # −1, 0, −1 against −2, −1, −2, two of them draws


def test_a_detector_is_completed_with_the_memory_and_the_tasks_of_a_run() -> None:
    memories: list[Any] = []

    class Recorder(Centred):
        def complete(self, setup: Outputs, memory: Outputs | None = None) -> "Recorder":
            memories.append(memory)
            return super().complete(setup, memory)

    for memory in (None, outputs([9.0])):
        measure(Recorder(), outputs([4.0]), TEST, OOD, torch.tensor([7]), memory=memory)
    assert memories[0] is None
    assert (memories[1].features.tolist(), memories[1].tasks.tolist()) == ([[9.0]], [7])


def test_measuring_without_a_set_up_is_refused() -> None:
    with pytest.raises(BadInput, match="Centred has not been set up"):
        measure(Centred(), None, TEST, OOD)
