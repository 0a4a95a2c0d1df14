"""Averages of rows, in the paper's order: over datasets, then over steps, then over seeds."""

import pandas as pd

_RUN = ["benchmark", "k", "cil", "seed"]
_METHOD = ["benchmark", "k", "cil", "detector"]


def per_step(rows: pd.DataFrame) -> pd.DataFrame:
    """OOD metrics per run, step and detector; ``split`` is near, far, or all (mean over every dataset).

    Rows of one task's samples have no place in it.
    """
    measured = rows[(rows["detector"] != "") & (rows["ood"] != "") & (rows["task"] == 0)]
    both = pd.concat([measured.assign(split=measured["distance"]), measured.assign(split="all")])
    return both.groupby([*_RUN, "step", "detector", "split", "metric"], as_index=False).agg(
        value=("value", "mean")
    )


def over_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """One value per run, detector, split and metric; accuracy has an empty detector and split."""
    accuracy = rows[(rows["detector"] == "") & (rows["task"] == 0)].assign(split="")
    table = pd.concat([per_step(rows), accuracy[[*_RUN, "step", "detector", "split", "metric", "value"]]])
    grouped = table.groupby([*_RUN, "detector", "split", "metric"], as_index=False)
    return grouped.agg(value=("value", "mean"), steps=("step", "nunique"))


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over seeds; one seed has no deviation."""
    grouped = over_steps(rows).groupby([*_METHOD, "split", "metric"], as_index=False)
    return grouped.agg(
        mean=("value", "mean"), std=("value", "std"), seeds=("seed", "nunique"), steps=("steps", "min")
    )
