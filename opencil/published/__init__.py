"""The paper's own result figures, to print beside ours."""

from importlib import resources

import pandas as pd


def published_results() -> pd.DataFrame:
    """The 3,096 figures of the paper's result tables, in percent.

    Columns: id_dataset, classes_per_step, cil, detector, ood_split, metric, value, paper_table; ``detector``
    and ``ood_split`` are empty in rows of accuracy.
    """
    with (resources.files("opencil.published") / "results.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False, dtype={"value": float})
