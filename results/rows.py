"""Read the published rows and the figures that they are compared with, for the tables of the pages.

All values are in percent. A *training* is a CIL model and a seed; it counts once all of its steps have the
sixteen detectors. A mean over the four models weighs each model alike, however many seeds it has.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

import opencil
from opencil.published import contradictory, in_percent, published_results, published_survey, recomputed_means
from opencil.registry import DETECTORS, LEARNERS

RESULTS = Path(__file__).parent
EXPERIMENTS = RESULTS.parent / "experiments"

CIL = {"icarl": "iCaRL", "bic": "BiC", "wa": "WA", "foster": "FOSTER"}
_POSTHOC = ("MSP", "MaxLogit", "Energy", "KLM", "GEN", "ODIN", "ReAct", "NNGuide", "Relation")
_TUNED = ("LogitNorm", "T2FNorm", "AugMix", "RegMix", "VOS", "NPOS", "BER")
POSTHOC, TUNED = ({name.lower(): name for name in names} for names in (_POSTHOC, _TUNED))
SIXTEEN = POSTHOC | TUNED
KS = (10, 20, 5)
SPLITS = ("all", "near", "far")
OTHER_ORDER = "orders"  #: folder of rows under class order 1994: k = 10, seed 0; all others have 1993

Values = pd.Series  # of floats


def markdown(header: Iterable[str], lines: Iterable[Iterable[str]], texts: Sequence[int] = (0,)) -> str:
    """Return a Markdown table; columns other than ``texts`` are aligned as numbers."""
    head, *body = (
        f"| {' | '.join(line)} |".replace("  ", " ").replace("  ", " ") for line in (header, *lines)
    )
    rule = "|".join("---" if column in texts else "---:" for column in range(head.count("|") - 1))
    return "\n".join([head, f"|{rule}|", *body])


def title(method: str) -> str:
    """Return the name of a detector or CIL method as its paper writes it."""
    registry = DETECTORS if method in DETECTORS.names() else LEARNERS
    return registry.entry(method).title


@cache
def study(folder: str = "study") -> opencil.Study:
    """Read published rows: a folder of results/."""
    return opencil.read_study(RESULTS / folder)


@cache
def _rows(folder: str, metric: str, k: int) -> pd.DataFrame:
    rows = study(folder).rows
    return rows[(rows["metric"] == metric) & (rows["k"] == k) & (rows["task"] == 0)]


def average(rows: pd.DataFrame, column: str, **where: Any) -> float:
    """Return the mean of the lines whose cells equal the values given, or are among them."""
    asked = [rows[name].isin([v] if isinstance(v, str | int) else list(v)) for name, v in where.items()]
    lines = rows[column][np.logical_and.reduce(asked)]
    if lines.empty:
        raise ValueError(f"there are no such rows: {where}")
    return float(lines.mean())


def mean(metric: str, detector: str = "", k: int = 10, folder: str = "study", **where: Any) -> float:
    """Return the mean of a metric over the rows of a folder that match."""
    return 100 * average(_rows(folder, metric, k), "value", detector=detector, **where)


def auc(detector: str, k: int = 10, **where: Any) -> float:
    """Return the mean AUC over the rows of a folder that match."""
    return mean("auc", detector, k, **where)


def megabytes(folder: str, cil: str) -> list[float]:
    """Return the MB of the last step's model and of its exemplars, at k = 10."""
    kinds = ("model_bytes", "memory_bytes")
    return [mean(kind, folder=folder, cil=cil, step=10) / 100 / 1e6 for kind in kinds]  # no percentage


@cache
def published() -> pd.DataFrame:
    """Return the paper's figures, with a column ``flagged``.

    A figure over all OOD sets that contradicts its near and far parts is replaced by their mean, and flagged.
    """
    figures = published_results()
    flagged = contradictory(figures)
    value = in_percent(figures["value"]).where(~flagged, 100 * recomputed_means(figures))
    return figures.assign(value=value, flagged=flagged)[figures["benchmark"] == "cifar100"]


@cache
def _of_paper(column: str = "value") -> dict[tuple[Any, ...], Any]:
    return dict(published().set_index(["metric", "detector", "cil", "k", "distance"])[column])


def paper(metric: str, detector: str = "", cil: Any = tuple(CIL), k: int = 10, split: str = "all") -> float:
    """Return the paper's figure, or the mean of its figures of some CIL models."""
    models, place = (cil,) if isinstance(cil, str) else cil, split if detector else ""
    return fmean(_of_paper()[metric, detector.split("@")[0], one, k, place] for one in models)


def flagged(metric: str, detector: str, cil: str, k: int, split: str = "all") -> bool:
    """Return whether the paper's figure contradicts its parts."""
    return bool(_of_paper("flagged")[metric, detector, cil, k, split])


