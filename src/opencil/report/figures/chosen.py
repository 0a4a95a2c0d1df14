"""What each figure shows: curves, grids and points with their titles and captions, chosen from rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pandas as pd

from opencil.atomic_files import file_name
from opencil.errors import unknown
from opencil.report.averages import farthest, over_seeds, per_step
from opencil.report.order import sort_cil, sort_datasets, sort_detectors
from opencil.report.results import Outcome, results
from opencil.report.top import Top
from opencil.study.rows import settings_of
from opencil.study.study import Study

#: What figures show first where nothing is chosen: the softmax baseline, the score that all fine-tuned heads
#: share, the detector of the paper's Fig. 3a, and the paper's own method.
_SIDE_BY_SIDE = ("msp", "energy", "regmix", "ber")
_UNDER_ONE = ("regmix", "energy", "msp")
_CONFIDENCE = ("msp",)
_SPREAD = ["mean", "std", "low", "high", "seeds"]
_AUC = "AUC, all OOD sets (%)"

#: Curves by name: mean, deviation, band (low, high) and number of seeds, indexed by step or task.
Lines = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Choice:
    """What figures show where rows have more than is legible; what is left open is chosen from the rows.

    ``detectors`` are drawn side by side (1a, 3b, old and new), ``detector`` is the one of 3a, ``confidence``
    the one whose scores 1b and 1c show, and ``reference`` the CIL model that 1a compares with. Of many CIL
    models there are figures of those that ``top`` shows, and of the reference.
    """

    detectors: tuple[str, ...] = ()
    detector: str | None = None
    confidence: str | None = None
    reference: str = "joint"
    top: Top = field(default_factory=Top)

    def check(self, rows: pd.DataFrame) -> None:
        """Refuse a detector that no row has."""
        present = set(rows["detector"].unique()) - {""}
        for name in (*self.detectors, *filter(None, (self.detector, self.confidence))):
            if name not in present:
                raise unknown("detector of a figure", name, present)

    def completed(self, rows: pd.DataFrame) -> "Choice":
        """With everything chosen, from the detectors that rows have."""
        present = sort_detectors(set(rows["detector"].unique()) - {""})

        def first(*wishes: str | None, count: int = 1) -> tuple[str, ...]:
            return tuple([name for name in dict.fromkeys([*wishes, *present]) if name in present][:count])

        side_by_side = tuple(name for name in self.detectors if name in present)
        side_by_side = side_by_side or first(*_SIDE_BY_SIDE, count=4)
        return replace(
            self,
            detectors=side_by_side,
            detector="".join(first(self.detector, *_UNDER_ONE)),
            confidence="".join(first(self.confidence, *_CONFIDENCE)),
        )


@dataclass(frozen=True)
class About:
    """What a figure says of itself: ``heading`` stands on it, ``title`` and ``caption`` are for the page.

    ``cil`` is empty where it shows all CIL models.
    """

    name: str  #: of its files
    benchmark: str
    k: int | str
    cil: str
    title: str
    heading: str
    caption: str
    missing: str  #: what it lacks: runs that are not finished, damaged or lost; written below it too


@dataclass(frozen=True)
class Curves:
    """Lines over steps or tasks, one of which may be what the ``reference`` is.

    ``compared`` are dashed, the same names on another model; ``styles`` then name solid and dashed lines.
    """

    about: About
    lines: Lines
    ylabel: str
    xlabel: str = "step"
    reference: str = ""
    compared: Lines = field(default_factory=dict)
    styles: tuple[str, str] | None = None


@dataclass(frozen=True)
class Grid:
    """A value for each step (row) and task (column)."""

    about: About
    values: pd.DataFrame
    label: str


@dataclass(frozen=True)
class Panels:
    """Panels beside each other, with two lines each and the gap between them."""

    about: About
    panels: dict[str, Lines]
    ylabel: str


@dataclass(frozen=True)
class Points:
    """For each CIL model its accuracy, and the AUC of every detector on it, from the worst to the best."""

    about: About
    accuracy: dict[str, float]
    auc: "dict[str, pd.Series[float]]"
    reference: str


Content = Curves | Grid | Panels | Points


def contents(study: Study, choice: Choice | None = None) -> Iterator[Content]:
    """What every figure shows that a study's rows can fill: per benchmark and k, then CIL model."""
    choice, rows = choice or Choice(), study.rows
    choice.check(rows)
    outcomes = {(one.benchmark, one.k): one for one in results(study, metrics=["auc"])}
    parts = dict(list(rows.groupby(["benchmark", "k"])))
    for benchmark, k in settings_of(rows):
        part = parts[benchmark, k]
        group = _Group(benchmark, k, part, choice.completed(part), outcomes.get((benchmark, k)))
        yield from filter(None, group.contents())


