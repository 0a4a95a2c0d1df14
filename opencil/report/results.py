"""What a set of runs has come to: for each benchmark and k, the averages of its finished runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import pandas as pd

from opencil.report.averages import datasets_over_steps, of_datasets, over_steps, spread
from opencil.report.order import sort_cil, sort_datasets, sort_detectors

#: What the paper's tables show.
METRICS = {"auc": "AUC↑", "fpr": "FPR↓", "ap": "AP↑"}
#: With the roles of ID and OOD exchanged.
FLIPPED = {"fpr_ood_positive": "FPR(OOD+)↓", "ap_id_positive": "AP(ID+)↑"}

_METHOD = ["cil", "seed", "detector"]


def lower_is_better(metric: str) -> bool:
    """Whether a small value of a metric is a good one."""
    return metric.startswith(("fpr", "ood_as_new"))


def of_dataset(name: str) -> str:
    """The place of an OOD dataset's values, beside ``near``, ``far`` and ``all``."""
    return f"dataset {name}"  # a space, so that a dataset named 'far' is not taken for the split


@dataclass(frozen=True)
class Average:
    """Mean over the seeds that are finished, in percent; one seed has no deviation."""

    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True)
class Behind:
    """A detector on a run that has not come to its end; ``detector`` is empty for the run's model itself."""

    cil: str
    seed: int
    detector: str
    steps: int


@dataclass(frozen=True)
class Results:
    """One benchmark with one k: every average, of runs that are finished, and what is not finished."""

    benchmark: str
    k: int
    steps: int
    seeds: list[int]
    cil: list[str]
    detectors: list[str]
    datasets: dict[str, str]  #: near or far, by name
    averages: dict[tuple[str, str, str, str], Average]  #: by CIL method, detector, metric, place
    per_seed: pd.DataFrame  #: cil, seed, detector, metric, place, value; of finished runs, in percent
    behind: list[Behind]

    @property
    def title(self) -> str:
        """What every table of it begins with."""
        return f"{self.benchmark}, {self.k} classes per step"

    @property
    def name(self) -> str:
        """For files."""
        return f"{self.benchmark}-k{self.k}"

    def of(self, cil: str, detector: str, metric: str, place: str) -> Average | None:
        """An average, or None where no run is finished."""
        return self.averages.get((cil, detector, metric, place))

    def accuracy(self, cil: str) -> Average | None:
        """The average incremental accuracy of a CIL method."""
        return self.of(cil, "", "accuracy", "")

    def mean_over(self, detectors: Iterable[str], cil: str, metric: str, place: str) -> Average | None:
        """Mean over detectors, if each has a value; its deviation is over the seeds that all have."""
        names = list(detectors)
        found = [self.of(cil, name, metric, place) for name in names]
        means = [average.mean for average in found if average]
        if not names or len(means) < len(names):
            return None
        whole = self._by_place[cil, metric, place][names].dropna().mean(axis=1)
        std = float(whole.std()) if len(whole) > 1 else None
        return Average(sum(means) / len(means), std, len(whole))

    @cached_property
    def _by_place(self) -> dict[Any, pd.DataFrame]:
        """Seeds × detectors of each CIL method, metric and place."""
        return {
            key: part.pivot(index="seed", columns="detector", values="value")
            for key, part in self.per_seed.groupby(["cil", "metric", "place"])
        }

    def basis(self) -> list[str]:
        """Notes on what was averaged, and on what is missing."""
        seeds = max((a.seeds for a in self.averages.values()), default=0)
        over_seeds = f"then over {_count(seeds, 'seed')}" + " (± standard deviation)" * (seeds > 1)
        splits = {d: [name for name, far in self.datasets.items() if far == d] for d in ("near", "far")}
        named = "; ".join(f"{distance}: {', '.join(names)}" for distance, names in splits.items() if names)
        over_steps = f"then over {_count(self.steps, 'step')}"
        notes = [f"Percent: mean over OOD datasets ({named}), {over_steps}, {over_seeds}."]
        if self.behind:
            notes.append(f"Not finished, so not in these averages: {'; '.join(self._unfinished())}.")
        fewer = self._fewer_seeds(seeds)
        if fewer:
            notes.append(f"Over fewer seeds, so with care: {'; '.join(fewer)}.")
        return notes

    def _unfinished(self) -> list[str]:
        def place(b: Behind) -> tuple[str, int, int]:
            return b.cil, b.seed, b.steps

        order = {name: i for i, name in enumerate([*self.cil, *self.detectors])}
        ordered = sorted(
            self.behind, key=lambda b: (order[b.cil], b.seed, b.steps, order.get(b.detector, -1))
        )
        return [
            f"{cil} seed {seed}, {steps} of {self.steps} steps ({self._named([b.detector for b in part])})"
            for (cil, seed, steps), part in groupby(ordered, key=place)
        ]

    def _fewer_seeds(self, seeds: int) -> list[str]:
        found: dict[tuple[str, int], list[str]] = {}
        for cil in self.cil:
            for detector in ["", *self.detectors]:
                average = self.of(cil, detector, *(("auc", "all") if detector else ("accuracy", "")))
                if average and average.seeds < seeds:
                    found.setdefault((cil, average.seeds), []).append(detector)
        return [f"{cil}, {count} of {seeds} ({self._named(names)})" for (cil, count), names in found.items()]

    def _named(self, detectors: list[str]) -> str:
        names = [name for name in detectors if name]
        if len(names) > 1 and len(names) == len(self.detectors):
            return "all detectors"
        return ", ".join(names) or "the model"


