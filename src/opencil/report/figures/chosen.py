"""Select the contents of figures: detectors, CIL models, their curves and captions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from opencil.data.roles import ALL, FUTURE
from opencil.evaluation.metric import metric_of, table_metrics
from opencil.files import file_name
from opencil.report.averages import average_datasets, average_rows, select_longest
from opencil.report.order import Top, sort_cil, sort_datasets, sort_detectors
from opencil.report.results import Outcome

#: Detectors drawn first by default: the softmax baseline, the score that all fine-tuned heads share,
#: the detector of the paper's Fig. 3a, and the paper's own method.
_SIDE_BY_SIDE = ("msp", "energy", "regmix", "ber")
_UNDER_ONE = ("regmix", "energy", "msp")
_CONFIDENCE = ("msp",)
REFERENCE = "joint"  #: the CIL model drawn beside the others
_SPREAD = ["mean", "std", "low", "high", "seeds"]

#: Curves by name: mean, deviation, band (low, high) and number of seeds, indexed by step or task.
Lines = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Choice:
    """The detectors that figures show side by side, by default four, and how many CIL models."""

    detectors: tuple[str, ...] = ()
    top: Top = field(default_factory=Top)


@dataclass(frozen=True)
class About:
    """Texts of a figure: ``heading`` is drawn on it, ``title`` and ``caption`` are for the page."""

    name: str  #: of its files
    benchmark: str
    k: int | str
    cil: str  #: empty for all
    title: str
    heading: str
    caption: str
    missing: str  #: runs that are unfinished, damaged or lost; written below it too


class Group:
    """Curves, averages and confidences of one benchmark and k."""

    def __init__(self, outcome: Outcome, rows: pd.DataFrame, choice: Choice) -> None:
        rows = rows[(rows["benchmark"] == outcome.benchmark) & (rows["k"] == outcome.k)]
        self.outcome = outcome
        present = sort_detectors(set(rows["detector"].unique()) - {""})

        def first(wishes: Iterable[str], count: int = 1) -> list[str]:
            return [name for name in dict.fromkeys([*wishes, *present]) if name in present][:count]

        chosen = [name for name in choice.detectors if name in present]
        self.detectors = chosen or first(_SIDE_BY_SIDE, count=4)
        self.detector = "".join(first(_UNDER_ONE))  #: of Fig. 3a
        self.scorer = "".join(first(_CONFIDENCE))  #: whose scores are the confidence of Fig. 1b and 1c
        self.metric = table_metrics("all")[0]  #: the metric of all figures but those of confidence
        self.label = metric_of(self.metric).label
        self.ylabel = f"{self.label}, all OOD sets (%)"
        self.cils = [cil for cil in sort_cil(choice.top.select(rows, "cil")) if cil != REFERENCE]
        shown = choice.top.describe(rows, ["cil"])
        self.note = f" The best by mean AUC, {shown}; all: --top all." if shown else ""
        metrics = ["accuracy", self.metric, f"{self.metric}_old", f"{self.metric}_new"]
        per_step = average_datasets(rows[rows["metric"].isin(metrics)])
        per_step = per_step[per_step["place"].isin(["", ALL])]
        self._curves = _average_seeds(per_step, ["cil", "detector", "metric"], ["step"])
        averages = average_rows(rows[rows["metric"].isin(metrics[:2])])
        #: averages over steps and seeds, in percent
        self.averages = averages[averages["place"].isin(["", ALL])].assign(mean=100 * averages["mean"])
        of_tasks = rows[(rows["metric"] == "confidence") & (rows["detector"] == self.scorer)]
        of_tasks = of_tasks[of_tasks["distance"] != FUTURE]
        self.confidence = _average_seeds(of_tasks, ["cil"], ["ood", "step", "task"])
        distances = of_tasks[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
        self.oods = [name for name in sort_datasets(outcome.benchmark, dict(distances)) if name]
        self.score = f"mean score of {short(self.scorer)}"  #: the label of its axis

    def about(self, kind: str, cil: str, title: str, caption: str, heading: str = "") -> About:
        """Return the texts of a figure, with the runs that it lacks; by default the title is its heading."""
        heading = heading or title.partition(" · ")[2].replace(cil, short(cil))
        name = file_name("-".join(filter(None, (self.outcome.name, kind, cil))))
        missing = " ".join(self.outcome.missing(averaged=True, of=[cil, REFERENCE] if cil else None))
        place = self.outcome.benchmark, self.outcome.k, cil
        return About(name, *place, title, heading, f"{caption} {missing}".strip(), missing)

    def curve(self, cil: str, detector: str, metric: str) -> pd.DataFrame:
        """Return mean, deviation and band in percent, indexed by step; a band ends at 0 and 100."""
        here = (self._curves[["cil", "detector", "metric"]] == [cil, detector, metric]).all(axis=1)
        found = self._curves[here].set_index("step")[_SPREAD] * [100, 100, 100, 100, 1]
        return found.assign(low=found["low"].clip(lower=0), high=found["high"].clip(upper=100))

    def side_by_side(self, cil: str) -> Lines:
        """Return the curves of the detectors side by side, or none if none of them has values."""
        lines = {name: self.curve(cil, name, self.metric) for name in self.detectors}
        return lines if any(map(len, lines.values())) else {}

    def confidence_of(self, cil: str) -> pd.DataFrame:
        """Return the mean confidence on a CIL model, by OOD set (empty: test images), step and task."""
        return self.confidence[self.confidence["cil"] == cil].set_index(["ood", "step", "task"])


def short(name: str, letters: int = 20) -> str:
    """Return a name that leaves room for the drawing."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _average_seeds(rows: pd.DataFrame, of: list[str], places: list[str]) -> pd.DataFrame:
    """Return mean, sample deviation and number of the seeds with the most steps, at each place."""
    found = (
        select_longest(rows, of)
        .groupby([*of, *places], as_index=False)
        .agg(mean=("value", "mean"), std=("value", "std"), seeds=("seed", "nunique"))
    )
    return found.assign(low=found["mean"] - found["std"], high=found["mean"] + found["std"])


def list_names(lines: Iterable[str]) -> str:
    """Join names: ``a, b and c``."""
    *names, last = lines
    return f"{', '.join(names)} and {last}" if names else last


def basis(lines: Lines) -> str:
    """Return a note on the number of seeds; a range where some are unfinished."""
    counts = pd.concat([curve["seeds"] for curve in lines.values()]).dropna()
    few, many = int(counts.min()), int(counts.max())
    number = f"{many}" if few == many else f"{few} to {many}"
    return "One seed." if many == 1 else f"Mean over {number} seeds; bands: ± a standard deviation."
