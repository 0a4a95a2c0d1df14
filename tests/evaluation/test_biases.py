"""The paper's two biases as measurements of one step, on samples few enough to count."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from opencil import LogitDetector, Outputs
from opencil.evaluation.protocol import Measurement, measure

#: Three tasks: classes 0 and 1, class 2, classes 3 and 4.
TASKS = torch.tensor([1, 1, 2, 3, 3])


@dataclass
class First(LogitDetector):
    """The first feature, whatever the logits say."""

    def scores(self, outputs: Outputs) -> Tensor:
        return outputs.features[:, 0]


def outputs(scores: list[float], predicted: list[int], labels: list[int] | None = None) -> Outputs:
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), 5).float()
    return Outputs(torch.tensor(scores)[:, None], logits, None if labels is None else torch.tensor(labels))


TEST = outputs([9.0, 5.0, 3.0, 8.0, 2.0], predicted=[0, 3, 2, 3, 4], labels=[0, 1, 2, 3, 4])
OOD = {"cats": outputs([4.0, 6.0, 1.0], predicted=[3, 0, 4]), "dogs": outputs([7.0], predicted=[2])}


def table(found: list[Measurement]) -> dict[tuple[str, str, int], float]:
    made = {(m.ood, m.metric, m.task): m.value for m in found}
    assert len(made) == len(found)  # no measurement twice
    return made


FOUND = table(measure(First(), None, TEST, OOD, TASKS))


def test_confidence_by_task() -> None:
    """Test samples count for the task of their class, OOD samples for the task they are predicted into."""
    confidences = {
        (ood, task): value for (ood, metric, task), value in FOUND.items() if metric == "confidence"
    }
    of_test, of_cats = {("", 1): 7.0, ("", 2): 3.0, ("", 3): 5.0}, {("cats", 1): 6.0, ("cats", 3): 2.5}
    assert confidences == of_test | of_cats | {("dogs", 2): 7.0}  # no cat is predicted into task 2


def test_share_of_ood_predicted_into_new_classes() -> None:
    assert FOUND["cats", "ood_as_new", 0] == pytest.approx(2 / 3)
    assert FOUND["dogs", "ood_as_new", 0] == 0.0


def test_old_and_new_classes_against_ood() -> None:
    # cats score 4, 6, 1; old ID 9, 5, 3; new ID 8, 2
    assert FOUND["cats", "auc_old", 0] == pytest.approx((3 + 2 + 1) / 9)
    assert FOUND["cats", "auc_new", 0] == pytest.approx((3 + 1) / 6)
    assert FOUND["cats", "auc", 0] == pytest.approx((6 + 4) / 15)
    assert FOUND["cats", "fpr_old", 0] == pytest.approx(2 / 3)  # accepted at 3: 4 and 6
    assert FOUND["cats", "fpr_new", 0] == pytest.approx(2 / 3)


def test_each_task_against_ood() -> None:
    # cats score 4, 6, 1; tasks 9 and 5, 3, 8 and 2
    found = {
        task: value for (ood, metric, task), value in FOUND.items() if (ood, metric) == ("cats", "auc_task")
    }
    assert found == {1: pytest.approx(5 / 6), 2: pytest.approx(1 / 3), 3: pytest.approx(4 / 6)}
    assert {m for _, m, _ in table(measure(First(), None, TEST, OOD))}.isdisjoint({"auc_task", "auc_old"})


def test_the_first_step_has_no_old_classes() -> None:
    first = torch.ones(5, dtype=torch.int64)
    found = table(measure(First(), None, TEST, OOD, first))
    assert not [key for key in found if key[1].endswith("_old")]
    assert found["cats", "auc_new", 0] == found["cats", "auc", 0]
    assert found["cats", "ood_as_new", 0] == 1.0


def test_metrics_without_labels() -> None:
    unlabelled = Outputs(TEST.features, TEST.logits)
    found = table(measure(First(), None, unlabelled, OOD, TASKS))
    names = {metric for _, metric, _ in found}
    assert names == {"auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive", "ood_as_new", "confidence"}
    assert ("", "confidence", 1) not in found
