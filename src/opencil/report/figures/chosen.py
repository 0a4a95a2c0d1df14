"""Select the contents of figures: detectors, CIL models, their curves and captions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from opencil.data.roles import ALL, FUTURE
from opencil.evaluation.metric import metric_of, table_metrics
from opencil.files import file_name
from opencil.report.averages import average_datasets, select_longest
from opencil.report.order import (
    Top,
    is_labelled,
    print_cil,
    print_detector,
    sort_cil,
    sort_datasets,
    sort_detectors,
)
from opencil.report.results import Outcome, count

#: Detectors drawn first by default: the softmax baseline, the score that all fine-tuned heads share,
#: the detector of the paper's Fig. 3a, and the paper's own method.
_SIDE_BY_SIDE = ("msp", "energy", "regmix", "ber")
_UNDER_ONE = ("regmix", "energy", "msp")
_CONFIDENCE = ("msp",)
REFERENCE = "joint"  #: the CIL model drawn beside the others
#: Shares of old test images predicted as new classes, and of new ones as old.
CONFUSED = ("old_as_new", "new_as_old")
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
    below: str  #: written below it: number of seeds; runs that are unfinished, damaged or lost


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
        metrics = ["accuracy", *CONFUSED, self.metric, f"{self.metric}_old", f"{self.metric}_new"]
        per_step = average_datasets(rows[rows["metric"].isin(metrics)])
        per_step = per_step[per_step["place"].isin(["", ALL])]
        self._curves = _average_seeds(per_step, ["cil", "detector", "metric"], ["step"])
        of_tasks = rows[(rows["metric"] == "confidence") & (rows["detector"] == self.scorer)]
        of_tasks = of_tasks[of_tasks["distance"] != FUTURE]
        self.confidence = _average_seeds(of_tasks, ["cil"], ["ood", "step", "task"])
        distances = of_tasks[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
        self.oods = [name for name in sort_datasets(outcome.benchmark, dict(distances)) if name]
        self.score = f"mean score of {short(print_detector(self.scorer))}"  #: the label of its axis

    def about(
        self, kind: str, cil: str, title: str, caption: str, lines: Lines, heading: str = "", note: str = ""
    ) -> About:
        """Return the texts of a figure, with its seeds and the runs that it lacks.

        By default the title is its heading; a ``note`` ends the caption.
        """
        heading = heading or title.partition(" · ")[2].replace(print_cil(cil), short(print_cil(cil)))
        name = file_name("-".join(filter(None, (self.outcome.name, kind, cil))))
        seeds = count_seeds(lines, self.outcome.planned_seeds)
        below = " ".join([seeds, *self.outcome.missing(averaged=True, of=[cil, REFERENCE] if cil else None)])
        place = self.outcome.benchmark, self.outcome.k, cil
        return About(name, *place, title, heading, f"{caption} {note}{below}", below)

    def curve(self, cil: str, detector: str, metric: str) -> pd.DataFrame:
        """Return mean, deviation and band in percent, indexed by step; a band ends at 0 and 100."""
        here = (self._curves[["cil", "detector", "metric"]] == [cil, detector, metric]).all(axis=1)
        found = self._curves[here].set_index("step")[_SPREAD] * [100, 100, 100, 100, 1]
        return found.assign(low=found["low"].clip(lower=0), high=found["high"].clip(upper=100))

    def side_by_side(self, cil: str) -> Lines:
        """Return the curves of the detectors side by side, or none if none of them has values."""
        lines = {print_detector(name): self.curve(cil, name, self.metric) for name in self.detectors}
        return lines if any(map(len, lines.values())) else {}

    def by_model(self, detector: str, metric: str) -> Lines:
        """Return the curves of all CIL models that have values, the reference last."""
        lines = {cil: self.curve(cil, detector, metric) for cil in [*self.cils, REFERENCE]}
        return {print_cil(cil): curve for cil, curve in lines.items() if len(curve)}

    def find_best(self, cil: str) -> tuple[str, pd.DataFrame] | None:
        """Return the best detector, of those with the most seeds, and its seeds' accuracies and values."""
        every = self.outcome.per_seed[self.outcome.per_seed["cil"] == cil]
        own = every[(every["metric"] == self.metric) & (every["place"] == ALL)]
        values = own[~own["detector"].map(is_labelled).astype(bool)].pivot(
            index="seed", columns="detector", values="value"
        )
        if values.empty:
            return None
        most = values.loc[:, values.count() == values.count().max()].mean()
        best = str(most.idxmin() if metric_of(self.metric).lower_is_better else most.idxmax())
        accuracy = every[every["metric"] == "accuracy"].set_index("seed")["value"]
        return best, pd.DataFrame({"accuracy": accuracy, "value": values[best]}).dropna()

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


def count_seeds(lines: Lines, planned: int) -> str:
    """Return the number of seeds of some curves, and of those that have fewer: ``3 of 3 seeds; ASH 1.``"""
    counts = {name: int(curve["seeds"].max()) for name, curve in lines.items() if len(curve)}
    most = max(counts.values())
    fewer = [f"{short(name)} {number}" for name, number in counts.items() if number < most]
    return "; ".join([f"{most} of {count(planned, 'seed')}", *fewer]) + "."
