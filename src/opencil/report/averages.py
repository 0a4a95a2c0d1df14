"""Averages of rows, in the paper's order: over datasets, then over steps, then over seeds.

A seed that has fewer steps than another of its method is in no average over seeds: later steps are harder.
"""

import pandas as pd
import torch

from opencil.data.roles import ALL, SHIFTED
from opencil.evaluation.metric import KEPT, shares
from opencil.evaluation.metrics import backward_transfer, forgetting

#: What tells one run from another.
RUN = ["benchmark", "k", "cil", "seed"]
_METHOD = ["benchmark", "k", "cil", "detector"]


def per_step(rows: pd.DataFrame) -> pd.DataFrame:
    """OOD metrics per run, step and detector; ``split`` is near, far, or all (mean over every dataset).

    Rows of one task's samples have no place in it.
    """
    measured = of_datasets(rows)
    both = pd.concat([measured.assign(split=measured["distance"]), measured.assign(split=ALL)])
    return both.groupby([*RUN, "step", "detector", "split", "metric"], as_index=False).agg(
        value=("value", "mean")
    )


def of_datasets(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a detector against all of an OOD dataset."""
    whole = (rows["detector"] != "") & (rows["ood"] != "") & (rows["task"] == 0)
    return rows[whole & (rows["distance"] != SHIFTED)]


def over_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """One value per run, detector, split and metric; the split of what is of ID images is empty.

    So is the detector of what is of the model itself, such as its accuracy.
    """
    rows = shares(rows)
    of_id = (rows["detector"] == "") | (rows["ood"] == "") | (rows["distance"] == SHIFTED)
    inside = rows[of_id & (rows["task"] == 0)].assign(split="")
    table = pd.concat([per_step(rows), inside[[*RUN, "step", "detector", "split", "metric", "value"]]])
    return _over_steps(table, "split")


def datasets_over_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """One value per run, detector, OOD dataset and metric."""
    return _over_steps(of_datasets(rows), "ood")


def _over_steps(table: pd.DataFrame, by: str) -> pd.DataFrame:
    grouped = table.groupby([*RUN, "detector", by, "metric"], as_index=False)
    return grouped.agg(value=("value", "mean"), steps=("step", "nunique"))


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample standard deviation over the farthest seeds; one seed has no deviation."""
    return spread(over_steps(rows), [*_METHOD, "split", "metric"])


def farthest(table: pd.DataFrame, keys: list[str], steps: "pd.Series[int]") -> pd.DataFrame:
    """The lines of seeds that have as many ``steps`` as any other of the same ``keys``."""
    return table[steps == steps.groupby([table[key] for key in keys]).transform("max")]


def megabytes(rows: pd.DataFrame) -> pd.DataFrame:
    """What runs keep after each step, in columns ``model`` and ``memory``; only of steps that have both."""
    table = rows[rows["metric"].isin(KEPT)].pivot_table("value", [*RUN, "step"], "metric")
    return (
        (table.reindex(columns=list(KEPT)).dropna() / 1e6).set_axis(["model", "memory"], axis=1).reset_index()
    )


def continual(rows: pd.DataFrame) -> pd.DataFrame:
    """What the CIL models themselves do, mean and deviation over seeds.

    Every accuracy of the rows averaged over steps (``average ...``) and after the last step (``last ...``);
    forgetting and backward transfer after the last step, from the matrix of accuracies per step and task.
    """
    models = shares(rows[rows["detector"] == ""])
    lines = []
    for run, part in models.groupby(RUN):
        steps = part["step"].nunique()
        whole = part[part["task"] == 0]
        for metric, values in whole.groupby("metric"):
            by_step = values.groupby("step")["value"].mean()  # of one shifted set or of several
            lines += [
                (*run, f"average {metric}", by_step.mean(), steps),
                (*run, f"last {metric}", by_step.iloc[-1], steps),
            ]
        matrix = part[(part["task"] > 0) & (part["metric"] == "accuracy")].pivot(
            index="step", columns="task", values="value"
        )
        if steps > 1 and matrix.shape == (steps, steps):
            tensor = torch.tensor(matrix.to_numpy())
            lines += [(*run, "forgetting", forgetting(tensor), steps)]
            lines += [(*run, "backward transfer", backward_transfer(tensor), steps)]
    table = pd.DataFrame(lines, columns=[*RUN, "metric", "value", "steps"])
    return spread(table, ["benchmark", "k", "cil", "metric"])


def spread(per_run: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean and sample standard deviation of runs' values over the farthest seeds."""
    per_run = farthest(per_run, keys, per_run["steps"])
    return per_run.groupby(keys, as_index=False).agg(
        mean=("value", "mean"), std=("value", "std"), seeds=("seed", "nunique"), steps=("steps", "min")
    )
