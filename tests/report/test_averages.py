"""Averages against loops: over datasets, then steps, then seeds."""

import math
from collections.abc import Callable

import pandas as pd
import pytest

from opencil.report.averages import over_seeds, over_steps, per_step

Rows = Callable[..., pd.DataFrame]
SPLITS = {"near": ("n1",), "far": ("f1", "f2", "f3"), "all": ("n1", "f1", "f2", "f3")}


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


Place = tuple[int, int, str, str, str]


def by_place(rows: pd.DataFrame) -> dict[Place, float]:
    """The value of each (seed, step, detector, OOD set, metric)."""
    columns = ["seed", "step", "detector", "ood", "metric", "value"]
    found = {tuple(row[:-1]): row[-1] for row in rows[columns].itertuples(index=False)}
    assert len(found) == len(rows)
    return found


def naive_step(
    rows: dict[Place, float], seed: int, step: int, detector: str, split: str, metric: str
) -> float:
    return mean([rows[seed, step, detector, ood, metric] for ood in SPLITS[split]])


def test_per_step(made_up: Rows) -> None:
    table, rows = per_step(made_up()), by_place(made_up())
    assert len(table) == 3 * 4 * 2 * 3 * 5
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
    assert set(table["steps"]) == {4}
    for row in table.to_dict("records"):
        seed, detector = row["seed"], row["detector"]
        if detector:
            values = [naive_step(rows, seed, t, detector, row["split"], row["metric"]) for t in (1, 2, 3, 4)]
        else:
            assert (row["split"], row["metric"]) == ("", "accuracy")
            values = [rows[seed, t, "", "", "accuracy"] for t in (1, 2, 3, 4)]
        assert row["value"] == pytest.approx(mean(values), abs=1e-12)
    assert len(table) == 3 * (1 + 2 * 3 * 5)


def test_over_seeds(made_up: Rows) -> None:
    table, rows = over_seeds(made_up()), by_place(made_up())
    assert len(table) == 1 + 2 * 3 * 5
    for row in table.to_dict("records"):
        values = []
        for seed in (0, 1, 2):
            if row["detector"]:
                place = (row["detector"], row["split"], row["metric"])
                values.append(mean([naive_step(rows, seed, t, *place) for t in (1, 2, 3, 4)]))
            else:
                values.append(mean([rows[seed, t, "", "", "accuracy"] for t in (1, 2, 3, 4)]))
        middle = mean(values)
        deviation = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / 2)  # n − 1
        assert row["mean"] == pytest.approx(middle, abs=1e-12)
        assert row["std"] == pytest.approx(deviation, abs=1e-12)
        assert (row["seeds"], row["steps"]) == (3, 4)


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