class _Group:
    """The figures of one benchmark and k; each is None where the rows have nothing to show in it."""

    def __init__(
        self, benchmark: str, k: int | str, rows: pd.DataFrame, choice: Choice, outcome: Outcome | None
    ) -> None:
        self.benchmark, self.k, self.choice, self.outcome = benchmark, k, choice, outcome
        self.cils = [cil for cil in sort_cil(choice.top.kept(rows, "cil")) if cil != choice.reference]
        told = choice.top.told(rows, ["cil"])
        self._told = f" The best by mean AUC, {told}; all: --top all." if told else ""
        steps = per_step(rows[rows["metric"].isin(["auc", "auc_old", "auc_new"])])
        models = rows[(rows["detector"] == "") & (rows["task"] == 0) & (rows["metric"] == "accuracy")]
        self._averages = over_seeds(rows[rows["metric"].isin(["auc", "accuracy"])])
        every = pd.concat([steps[steps["split"] == "all"].drop(columns="split"), models])
        curves = _over_seeds(every, ["cil", "detector", "metric"], ["step"])
        self._curves = dict(list(curves.groupby(["cil", "detector", "metric"])))
        self._none = curves[:0]
        of_tasks = rows[(rows["metric"] == "confidence") & (rows["detector"] == choice.confidence)]
        self._confidence = _over_seeds(of_tasks, ["cil"], ["ood", "step", "task"])
        distances = of_tasks[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
        self._oods = list(sort_datasets(benchmark, dict(distances)))
        self.score = f"mean score of {short(choice.confidence or '')}"  #: what confidence is, for an axis

    def contents(self) -> Iterator[Content | None]:
        """All of them."""
        yield self.models()
        yield self.baselines()
        for cil in self.cils:
            yield self.against_joint(cil)
            yield self.confidence(cil)
            yield self.ood_confidence(cil)
            yield self.accuracy(cil)
            yield self.old_and_new(cil)

    def about(self, kind: str, cil: str, title: str, heading: str, caption: str) -> About:
        """What a figure of this group says of itself, and what the runs that it is of lack."""
        name = "-".join(filter(None, (f"{self.benchmark}-k{self.k}", kind, cil)))
        of = [cil, self.choice.reference] if cil else None
        missing = " ".join(self.outcome.missing(averaged=True, of=of)) if self.outcome else ""
        caption = " ".join(filter(None, (caption, missing)))
        return About(file_name(name), self.benchmark, self.k, cil, title, heading, caption, missing)

    def curve(self, cil: str, detector: str, metric: str) -> pd.DataFrame:
        """Mean, deviation and band in percent, indexed by step; a band ends where percents do."""
        found = self._curves.get((cil, detector, metric), self._none).set_index("step")[_SPREAD]
        found = found * [100, 100, 100, 100, 1]
        return found.assign(low=found["low"].clip(lower=0), high=found["high"].clip(upper=100))

    def aucs(self, cil: str) -> Lines:
        """AUC per step of the detectors that stand side by side."""
        return {detector: self.curve(cil, detector, "auc") for detector in self.choice.detectors}

    def against_joint(self, cil: str) -> Curves | None:
        """1a: AUC per step of some detectors, and of the same on the joint model."""
        reference = self.choice.reference
        lines, compared = self.aucs(cil), self.aucs(reference)
        if not _any(lines):
            return None
        there = _any(compared)
        title = f"{cil} against {reference}" if there else f"{cil}: detectors"
        remark = (
            "dashed: the same on a model trained on all data of all classes seen"
            if there
            else f"no runs of {reference} are here to compare with"
        )
        caption = f"AUC per step of {_listed(lines)} on {cil}; {remark}. {_basis(lines)}"
        return Curves(
            self.about("fig1a", cil, f"1a · {title}", title, caption),
            lines,
            ylabel=_AUC,
            compared=compared,
            styles=(short(cil), short(reference)) if there else None,
        )

    def models(self) -> Curves | None:
        """3a: AUC per step of the CIL models under one detector."""
        detector, reference = self.choice.detector or "", self.choice.reference
        lines = {cil: self.curve(cil, detector, "auc") for cil in self.cils}
        if not _any(lines):
            return None
        bound = self.curve(reference, detector, "auc")
        if len(bound):
            lines[reference] = bound
        title = f"CIL models under {detector}"
        caption = f"AUC per step of {_listed(lines)} under {detector}. {_basis(lines)}{self._told}"
        about = self.about("fig3a", "", f"3a · {title}", title, caption)
        return Curves(about, lines, ylabel=_AUC, reference=reference)

    def accuracy(self, cil: str) -> Curves | None:
        """3b: accuracy and AUC per step."""
        lines, name = self.aucs(cil), "ACC"
        if not _any(lines):
            return None
        caption = f"Accuracy of {cil} ({name}, dashed) and AUC of {_listed(lines)}, per step. {_basis(lines)}"
        title = "{}: accuracy and AUC"
        about = self.about("fig3b", cil, f"3b · {title.format(cil)}", title.format(short(cil)), caption)
        lines[name] = self.curve(cil, "", "accuracy")
        return Curves(about, lines, ylabel="accuracy, AUC (%)", reference=name)

    def confidence(self, cil: str) -> Grid | None:
        """1b: mean confidence on the test samples of each task, per step."""
        found = self._confidence[(self._confidence["cil"] == cil) & (self._confidence["ood"] == "")]
        if found.empty:
            return None
        title = "{}: confidence on each task"
        caption = (
            f"Mean {self.choice.confidence} score of {cil} on the test samples of each task: a row is a "
            f"step, the newest task is its last cell.{_deviation(found)}"
        )
        about = self.about("fig1b", cil, f"1b · {title.format(cil)}", title.format(short(cil)), caption)
        return Grid(about, found.pivot(index="step", columns="task", values="mean"), self.score)

    def ood_confidence(self, cil: str) -> Curves | None:
        """1c: mean confidence of the OOD samples predicted into each task, after the last step."""
        found = self._confidence[self._confidence["cil"] == cil]
        if found.empty:
            return None
        last = int(found["step"].max())
        found = found[found["step"] == last]
        by_ood = {ood: part.set_index("task")[_SPREAD] for ood, part in found.groupby("ood")}
        lines = {o: by_ood[o].reindex(range(1, last + 1)) for o in self._oods if o and o in by_ood}
        if not lines or "" not in by_ood:
            return None
        tests = "test (ID)"
        lines[tests] = by_ood[""]
        heading = f"{short(cil)}: confidence of OOD, step {last}"
        caption = (
            f"Mean {self.choice.confidence} score after step {last} of {cil}: of the samples of each OOD set "
            f"that are predicted into each task, and of each task's own test samples (dashed). "
            f"{_basis(lines)}"
        )
        about = self.about("fig1c", cil, f"1c · {cil}: confidence of OOD samples", heading, caption)
        return Curves(about, lines, self.score, "task predicted into (ID: task)", reference=tests)

    def old_and_new(self, cil: str) -> Panels | None:
        """AUC per step of old classes alone and of new ones alone; the paper has no such figure."""
        sides = {"new classes": "auc_new", "old classes": "auc_old"}
        panels = {
            d: {side: self.curve(cil, d, metric) for side, metric in sides.items()}
            for d in self.choice.detectors
        }
        panels = {d: lines for d, lines in panels.items() if _any(lines)}
        if not panels:
            return None
        every = {f"{d} {side}": curve for d, lines in panels.items() for side, curve in lines.items()}
        heading = f"{short(cil)}: AUC of old and of new classes"
        caption = (
            f"AUC against OOD of the test samples of new classes alone and of old classes alone, on {cil}; "
            f"the gap is shaded. {_basis(every)}"
        )
        about = self.about("old-new", cil, f"{cil}: old and new classes", heading, caption)
        return Panels(about, panels, _AUC)

    def baselines(self) -> Points | None:
        """Accuracy against AUC, averaged over steps, of every CIL model and detector; not in the paper."""
        a, reference = self._averages, self.choice.reference
        accuracy = 100 * a[a["metric"] == "accuracy"].set_index("cil")["mean"]
        auc = a[(a["metric"] == "auc") & (a["split"] == "all")]
        cils = [cil for cil in (*self.cils, reference) if cil in set(auc["cil"]) & set(accuracy.index)]
        if not cils:
            return None
        title = "every baseline: accuracy and AUC"
        values = {cil: 100 * auc[auc["cil"] == cil].set_index("detector")["mean"] for cil in cils}
        caption = (
            "Accuracy of each CIL model and AUC of each detector on it, both averaged over steps and seeds; "
            "the best detector of each is named." + self._told
        )
        return Points(
            self.about("accuracy-auc", "", title, title, caption),
            accuracy={cil: float(accuracy[cil]) for cil in cils},
            auc={cil: of_model.sort_values() for cil, of_model in values.items()},
            reference=reference,
        )


def short(name: str, letters: int = 20) -> str:
    """A name that leaves room for the drawing."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _over_seeds(rows: pd.DataFrame, of: list[str], places: list[str]) -> pd.DataFrame:
    """Mean, sample deviation and number of the seeds that are farthest of their kind, at each place."""
    rows = farthest(rows, of, rows.groupby([*of, "seed"])["step"].transform("nunique"))
    found = rows.groupby([*of, *places], as_index=False).agg(
        mean=("value", "mean"), std=("value", "std"), seeds=("seed", "nunique")
    )
    return found.assign(low=found["mean"] - found["std"], high=found["mean"] + found["std"])


def _any(lines: Lines) -> bool:
    return any(len(curve) for curve in lines.values())


def _listed(lines: Iterable[str]) -> str:
    *names, last = lines
    return f"{', '.join(names)} and {last}" if names else last


def _basis(lines: Lines) -> str:
    """Over how many seeds; a range where some are not done yet."""
    counts = pd.concat([curve["seeds"] for curve in lines.values()]).dropna()
    few, many = int(counts.min()), int(counts.max())
    if many == 1:
        return "One seed."
    number = f"{many}" if few == many else f"{few} to {many}"
    return f"Mean over {number} seeds; bands: ± a standard deviation."


def _deviation(found: pd.DataFrame) -> str:
    seeds = int(found["seeds"].max())
    if seeds == 1:
        return " One seed."
    return f" Mean over {seeds} seeds, whose standard deviation is {found['std'].max():.2g} at most."