@cache
def survey(cil: str, k: int = 10) -> float | None:
    """Return the survey's average accuracy of a method with k classes in every step, if it has one."""
    figures = published_survey()
    figures = figures[(figures["split"] == f"b0-{k}") & (figures["metric"] == "average_accuracy")]
    found = figures.loc[figures["cil"] == cil, "value"]
    return None if found.empty else float(found.iloc[0])


@cache
def trainings(
    k: int, detectors: tuple[str, ...] = tuple(SIXTEEN), folder: str = "study"
) -> list[tuple[str, int]]:
    """Return the finished trainings of a folder as a sorted list of (CIL model, seed)."""
    return sorted(
        (run["cil"], run["seed"])
        for run in study(folder).runs
        if run["k"] == k
        and run["cil"] in CIL
        and run["trained"] == run["steps"]
        and all(run["detectors"].get(name) == run["steps"] for name in detectors)
    )


@cache
def study_rows(k: int, metric: str, folder: str = "study") -> pd.DataFrame:
    """Return a folder's rows of a metric, of finished trainings and the sixteen detectors."""
    rows = _rows(folder, metric, k)
    rows = rows[rows["detector"].isin(["", *SIXTEEN])]
    rows = rows[pd.MultiIndex.from_frame(rows[["cil", "seed"]]).isin(trainings(k, folder=folder))]
    return rows.assign(value=100 * rows["value"])


@cache
def cells(
    k: int, metric: str = "auc", first: int = 1, last: int = 100, folder: str = "study"
) -> pd.DataFrame:
    """Return means over steps from ``first`` to ``last``: (cil, seed, ood) × the sixteen detectors."""
    rows = study_rows(k, metric, folder)
    rows = rows[rows["step"].between(first, last) & (rows["detector"] != "")]
    return rows.groupby(["cil", "seed", "ood", "detector"])["value"].mean().unstack("detector")[list(SIXTEEN)]


def of_split(values: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return the cells of near OOD sets, of far ones, or all."""
    near = values.index.get_level_values("ood").isin(["cifar10", "tin"])
    return {"near": values[near], "far": values[~near], "all": values}[split]


@cache
def by_training(k: int, metric: str = "auc", split: str = "all", folder: str = "study") -> pd.DataFrame:
    """Return means over OOD sets and steps: (cil, seed) × the sixteen detectors."""
    return of_split(cells(k, metric, folder=folder), split).groupby(["cil", "seed"]).mean()


@cache
def by_model(k: int, metric: str = "auc", split: str = "all") -> pd.DataFrame:
    """Return means over seeds, OOD sets and steps: CIL models × the sixteen detectors."""
    return by_training(k, metric, split).groupby("cil").mean().loc[list(CIL)]


@cache
def distance(k: int, metric: str = "auc", split: str = "all") -> pd.DataFrame:
    """Return ours less the paper's figures: CIL models × the sixteen detectors."""
    ours = by_model(k, metric, split)
    papers = [[paper(metric, d, cil, k, split) for d in ours.columns] for cil in ours.index]
    return ours - np.array(papers)


@cache
def released() -> pd.DataFrame:
    """Return AUCs of detectors set up as in the paper's code: CIL models × detectors, k = 10, seed 1."""
    rows = pd.read_csv(EXPERIMENTS / "set_up_data_seed1.csv").query("k == 10")
    as_in_code = np.where(rows["detector"] == "nnguide", "one batch", "as released")
    return 100 * rows[rows["setup"] == as_in_code].pivot_table("auc", "cil", "detector").loc[list(CIL)]


@cache
def accuracies(k: int, cil: str, metric: str = "accuracy", folder: str = "study") -> Values:
    """Return accuracies, means over steps, by seed."""
    rows = study_rows(k, metric, folder)
    return rows[(rows["cil"] == cil) & (rows["detector"] == "")].groupby("seed")["value"].mean()


def mean_of_models(values: Any) -> Any:
    """Return the mean over CIL models of their means."""
    return values.groupby("cil").mean().mean()


def spread(values: Values, digits: int = 2, mean: float | None = None) -> str:
    """Write a mean ± the sample standard deviation over seeds; a single seed has none."""
    deviation = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean() if mean is None else mean:.{digits}f}{deviation}"


def spread_of_models(k: int, values: Values) -> str:
    """Write the mean of the four models ± the deviation over seeds that have all four."""
    of_all = [seed for seed in {s for _, s in trainings(k)} if all((c, seed) in trainings(k) for c in CIL)]
    whole = values[values.index.get_level_values("seed").isin(of_all)]
    return spread(whole.groupby("seed").mean(), 1, mean_of_models(values))


def listed(names: Iterable[Any]) -> str:
    """Write names as a list: 'A, B and C'."""
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last
