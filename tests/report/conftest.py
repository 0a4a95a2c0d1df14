"""Rows that no run has made."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from opencil.published import OOD as PAPER_OOD
from opencil.published import published_results
from opencil.registry import DETECTORS
from opencil.study.rows import COLUMNS

METRICS = ("auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive")
OOD = {"n1": "near", "f1": "far", "f2": "far", "f3": "far"}


@pytest.fixture(scope="session")
def made_up() -> Callable[..., pd.DataFrame]:
    """Random rows: one near set and three far ones, so that a mean of splits is not a mean of datasets.

    Among them rows of one task's samples, and a metric that begins at step 2.
    """

    def make(
        benchmark: str = "b",
        k: int = 2,
        cil: str = "icarl",
        seeds: tuple[int, ...] = (0, 1, 2),
        steps: int = 4,
        detectors: tuple[str, ...] = ("msp", "energy"),
        entropy: int = 0,
        others: tuple[str, ...] = (),
        ood: dict[str, str] = OOD,
    ) -> pd.DataFrame:
        draw = np.random.default_rng(entropy)
        rows = []
        for seed in seeds:
            for step in range(1, steps + 1):
                head, tasks = (benchmark, k, cil, seed, step), range(step + 1)
                for metric in ("accuracy", *others):
                    rows += [(*head, "", "", "", task, metric, draw.random()) for task in tasks]
                for detector in detectors:
                    rows += [(*head, detector, "", "", t, "confidence", draw.random()) for t in tasks[1:]]
                    for name, distance in ood.items():
                        place = (*head, detector, name, distance)
                        rows += [(*place, t, "confidence", draw.random()) for t in tasks[1:]]
                        metrics = METRICS if step == 1 else (*METRICS, "auc_old")
                        rows += [(*place, 0, metric, draw.random()) for metric in metrics]
        table = pd.DataFrame(rows, columns=COLUMNS)
        return table.sample(frac=1, random_state=entropy)  # their order has no say

    return make


@pytest.fixture(scope="session")
def many() -> pd.DataFrame:
    """Rows of 19 CIL methods, 41 detectors and 3 seeds, whose levels follow from their names.

    The last names are the best: ``c18`` and ``z``, and the first detectors of the registry the worst.
    """
    names = [*DETECTORS.names()[:39], "ber@nter", "y", "z"]
    runs = [("b", 2, f"c{i:02}", seed, step) for i in range(19) for seed in range(3) for step in (1, 2)]
    rows = []
    for place in runs:
        level = 0.5 + int(place[2][1:]) / 100 - place[4] / 50 + place[3] / 1000
        rows += [(*place, "", "", "", task, "accuracy", level) for task in range(place[4] + 1)]
        for i, detector in enumerate(names):
            for ood, distance in (("n1", "near"), ("f1", "far")):
                at = (*place, detector, ood, distance, 0)
                rows += [(*at, metric, level + i / 1000) for metric in ("auc", "fpr", "ap")]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def with_shifted() -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Rows with two shifted sets besides: accuracies of the model, and what detectors reject."""

    def make(rows: pd.DataFrame) -> pd.DataFrame:
        place = ["benchmark", "k", "cil", "seed", "step", "detector"]
        heads = rows[place].drop_duplicates().sort_values(place, ignore_index=True)
        heads["metric"] = heads["detector"].map(lambda name: "fpr_shifted" if name else "accuracy_shifted")
        sets = pd.DataFrame({"ood": ["s1", "s2"], "distance": "shifted", "task": 0})
        added = heads.merge(sets, how="cross")
        return pd.concat([rows, added.assign(value=(added.index * 0.37) % 1)], ignore_index=True)

    return make


@pytest.fixture
def with_future() -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Rows with classes of later steps besides, at all steps but the last, and with each task's AUC."""

    def make(rows: pd.DataFrame) -> pd.DataFrame:
        of_ood = rows[rows["metric"].isin(["auc", "fpr", "ap"]) & (rows["ood"] == "f1")]
        later = of_ood[of_ood["step"] < rows["step"].max()].assign(ood="future", distance="future")
        later["value"] = 1 - later["value"]
        of_tasks = rows[(rows["metric"] == "confidence") & (rows["ood"] != "")].assign(metric="auc_task")
        others = of_tasks[of_tasks["ood"] == "f1"].assign(ood="future", distance="future")
        return pd.concat([rows, later, of_tasks, others])

    return make


@pytest.fixture(scope="session")
def keeping() -> Callable[..., pd.DataFrame]:
    """Rows of what a run keeps, bytes of model and memory step by step: ``keeping((1, 2), (3, 4))``."""

    def make(*steps: tuple[float, float], cil: str = "icarl", k: int = 2, seed: int = 0) -> pd.DataFrame:
        heads = [("b", k, cil, seed, step, "", "", "", 0) for step in range(1, len(steps) + 1)]
        named = [zip(("model_bytes", "memory_bytes"), of, strict=True) for of in steps]
        rows = [(*head, *pair) for head, pairs in zip(heads, named, strict=True) for pair in pairs]
        return pd.DataFrame(rows, columns=COLUMNS)

    return make


@pytest.fixture
def paper_rows() -> pd.DataFrame:
    """Rows of one step in which every dataset has the paper's figure of its split: near or far."""
    rows = []
    for row in published_results().to_dict("records"):
        head = (row["benchmark"], row["k"], row["cil"], 0, 1, row["detector"])
        if row["metric"] == "accuracy":
            rows.append((*head, "", "", 0, "accuracy", row["value"]))
        elif row["distance"] != "all":
            names = PAPER_OOD[row["benchmark"]][row["distance"]]
            rows += [(*head, ood, row["distance"], 0, row["metric"], row["value"]) for ood in names]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    """The record of a run, as a study has it: ``record(cil="wa", steps=10)``."""

    def make(**values: object) -> dict[str, Any]:
        run: dict[str, Any] = {"benchmark": "b", "k": 2, "cil": "icarl", "seed": 0, "steps": 4, "trained": 4}
        run |= {
            "seconds": [{"training": 1.0}] * 4,
            "detectors": {"msp": 4, "energy": 4},
            "config": {},
            "environment": {},
        }
        return run | {"data": []} | values

    return make
