"""Averages against loops: over datasets, then steps, then seeds."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.report.averages import (
    average_datasets,
    average_models,
    average_rows,
    average_steps,
    average_tasks,
    list_megabytes,
)
from tests.report.common import deviation, mean

Rows = Callable[..., pd.DataFrame]
SPLITS = {"near": ("n1",), "far": ("f1", "f2", "f3"), "all": ("n1", "f1", "f2", "f3")}


Place = tuple[int, int, str, str, int, str]
STEPS = {"auc_old": (2, 3, 4)}  # it begins at step 2


def by_place(rows: pd.DataFrame) -> dict[Place, float]:
    """The value of each (seed, step, detector, OOD set, task, metric)."""
    columns = ["seed", "step", "detector", "ood", "task", "metric", "value"]
    found = {tuple(row[:-1]): row[-1] for row in rows[columns].itertuples(index=False)}
    assert len(found) == len(rows)
    return found


def naive_step(
    rows: dict[Place, float], seed: int, step: int, detector: str, split: str, metric: str
) -> float:
    return mean([rows[seed, step, detector, ood, 0, metric] for ood in SPLITS[split]])


def naive_run(rows: dict[Place, float], seed: int, row: dict[str, Any]) -> float:
    """Over the steps that have the metric; rows of all samples only."""
    steps = STEPS.get(row["metric"], (1, 2, 3, 4))
    if row["detector"]:
        place = (row["detector"], row["place"], row["metric"])
        return mean([naive_step(rows, seed, t, *place) for t in steps])
    assert (row["place"], row["metric"]) == ("", "accuracy")
    return mean([rows[seed, t, "", "", 0, "accuracy"] for t in steps])


def test_bytes_are_in_no_average_of_shares(made_up: Rows, keeping: Rows) -> None:
    plain = made_up()
    rows = pd.concat([plain, *(keeping(*[(10**t, t) for t in range(1, 5)], seed=s) for s in (0, 1, 2))])
    for average in (average_datasets, average_rows, average_models):
        pd.testing.assert_frame_equal(average(rows), average(plain))


def test_a_seed_that_is_behind_is_in_no_average(made_up: Rows) -> None:
    """Of each method by itself: later steps are harder, so that it would look better than it is."""
    every = pd.concat([made_up(), made_up(cil="wa", steps=2)])
    behind = (every["cil"] == "icarl") & (every["seed"] == 2)
    for average in (average_rows, average_models):
        found = average(every[~(behind & (every["step"] > 3))])
        pd.testing.assert_frame_equal(found, average(every[~behind]))
        assert set(found[found["cil"] == "wa"]["seeds"]) == {3}, "all are as far there"


def test_megabytes(keeping: Rows) -> None:
    rows = pd.concat([keeping((3e6, 2e6), (4e6, 1e6)), keeping((5e6, 0), (7e6, 8), seed=1)])
    found = list_megabytes(rows[~rows["value"].isin([3e6, 8])])  # of two steps the model alone, or the memory
    assert list(found.columns) == ["benchmark", "k", "cil", "seed", "step", "model", "memory"]
    assert found.to_numpy().tolist() == [["b", 2, "icarl", 0, 2, 4.0, 1.0], ["b", 2, "icarl", 1, 1, 5.0, 0.0]]
    assert list_megabytes(rows[:0]).empty


def test_over_seeds(made_up: Rows) -> None:
    table, rows = average_rows(made_up()), by_place(made_up())
    assert len(table) == 1 + 2 * 3 * 6
    for row in table.to_dict("records"):
        values = [naive_run(rows, seed, row) for seed in (0, 1, 2)]
        assert (row["mean"], row["std"]) == pytest.approx((mean(values), deviation(values)), abs=1e-12)
        assert (row["seeds"], row["steps"]) == (3, len(STEPS.get(row["metric"], (1, 2, 3, 4))))


def naive_continual(rows: dict[Place, float], seed: int) -> dict[str, float]:
    """By loops over a_tj, the accuracy after step t on task j."""

    def a(t: int, j: int) -> float:
        return rows[seed, t, "", "", j, "accuracy"]

    steps, old = (1, 2, 3, 4), (1, 2, 3)
    return {
        "average accuracy": mean([a(t, 0) for t in steps]),
        "last accuracy": a(4, 0),
        "forgetting": mean([max(a(t, j) for t in range(j, 4)) - a(4, j) for j in old]),
        "backward transfer": mean([a(4, j) - a(j, j) for j in old]),
    }


def test_continual(made_up: Rows) -> None:
    table, rows = average_models(made_up()), by_place(made_up())
    values = [naive_continual(rows, seed) for seed in (0, 1, 2)]
    assert set(table["metric"]) == set(values[0])
    for row in table.to_dict("records"):
        of_metric = [value[row["metric"]] for value in values]
        assert (row["benchmark"], row["k"], row["cil"]) == ("b", 2, "icarl")
        assert (row["mean"], row["std"]) == pytest.approx((mean(of_metric), deviation(of_metric)), abs=1e-12)
        assert (row["seeds"], row["steps"]) == (3, 4)


def test_shifted_sets_are_in_no_split_and_are_averaged_by_themselves(
    made_up: Rows, with_shifted: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    plain, rows = made_up(), with_shifted(made_up())
    values, keys = by_place(rows), ["seed", "detector", "place", "metric"]
    found = average_steps(average_datasets(rows)).set_index(keys)["value"]
    for seed in (0, 1, 2):
        for detector, metric in (
            ("", "accuracy_shifted"),
            ("msp", "fpr_shifted"),
            ("energy", "fpr_shifted"),
        ):
            every = [
                values[seed, t, detector, name, 0, metric] for t in (1, 2, 3, 4) for name in ("s1", "s2")
            ]
            assert found.pop((seed, detector, "", metric)) == pytest.approx(mean(every), abs=1e-12)
    pd.testing.assert_series_equal(found, average_steps(average_datasets(plain)).set_index(keys)["value"])


def test_later_classes_are_in_no_average_and_are_a_place_of_their_own(
    made_up: Rows, with_future: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    plain, rows = made_up(), with_future(made_up())
    found = average_rows(rows)
    later = found["place"] == "future"
    pd.testing.assert_frame_equal(found[~later].reset_index(drop=True), average_rows(plain))
    pd.testing.assert_frame_equal(average_models(rows), average_models(plain))
    values = by_place(rows)
    assert set(found[later]["metric"]) == {"auc", "fpr", "ap"}
    for row in found[later].to_dict("records"):
        of_seeds = [
            mean([values[seed, t, row["detector"], "future", 0, row["metric"]] for t in (1, 2, 3)])
            for seed in (0, 1, 2)
        ]
        expected = mean(of_seeds), deviation(of_seeds), 3
        assert (row["mean"], row["std"], row["steps"]) == pytest.approx(expected, abs=1e-12)


def test_average_and_forgetting_of_the_auc_of_tasks(
    made_up: Rows, with_future: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    rows = with_future(made_up())
    values, found = by_place(rows), average_tasks(rows)
    assert len(found) == 2 * 2

    def a(seed: int, detector: str, t: int, j: int) -> float:
        return mean([values[seed, t, detector, ood, j, "auc_task"] for ood in SPLITS["all"]])

    def naive(seed: int, detector: str, metric: str) -> float:
        last = {j: a(seed, detector, 4, j) for j in (1, 2, 3, 4)}
        if metric == "auc_average":
            return mean([*last.values()])
        return mean([max(a(seed, detector, t, j) for t in range(j, 5)) - last[j] for j in (1, 2, 3)])

    for row in found.to_dict("records"):
        of_seeds = [naive(seed, row["detector"], row["metric"]) for seed in (0, 1, 2)]
        expected = mean(of_seeds), deviation(of_seeds), 4
        assert (row["mean"], row["std"], row["steps"]) == pytest.approx(expected, abs=1e-12)
    assert average_tasks(made_up()).empty
