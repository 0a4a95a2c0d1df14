"""Test the records of metrics: their descriptions, their inputs and their subjects."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import opencil
from opencil.engine.forward import Outputs
from opencil.errors import BadInput
from opencil.evaluation.metric import (
    chosen_metrics,
    metric_of,
    metrics,
    register_metric,
    shares,
)
from opencil.evaluation.protocol import measure, measure_model
from opencil.registry import METRICS, registered_by

LOGITS = torch.tensor([[4.0, 0.0], [0.0, 3.0], [2.0, 0.0], [0.0, 1.0]])
TEST = Outputs(LOGITS, LOGITS, torch.tensor([0, 1, 1, 0]))
OOD = {"noise": Outputs(LOGITS[2:] / 2, LOGITS[2:] / 2)}
TASKS = torch.tensor([1, 2])


def found(*names: str, **more: Any) -> dict[tuple[str, str, int], float]:
    detector = opencil.create_detector("maxlogit")
    measured = measure(detector, None, TEST, OOD, names=names, **more)
    return {(m.ood, m.metric, m.task): m.value for m in measured}


def test_a_function_gets_what_its_parameters_name() -> None:
    @register_metric("gap", label="Gap", definition="difference of the means.")
    def gap(id_scores: Tensor, ood_scores: Tensor) -> float:
        return float(id_scores.mean() - ood_scores.mean())

    assert found("gap") == {("noise", "gap", 0): 2.5 - 0.75}
    assert "gap" not in chosen_metrics(), "it is asked for"


def test_without_ood_there_is_one_value_of_a_detector() -> None:
    @register_metric("mean", label="Mean", definition="mean score.")
    def mean(id_scores: Tensor) -> Tensor:
        return id_scores.mean()

    assert found("mean") == {("", "mean", 0): 2.5}
    assert not metric_of("mean").of_model
    assert measure_model(TEST, names=["mean"]) == []


def test_without_scores_it_is_of_the_model() -> None:
    @register_metric("error", label="Error", definition="share of errors.", lower_is_better=True)
    def error(id_logits: Tensor, labels: Tensor) -> dict[int, float]:
        wrong = id_logits.argmax(1) != labels
        return {0: float(wrong.double().mean()), 1: float(wrong[labels == 0].double().mean())}

    assert found("error") == {}
    values = {(m.ood, m.metric, m.task): m.value for m in measure_model(TEST, names=["error", "accuracy"])}
    assert values == {("", "accuracy", 0): 0.5, ("", "error", 0): 0.5, ("", "error", 1): 0.5}
    assert metric_of("error").column == "Error↓"


def test_metrics_with_unknown_inputs_have_no_value() -> None:
    @register_metric("by_task", label="By task", definition="score by task.")
    def by_task(id_scores: Tensor, id_tasks: Tensor) -> dict[int, float]:
        return {t: float(id_scores[id_tasks == t].mean()) for t in (1, 2)}

    @register_metric("nothing", label="Nothing", definition="no value.")
    def nothing(id_scores: Tensor) -> None:
        return None

    assert found("by_task", "nothing") == {}
    with_tasks = found("by_task", "nothing", tasks=TASKS)
    assert with_tasks == {("", "by_task", 1): 2.5, ("", "by_task", 2): 2.5}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        torch.tensor([0.1, 0.2]),
        torch.zeros(0),
        "much",
        {"one": 0.5},
        torch.tensor(float("inf")),
    ],
    ids=str,
)
def test_values_that_are_not_numbers_are_refused(value: Any) -> None:
    @register_metric("odd", label="Odd", definition="no number.")
    def odd(id_scores: Tensor) -> Any:
        return value

    with pytest.raises(BadInput, match="odd"):
        found("odd", "auc")


def test_shifted_images_by_hand() -> None:
    # Scores: ID 4 3 2 1, shifted 2.5 .5 in one set and .8 in another; OOD 1 .5
    one = Outputs(torch.tensor([[2.5, 0.0], [0.5, 0.0]]), torch.tensor([[2.5, 0.0], [0.5, 0.0]]))
    other = Outputs(torch.tensor([[0.0, 0.8]]), torch.tensor([[0.0, 0.8]]), torch.tensor([1]))
    shifted = {"one": replace(one, labels=torch.tensor([0, 1])), "other": other}
    names = ["fpr_shifted", "auc_full", "fpr_full", "ap_full"]
    values = found(*names, shifted=shifted)
    # The threshold that accepts all four clean images is 1: .5 and .8 fall below it.
    assert found(*names, shifted={"one": one, "other": other}) == values, "labels or none"
    assert values["one", "fpr_shifted", 0] == 0.5
    assert values["other", "fpr_shifted", 0] == 1.0
    # Full ID: 4 3 2 1 2.5 .5 .8. Against 1: four win, one draws; against .5: six win, one draws.
    assert values["noise", "auc_full", 0] == pytest.approx((4.5 + 6.5) / 14)
    assert values["noise", "fpr_full", 0] == 1.0
    expected = opencil.ood_metrics(
        torch.tensor([4.0, 3.0, 2.0, 1.0, 2.5, 0.5, 0.8]), torch.tensor([1.0, 0.5])
    )
    assert values["noise", "ap_full", 0] == expected.ap
    assert values["noise", "auc_full", 0] == expected.auc
    of_model = measure_model(TEST, shifted)
    assert {(m.ood, m.metric): m.value for m in of_model} == {
        ("", "accuracy"): 0.5,
        ("one", "accuracy_shifted"): 0.5,
        ("other", "accuracy_shifted"): 1.0,
    }


def test_bad_registrations_are_refused() -> None:
    with pytest.raises(BadInput, match="id_scores"):
        register_metric("gap", label="Gap", definition="x.")(lambda id_score: 0.0)
    with pytest.raises(BadInput, match="already registered"):
        register_metric("auc", label="AUC", definition="x.")(lambda id_scores: 0.0)
    with pytest.raises(BadInput, match="model_bytes"):
        register_metric("model_bytes", label="MB", definition="x.")(lambda id_scores: 0.0)
    with pytest.raises(BadInput, match="auc"):
        chosen_metrics(["acu"])


def test_metrics_of_a_forgotten_plugin_are_removed() -> None:
    with registered_by("mine.py"):
        register_metric("gap", label="Gap", definition="x.")(lambda id_scores: 0.0)
    assert metrics()["gap"].label == "Gap"
    METRICS.forget("mine.py")
    assert "gap" not in metrics()


def test_records_of_metrics_that_are_not_registered() -> None:
    nearest_mean = metric_of("accuracy_nearest_mean")
    assert nearest_mean.label == "Accuracy (nearest mean)"
    assert "nearest mean" in nearest_mean.sentence
    stranger = metric_of("of-a-plugin")
    assert stranger.column == "of-a-plugin↑"
    assert stranger.reads == (), "it has no function"
    assert not nearest_mean.standard
    assert not stranger.standard


def test_shares_are_all_rows_but_those_of_bytes() -> None:
    names = ["accuracy", "model_bytes", "auc", "memory_bytes", "accuracy_nearest_mean", "of-a-plugin"]
    rows = pd.DataFrame({"metric": names, "value": range(6)})
    assert shares(rows)["value"].tolist() == [0, 2, 4, 5]
    assert shares(rows[:1]).equals(rows[:1])
