"""One step's measurements, on outputs that are planted."""

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from opencil.detectors.detector import Detector, LogitDetector, Reads
from opencil.engine.forward import Inputs, Outputs
from opencil.engine.turns import taking_turns
from opencil.errors import BadInput
from opencil.evaluation import protocol
from opencil.evaluation.metrics import ood_metrics
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
    """Minus the distance to the mean of what it was set up on; notes what that was."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"features"})
    needs_setup: ClassVar[bool] = True

    def set_up(self, outputs: Outputs) -> None:
        self.tasks = outputs.tasks
        self.fitted = [*getattr(self, "fitted", []), outputs.features.flatten().tolist()]

    def scores(self, outputs: Outputs) -> Tensor:
        centre = sum(self.fitted[-1]) / len(self.fitted[-1])
        return -(outputs.features[:, 0] - centre).abs()


def test_every_metric_of_every_ood_set_is_measured() -> None:
    found = measure(Planted(), None, TEST, OOD)
    expected = [
        (name, metric, value)
        for name, planted in OOD.items()
        for metric, value in asdict(ood_metrics(TEST.logits[:, 0], planted.logits[:, 0])).items()
    ]
    assert [(m.ood, m.metric, m.value) for m in found] == expected
    assert len(found) == 10


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


def test_tasks_that_set_up_outputs_tell_themselves_are_kept() -> None:
    found = []
    for own, tasks in ((torch.tensor([3]), None), (torch.tensor([3]), torch.tensor([7])), (None, None)):
        detector = Centred()
        measure(detector, replace(outputs([4.0]), tasks=own), TEST, OOD, tasks)
        found.append(None if detector.tasks is None else detector.tasks.tolist())
    assert found == [[3], [7], None]


def test_a_detector_is_completed_with_the_memory_and_the_tasks_of_a_run() -> None:
    told: list[Outputs | None] = []

    class Told(Centred):
        def complete(self, setup: Outputs, memory: Outputs | None = None) -> "Told":
            told.append(memory)
            return super().complete(setup, memory)

    for memory in (None, outputs([9.0])):
        measure(Told(), outputs([4.0]), TEST, OOD, torch.tensor([7]), memory=memory)
    assert told[0] is None
    assert told[1] is not None
    assert told[1].tasks is not None
    assert (told[1].features.tolist(), told[1].tasks.tolist()) == ([[9.0]], [7])


def test_others_go_on_between_two_ood_sets() -> None:
    turns: list[int] = []
    with taking_turns(lambda: turns.append(1)):
        measure(Planted(), None, TEST, OOD)
    assert len(turns) == len(OOD)


def test_what_is_measured_is_of_all_tasks_unless_it_says_of_which() -> None:
    assert protocol.Measurement("", "accuracy", 0.5).task == 0


def test_a_detector_without_set_up_is_not_fitted() -> None:
    assert len(measure(Planted(), outputs([1.0]), TEST, OOD)) == 10


def test_a_detector_that_misses_its_set_up_says_so() -> None:
    with pytest.raises(BadInput, match="Centred has not been set up"):
        measure(Centred(), None, TEST, OOD)


@dataclass
class Seeing(Planted):
    """The logit itself, of a network that runs once more for it."""

    reads: ClassVar[frozenset[Reads]] = frozenset({"logits", "images"})


@pytest.mark.parametrize(("detector", "shared"), [(Planted(), 0), (Seeing(), 3)])
def test_ranks_share_scores_that_the_network_runs_again_for(
    detector: Detector, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Inputs] = []

    def by_ranks(inputs: Inputs, compute: Any) -> tuple[Tensor, ...]:
        asked.append(inputs)
        halves = slice(0, 1), slice(1, None)
        return (torch.cat([compute(replace(inputs, images=inputs.images[h]), h)[0] for h in halves]),)

    def seen(outputs: Outputs) -> Outputs:
        images = torch.zeros(len(outputs.logits), 3, 2, 2)
        return replace(outputs, inputs=Inputs(lambda images: images.flatten(1)[:, :1], images))

    monkeypatch.setattr(protocol, "by_ranks", by_ranks)
    test, ood = seen(TEST), {name: seen(planted) for name, planted in OOD.items()}
    assert measure(detector, None, test, ood) == measure(Planted(), None, TEST, OOD)
    assert len(asked) == shared
