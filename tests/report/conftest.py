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
    """Random rows: one near set and three far ones, so that a mean of splits is not a mean of datasets."""

    def make(
        benchmark: str = "b",
        k: int = 2,
        cil: str = "icarl",
        seeds: tuple[int, ...] = (0, 1, 2),
        steps: int = 4,
        detectors: tuple[str, ...] = ("msp", "energy"),
        entropy: int = 0,
    ) -> pd.DataFrame:
        draw = np.random.default_rng(entropy)
        rows = []
        for seed in seeds:
            for step in range(1, steps + 1):
                head = (benchmark, k, cil, seed, step)
                rows.append((*head, "", "", "", "accuracy", draw.random()))
                for detector in detectors:
                    for ood, distance in OOD.items():
                        for metric in METRICS:
                            rows.append((*head, detector, ood, distance, metric, draw.random()))
        table = pd.DataFrame(rows, columns=COLUMNS)
        return table.sample(frac=1, random_state=entropy)  # their order has no say

    return make