def results(
    rows: pd.DataFrame,
    runs: Iterable[Mapping[str, Any]] = (),
    metrics: Iterable[str] = tuple(METRICS),
) -> list[Results]:
    """The results of rows, for each benchmark and k; ``runs`` (a study's records) say what is still to come.

    Only runs that are finished are averaged: after half of the steps, which are the easier half, a method
    would look better than it is.
    """
    shown = rows[rows["metric"].isin(["accuracy", *metrics])]
    records = list(runs)
    keys = sorted({(str(name), int(k)) for name, k in zip(shown["benchmark"], shown["k"], strict=True)})
    return [
        _results(
            name,
            k,
            shown[(shown["benchmark"] == name) & (shown["k"] == k)],
            [run for run in records if (run["benchmark"], run["k"]) == (name, k)],
        )
        for name, k in keys
    ]


def _results(benchmark: str, k: int, rows: pd.DataFrame, runs: list[Mapping[str, Any]]) -> Results:
    measured = of_datasets(rows)
    distances = measured[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
    datasets = sort_datasets(benchmark, dict(distances))
    steps = max([int(rows["step"].max()), *(r["steps"] for r in runs if r["steps"])])
    progress, planned = _progress(rows, measured, len(datasets)), _planned(runs)
    all_of_them = progress.index.union(planned)
    progress = progress.reindex(all_of_them, fill_value=0)
    behind = [Behind(*key, steps=int(done)) for key, done in _items(progress[progress < steps])]
    splits = over_steps(rows).rename(columns={"split": "place"})
    by_dataset = datasets_over_steps(rows)
    by_dataset["place"] = by_dataset.pop("ood").map(of_dataset)
    values = pd.concat([splits, by_dataset], ignore_index=True)
    whole = progress[progress >= steps].index
    values = values[pd.MultiIndex.from_frame(values[_METHOD]).isin(whole)]
    values = values.assign(value=100 * values["value"])
    table = spread(values, ["cil", "detector", "metric", "place"])
    averages = {
        (cil, detector, metric, place): Average(mean, None if pd.isna(std) else std, seeds)
        for cil, detector, metric, place, mean, std, seeds in table[
            ["cil", "detector", "metric", "place", "mean", "std", "seeds"]
        ].itertuples(index=False, name=None)
    }
    return Results(
        benchmark=benchmark,
        k=k,
        steps=steps,
        seeds=sorted({int(seed) for _, seed, _ in all_of_them}),
        cil=sort_cil(cil for cil, _, _ in all_of_them),
        detectors=sort_detectors(name for _, _, name in all_of_them if name),
        datasets=datasets,
        averages=averages,
        per_seed=values[[*_METHOD, "metric", "place", "value"]],
        behind=behind,
    )


def _progress(rows: pd.DataFrame, measured: pd.DataFrame, datasets: int) -> "pd.Series[int]":
    """Steps that each detector of each run has on every dataset; those of the model have no detector."""
    cells = measured[[*_METHOD, "step", "ood"]].drop_duplicates().groupby([*_METHOD, "step"]).size()
    models = rows.loc[rows["detector"] == "", [*_METHOD, "step"]].drop_duplicates().groupby(_METHOD).size()
    detectors = (cells == datasets).groupby(_METHOD).sum()
    return pd.concat([models, detectors]).astype(int)


def _items(series: "pd.Series[int]") -> Iterable[tuple[tuple[str, int, str], int]]:
    return zip(series.index, series, strict=True)


def _planned(runs: list[Mapping[str, Any]]) -> pd.MultiIndex:
    """What will be there in the end."""
    keys = [(run["cil"], run["seed"], name) for run in runs for name in ["", *run["detectors"]]]
    return pd.MultiIndex.from_frame(pd.DataFrame(keys, columns=_METHOD))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
