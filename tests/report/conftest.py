"""Rows that no run has made."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from opencil.runs.store import COLUMNS

METRICS = ("auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive")
OOD = {"n1": "near", "f1": "far", "f2": "far", "f3": "far"}


@pytest.fixture
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
                    for ood, distance in OOD.items():
                        place = (*head, detector, ood, distance)
                        rows += [(*place, t, "confidence", draw.random()) for t in tasks[1:]]
                        metrics = METRICS if step == 1 else (*METRICS, "auc_old")
                        rows += [(*place, 0, metric, draw.random()) for metric in metrics]
        table = pd.DataFrame(rows, columns=COLUMNS)
        return table.sample(frac=1, random_state=entropy)  # their order has no say

    return make
