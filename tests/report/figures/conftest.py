"""Rows that fill every figure."""

from collections.abc import Callable

import pandas as pd
import pytest

DETECTORS = ("msp", "energy", "gen", "odin", "klm")


@pytest.fixture(scope="session")
def rows(made_up: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Two CIL models and the joint one, five detectors, three seeds, four steps; also AUC of new classes."""
    parts = [
        made_up(cil=cil, detectors=DETECTORS, entropy=i) for i, cil in enumerate(("icarl", "wa", "joint"))
    ]
    table = pd.concat(parts)
    new = table[table["metric"] == "auc"].assign(metric="auc_new")
    return pd.concat([table, new.assign(value=1 - new["value"])], ignore_index=True)
