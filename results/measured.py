"""What the pages quote: means of rows, in percent, and the paper's and the survey's figures beside them."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

import opencil
from opencil import registry
from opencil.published import contradictory, in_percent, published_results, published_survey, recomputed_means
from opencil.report.compare import compare
from opencil.report.results import results

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parent / "experiments"

CIL = {"icarl": "iCaRL", "bic": "BiC", "wa": "WA", "foster": "FOSTER"}
_POSTHOC = ("MSP", "MaxLogit", "Energy", "KLM", "GEN", "ODIN", "ReAct", "NNGuide", "Relation")
_TUNED = ("LogitNorm", "T2FNorm", "AugMix", "RegMix", "VOS", "NPOS", "BER")
POSTHOC, TUNED = ({name.lower(): name for name in names} for names in (_POSTHOC, _TUNED))
SIXTEEN = POSTHOC | TUNED


def written(detector: str) -> str:
    """A detector as its paper writes it."""
    return registry.DETECTORS.entry(detector).title


@cache
def study(folder: str) -> opencil.Study:
    """Published rows: of results/, or of a single question."""
    return opencil.read_study(next(p for p in (HERE / folder, EXPERIMENTS / "rows" / folder) if p.exists()))


@cache
def kept(folder: str, k: int = 10) -> dict[str, tuple[float, float]]:
    """MB of the last step's model and of its exemplars, by CIL method."""
    return next(outcome.kept for outcome in results(study(folder)) if outcome.k == k)


@cache
def found(path: str) -> pd.DataFrame:
    """A CSV file of experiments/."""
    return pd.read_csv(EXPERIMENTS / path)


def average(table: pd.DataFrame, column: str, **where: Any) -> float:
    """Mean of the lines whose cells are the values given, or among them."""
    asked = [table[name].isin([v] if isinstance(v, str | int) else list(v)) for name, v in where.items()]
    lines = table[column][np.logical_and.reduce(asked)]
    if lines.empty:
        raise ValueError(f"there are no such rows: {where}")
    return float(lines.mean())


@cache
def rows(folder: str, metric: str, detector: str, k: int) -> pd.DataFrame:
    every = study(folder).rows
    return every[
        (every["metric"] == metric)
        & (every["detector"] == detector)
        & (every["k"] == k)
        & (every["task"] == 0)
    ]


def mean(
    metric: str,
    detector: str = "",
    k: int = 10,
    folder: str = "first_grid",
    first: int = 1,
    last: int = 100,
    **where: Any,
) -> float:
    """Steps are those from ``first`` to ``last``."""
    steps = where.pop("step", range(first, last + 1))
    return 100 * average(rows(folder, metric, detector, k), "value", step=steps, **where)


def auc(detector: str = "", k: int = 10, **where: Any) -> float:
    return mean("auc", detector, k, **where)


def accuracy(cil: str, k: int = 10, **where: Any) -> float:
    return mean("accuracy", "", k, cil=cil, **where)


def record(cil: str, k: int = 10, folder: str = "first_grid", seed: int = 0) -> dict[str, Any]:
    (run,) = (r for r in study(folder).runs if (r["cil"], r["k"], r["seed"]) == (cil, k, seed))
    return dict(run)


@cache
def published() -> pd.DataFrame:
    """The paper's; where a figure contradicts its near and far parts, it is what these give, and flagged."""
    figures = published_results()
    flagged = contradictory(figures)
    value = in_percent(figures["value"]).where(~flagged, 100 * recomputed_means(figures))
    return figures.assign(value=value, flagged=flagged)[figures["benchmark"] == "cifar100"]


@cache
def _of_paper() -> dict[tuple[Any, ...], float]:
    keys = ["metric", "detector", "cil", "k", "distance"]
    return dict(published().set_index(keys)["value"])


def paper(metric: str, detector: str = "", cil: Any = tuple(CIL), k: int = 10, split: str = "all") -> float:
    models, place = (cil,) if isinstance(cil, str) else cil, split if detector else ""
    return fmean(_of_paper()[metric, detector.split("@")[0], one, k, place] for one in models)


@cache
def compared(folder: str, k: int) -> pd.DataFrame:
    """Every cell that the paper has of a k beside ours, of runs that are finished (``compare``)."""
    return next((compare(outcome) for outcome in results(study(folder)) if outcome.k == k), pd.DataFrame())


@cache
def survey(cil: str, metric: str = "average_accuracy", k: int = 10) -> float | None:
    """The survey's accuracy, where it has the method with so many classes a step from the first on."""
    figures = published_survey()
    wanted = (figures["split"] == f"b0-{k}") & (figures["cil"] == cil) & (figures["metric"] == metric)
    return float(figures.loc[wanted, "value"].iloc[0]) if wanted.any() else None


def table(header: Iterable[str], lines: Iterable[Iterable[str]], texts: Sequence[int] = (0,)) -> str:
    """Markdown; columns but the ``texts`` are numbers."""
    head, *body = (
        f"| {' | '.join(line)} |".replace("  ", " ").replace("  ", " ") for line in (header, *lines)
    )
    rule = "|".join("---" if column in texts else "---:" for column in range(head.count("|") - 1))
    return "\n".join([head, f"|{rule}|", *body])


def holds(so: bool) -> str:
    """Nothing, where something said in words is so."""
    if not so:
        raise ValueError("it is not so")
    return ""
