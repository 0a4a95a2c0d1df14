"""Averages against loops: over datasets, then steps, then seeds."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.report.averages import continual, megabytes, over_seeds, over_steps, per_step

Rows = Callable[..., pd.DataFrame]
SPLITS = {"near": ("n1",), "far": ("f1", "f2", "f3"), "all": ("n1", "f1", "f2", "f3")}


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    return math.sqrt(math.fsum((v - mean(values)) ** 2 for v in values) / (len(values) - 1))


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
        place = (row["detector"], row["split"], row["metric"])
        return mean([naive_step(rows, seed, t, *place) for t in steps])
    assert (row["split"], row["metric"]) == ("", "accuracy")
    return mean([rows[seed, t, "", "", 0, "accuracy"] for t in steps])


def test_bytes_are_in_no_average_of_shares(made_up: Rows, keeping: Rows) -> None:
    plain = made_up()
    rows = pd.concat([plain, *(keeping(*[(10**t, t) for t in range(1, 5)], seed=s) for s in (0, 1, 2))])
    for average in (per_step, over_steps, over_seeds, continual):
        pd.testing.assert_frame_equal(average(rows), average(plain))


def test_a_seed_that_is_behind_is_in_no_average(made_up: Rows) -> None:
    """Of each method by itself: later steps are harder, so that it would look better than it is."""
    every = pd.concat([made_up(), made_up(cil="wa", steps=2)])
    behind = (every["cil"] == "icarl") & (every["seed"] == 2)
    for average in (over_seeds, continual):
        found = average(every[~(behind & (every["step"] > 3))])
        pd.testing.assert_frame_equal(found, average(every[~behind]))
        assert set(found[found["cil"] == "wa"]["seeds"]) == {3}, "all are as far there"


def test_megabytes(keeping: Rows) -> None:
    rows = pd.concat([keeping((3e6, 2e6), (4e6, 1e6)), keeping((5e6, 0), (7e6, 8), seed=1)])
    found = megabytes(rows[~rows["value"].isin([3e6, 8])])  # of two steps the model alone, or the memory
    assert list(found.columns) == ["benchmark", "k", "cil", "seed", "step", "model", "memory"]
    assert found.to_numpy().tolist() == [["b", 2, "icarl", 0, 2, 4.0, 1.0], ["b", 2, "icarl", 1, 1, 5.0, 0.0]]
    assert megabytes(rows[:0]).empty


def test_per_step(made_up: Rows) -> None:
    table, rows = per_step(made_up()), by_place(made_up())
    assert len(table) == 3 * 2 * 3 * (4 * 5 + 3)
    for row in table.to_dict("records"):
        expected = naive_step(rows, row["seed"], row["step"], row["detector"], row["split"], row["metric"])
        assert row["value"] == pytest.approx(expected, abs=1e-12)


def test_all_is_the_mean_over_datasets_not_over_splits(made_up: Rows) -> None:
    rows = made_up(seeds=(0,), steps=1, detectors=("msp",))
    rows.loc[rows["distance"] == "near", "value"] = 1.0
    rows.loc[rows["distance"] == "far", "value"] = 0.0
    table = per_step(rows)
    assert set(table.loc[table["split"] == "all", "value"]) == {0.25}


def test_over_steps(made_up: Rows) -> None:
    table, rows = over_steps(made_up()), by_place(made_up())
    for row in table.to_dict("records"):
        assert row["value"] == pytest.approx(naive_run(rows, row["seed"], row), abs=1e-12)
        assert row["steps"] == len(STEPS.get(row["metric"], (1, 2, 3, 4)))
    assert len(table) == 3 * (1 + 2 * 3 * 6)


def test_over_seeds(made_up: Rows) -> None:
    table, rows = over_seeds(made_up()), by_place(made_up())
    assert len(table) == 1 + 2 * 3 * 6
    for row in table.to_dict("records"):
        values = [naive_run(rows, seed, row) for seed in (0, 1, 2)]
        assert (row["mean"], row["std"]) == pytest.approx((mean(values), deviation(values)), abs=1e-12)
        assert (row["seeds"], row["steps"]) == (3, len(STEPS.get(row["metric"], (1, 2, 3, 4))))


def test_datasets_of_a_step_weigh_as_much_however_many_steps_there_are(made_up: Rows) -> None:
    """Steps are averaged after datasets: a dataset that one step lacks does not shift the others' weight."""
    rows = made_up(seeds=(0,), steps=2, detectors=("msp",))
    rows = rows[~((rows["step"] == 1) & rows["ood"].isin(["f1", "f2"]))]
    far = rows[(rows["metric"] == "auc") & (rows["distance"] == "far")]
    expected = mean([mean(list(far.loc[far["step"] == t, "value"])) for t in (1, 2)])
    table = over_steps(rows)
    found = table[(table["metric"] == "auc") & (table["split"] == "far")]["value"].item()
    assert found == pytest.approx(expected, abs=1e-12)


