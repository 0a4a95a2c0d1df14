"""Average rows in the paper's order: over datasets, then over steps, then over seeds.

A seed with fewer steps than another seed of its method is in no average over seeds: later steps are harder.
"""

from collections.abc import Collection

import pandas as pd
import torch

from opencil.data.roles import ALL, FUTURE, OOD_ROLES
from opencil.evaluation.metric import KEPT, OVER_STEPS, shares
from opencil.evaluation.metrics import backward_transfer, forgetting

#: The columns that identify a run.
RUN = ["benchmark", "k", "cil", "seed"]


def dataset_place(name: str) -> str:
    """Return the place of an OOD dataset's values, beside ``near``, ``far`` and ``all``."""
    return f"dataset {name}"  # the space keeps a dataset named "far" apart from the split


def is_ood(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Mark the rows of a detector against all samples of an OOD dataset."""
    named = (rows["detector"] != "") & (rows["ood"] != "") & (rows["task"] == 0)
    return named & rows["distance"].isin(OOD_ROLES)


def average_datasets(rows: pd.DataFrame, uncounted: Collection[str] = (), each: bool = False) -> pd.DataFrame:
    """Return values per run, step, detector, place and metric; rows of single tasks are left out.

    The place of an OOD metric is near, far or all: the mean over the datasets not ``uncounted``. Classes of
    later steps are a place of their own.
    With ``each``, every dataset is a place too, shifted or not. The place of other metrics is empty, and so
    is the detector of metrics of the CIL model itself.
    """
    of_ood = is_ood(rows)
    ood, others = rows[of_ood], shares(rows[~of_ood & (rows["task"] == 0)])
    others, future = (others[(others["distance"] == FUTURE) == later] for later in (False, True))
    counted = ood[~ood["ood"].isin(uncounted)]
    parts = [others.assign(place=""), counted.assign(place=counted["distance"]), counted.assign(place=ALL)]
    parts.append(future.assign(place=FUTURE))
    if each:
        named = pd.concat([ood, others[others["ood"] != ""]])
        parts.append(named.assign(place=dataset_place("") + named["ood"]))
    keys = [*RUN, "step", "detector", "place", "metric"]
    return pd.concat(parts).groupby(keys, as_index=False).agg(value=("value", "mean"))


def average_steps(per_step: pd.DataFrame) -> pd.DataFrame:
    """Return one value per run, detector, place and metric, with the number of its steps."""
    grouped = per_step.groupby([*RUN, "detector", "place", "metric"], as_index=False)
    return grouped.agg(value=("value", "mean"), steps=("step", "nunique"))


def average_tasks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the average and the forgetting of tasks' AUC over all OOD sets, as ``average_rows`` does."""
    of_tasks = rows[(rows["metric"] == "auc_task") & rows["distance"].isin(OOD_ROLES)]
    run = [*RUN, "detector"]
    cells = of_tasks.groupby([*run, "step", "task"], as_index=False).agg(value=("value", "mean"))
    most = cells.groupby([*run, "task"])["value"].transform("max")
    last = cells.assign(lost=most - cells["value"], steps=cells.groupby(run)["step"].transform("nunique"))
    last = last[last["step"] == last.groupby(run)["step"].transform("max")]
    average, forgetting = OVER_STEPS
    parts = [last.assign(metric=average), last[last["task"] < last["step"]].assign(metric=forgetting)]
    parts[1]["value"] = parts[1]["lost"]
    per_run = pd.concat(parts).groupby([*run, "metric", "steps"], as_index=False).agg(value=("value", "mean"))
    return average_seeds(per_run.assign(place=""), ["benchmark", "k", "cil", "detector", "place", "metric"])


def average_seeds(per_run: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return mean and sample deviation over the seeds with the most steps; one seed has no deviation."""
    most = per_run.groupby(keys, observed=True)["steps"].transform("max")
    return (
        per_run[per_run["steps"] == most]
        .groupby(keys, as_index=False, observed=True)
        .agg(mean=("value", "mean"), std=("value", "std"), seeds=("seed", "nunique"), steps=("steps", "min"))
    )


def average_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Average rows over datasets, steps and seeds, by method, detector, place and metric."""
    per_run = average_steps(average_datasets(rows))
    return average_seeds(per_run, ["benchmark", "k", "cil", "detector", "place", "metric"])


def select_longest(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the rows of the seeds with as many steps as any other of the same ``keys``."""
    steps = rows.groupby([*keys, "seed"], observed=True)["step"].transform("nunique")
    grouped = steps.groupby([rows[key] for key in keys], observed=True)
    return rows[steps == grouped.transform("max")]


def list_megabytes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the megabytes of ``model`` and ``memory`` after each step that has rows of both."""
    table = rows[rows["metric"].isin(KEPT)].pivot_table("value", [*RUN, "step"], "metric")
    both = table.reindex(columns=list(KEPT)).dropna() / 1e6
    return both.set_axis(["model", "memory"], axis=1).reset_index()


def average_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Return metrics of the CIL models themselves, mean and deviation over seeds.

    Every accuracy is averaged over steps (``average ...``) and taken after the last step (``last ...``).
    """
    models = shares(rows[rows["detector"] == ""])
    lines = []
    for run, part in models.groupby(RUN):
        steps = part["step"].nunique()
        for metric, values in part[part["task"] == 0].groupby("metric"):
            by_step = values.groupby("step")["value"].mean()  # of one shifted set or of several
            lines.append((*run, f"average {metric}", by_step.mean(), steps))
            lines.append((*run, f"last {metric}", by_step.iloc[-1], steps))
        tasks = part[(part["task"] > 0) & (part["metric"] == "accuracy")]
        matrix = tasks.pivot(index="step", columns="task", values="value")
        if steps > 1 and matrix.shape == (steps, steps):
            tensor = torch.tensor(matrix.to_numpy())
            lines.append((*run, "forgetting", forgetting(tensor), steps))
            lines.append((*run, "backward transfer", backward_transfer(tensor), steps))
    table = pd.DataFrame(lines, columns=[*RUN, "metric", "value", "steps"])
    return average_seeds(table, ["benchmark", "k", "cil", "metric"])