def test_one_seed_has_no_deviation(made_up: Rows) -> None:
    assert over_seeds(made_up(seeds=(7,)))["std"].isna().all()


def test_methods_benchmarks_and_steps_sizes_stay_apart(made_up: Rows) -> None:
    parts = [
        made_up(entropy=1),
        made_up(cil="wa", entropy=2),
        made_up(k=5, entropy=3),
        made_up(benchmark="c", entropy=4),
    ]
    together = over_seeds(pd.concat(parts, ignore_index=True))
    alone = pd.concat([over_seeds(part) for part in parts])
    keys = ["benchmark", "k", "cil", "detector", "split", "metric"]
    pd.testing.assert_frame_equal(
        together.sort_values(keys, ignore_index=True), alone.sort_values(keys, ignore_index=True)
    )


# --- the models themselves -------------------------------------------------------------------------


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
    table, rows = continual(made_up()), by_place(made_up())
    values = [naive_continual(rows, seed) for seed in (0, 1, 2)]
    assert set(table["metric"]) == set(values[0])
    for row in table.to_dict("records"):
        of_metric = [value[row["metric"]] for value in values]
        assert (row["benchmark"], row["k"], row["cil"]) == ("b", 2, "icarl")
        assert (row["mean"], row["std"]) == pytest.approx((mean(of_metric), deviation(of_metric)), abs=1e-12)
        assert (row["seeds"], row["steps"]) == (3, 4)


def test_a_single_step_forgets_nothing_to_speak_of(made_up: Rows) -> None:
    table = continual(made_up(steps=1, seeds=(0,)))
    assert set(table["metric"]) == {"average accuracy", "last accuracy"}
    assert table["mean"].nunique() == 1
    assert table["std"].isna().all()


def test_another_accuracy_of_the_model_is_averaged_beside_it(made_up: Rows) -> None:
    rows = made_up(others=("accuracy_nearest_mean",))
    table = continual(rows).set_index("metric")["mean"]
    place = by_place(rows)
    found = {t: [place[s, t, "", "", 0, "accuracy_nearest_mean"] for s in (0, 1, 2)] for t in (1, 2, 3, 4)}
    assert table["last accuracy_nearest_mean"] == pytest.approx(mean(found[4]), abs=1e-12)
    over_all = mean([v for values in found.values() for v in values])
    assert table["average accuracy_nearest_mean"] == pytest.approx(over_all, abs=1e-12)
    assert set(table.index) == {
        *continual(made_up())["metric"],
        "average accuracy_nearest_mean",
        "last accuracy_nearest_mean",
    }


def test_methods_are_averaged_apart(made_up: Rows) -> None:
    parts = [made_up(entropy=1), made_up(cil="wa", entropy=2), made_up(k=5, steps=2, entropy=3)]
    together, alone = continual(pd.concat(parts)), pd.concat([continual(part) for part in parts])
    keys = ["benchmark", "k", "cil", "metric"]
    pd.testing.assert_frame_equal(
        together.sort_values(keys, ignore_index=True), alone.sort_values(keys, ignore_index=True)
    )


def test_shifted_sets_are_in_no_split_and_are_averaged_by_themselves(
    made_up: Rows, with_shifted: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    plain, rows = made_up(), with_shifted(made_up())
    pd.testing.assert_frame_equal(per_step(rows), per_step(plain))
    values, keys = by_place(rows), ["seed", "detector", "split", "metric"]
    found = over_steps(rows).set_index(keys)["value"]
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
    pd.testing.assert_series_equal(found, over_steps(plain).set_index(keys)["value"])


def test_accuracy_under_a_shift_is_the_mean_of_the_shifted_sets(
    made_up: Rows, with_shifted: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    plain, rows = made_up(), with_shifted(made_up())
    values, table = by_place(rows), continual(rows).set_index("metric")["mean"]
    of_step = {
        t: mean([values[seed, t, "", s, 0, "accuracy_shifted"] for seed in (0, 1, 2) for s in ("s1", "s2")])
        for t in (1, 2, 3, 4)
    }
    assert table.pop("average accuracy_shifted") == pytest.approx(mean(list(of_step.values())), abs=1e-12)
    assert table.pop("last accuracy_shifted") == pytest.approx(of_step[4], abs=1e-12)
    pd.testing.assert_series_equal(table, continual(plain).set_index("metric")["mean"])
