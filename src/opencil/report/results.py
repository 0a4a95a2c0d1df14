"""What a set of runs has come to: for each benchmark and k, the averages of its finished runs."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from weakref import WeakKeyDictionary

import pandas as pd

from opencil.data.roles import OOD_ROLES
from opencil.report.averages import datasets_over_steps, megabytes, of_datasets, over_steps, spread
from opencil.report.order import sort_cil, sort_datasets, sort_detectors
from opencil.study.records import RunRecord, setting_of
from opencil.study.rows import settings_of
from opencil.study.study import Study
from opencil.validation import flat

#: What the paper's tables show.
PAPER = ("auc", "fpr", "ap")
#: With the roles of ID and OOD exchanged.
FLIPPED = ("fpr_ood_positive", "ap_id_positive")

_METHOD = ["cil", "seed", "detector"]
_NAMED = 5  # keys of configs that a note names
#: Results by study and metrics: all tables, figures and pages of a report ask for the same.
_known: WeakKeyDictionary[Study, dict[tuple[str, ...], list["Outcome"]]] = WeakKeyDictionary()


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
class Outcome:
    """One benchmark with one k: every average, of runs that are finished, and what is not finished."""

    benchmark: str
    k: int | str
    steps: int
    seeds: list[int]
    cil: list[str]
    detectors: list[str]
    datasets: dict[str, str]  #: near or far, by name
    averaged: dict[str, str]  #: those of them that near, far and all are over: every finished run has them
    partial: dict[str, list[str]]  #: the others, with the finished runs that have them
    averages: dict[tuple[str, str, str, str], Average]  #: by CIL method, detector, metric, place
    per_seed: pd.DataFrame  #: cil, seed, detector, metric, place, value; of finished runs, in percent
    kept: dict[str, tuple[float, float]]  #: MB of model and memory after the last step, by CIL method
    behind: list[Behind]
    runs: list[RunRecord]
    unread: list[str]  #: runs of it, or perhaps of it, of which nothing could be read

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
        averages = [self.of(cil, name, metric, place) for name in names]
        means = [average.mean for average in averages if average]
        if not names or len(means) < len(names):
            return None
        values = [self._by_seed[cil, name, metric, place] for name in names]
        common = set.intersection(*(set(of_seed) for of_seed in values))
        whole = [fmean(of_seed[seed] for of_seed in values) for seed in sorted(common)]
        std = stdev(whole) if len(whole) > 1 else None
        return Average(sum(means) / len(means), std, len(whole))

    @cached_property
    def _by_seed(self) -> dict[tuple[str, str, str, str], dict[int, float]]:
        """Values by seed, of each key of the averages."""
        by_seed: dict[tuple[str, str, str, str], dict[int, float]] = {}
        columns = ["cil", "detector", "metric", "place", "seed", "value"]
        for *key, seed, value in self.per_seed[columns].itertuples(index=False, name=None):
            by_seed.setdefault((key[0], key[1], key[2], key[3]), {})[seed] = value
        return by_seed

    def finished(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those of some rows that are of its finished runs and detectors."""
        here = rows[(rows["benchmark"] == self.benchmark) & (rows["k"] == self.k)]
        whole = pd.MultiIndex.from_frame(self.per_seed[_METHOD].drop_duplicates())
        return here[pd.MultiIndex.from_frame(here[_METHOD]).isin(whole)]

    def basis(self) -> list[str]:
        """Notes on what was averaged; what is missing is told by every table apart."""
        seeds = max((a.seeds for a in self.averages.values()), default=0)
        over_seeds = f"then over {count(seeds, 'seed')}" + " (± standard deviation)" * (seeds > 1)
        splits = {d: [name for name, far in self.averaged.items() if far == d] for d in OOD_ROLES}
        named = "; ".join(f"{distance}: {', '.join(names)}" for distance, names in splits.items() if names)
        over_steps = f"then over {count(self.steps, 'step')}"
        notes = [f"Percent: mean over OOD datasets ({named or 'none'}), {over_steps}, {over_seeds}."]
        notes += [*self.uneven(), *self.mixture()]
        fewer = self._fewer_seeds(seeds)
        if fewer:
            notes.append(f"Over fewer seeds, so with care: {'; '.join(fewer)}.")
        return notes

    def uneven(self) -> list[str]:
        """A note on OOD datasets that only some of the finished runs have, if there are any."""
        parts = [f"{name} ({', '.join(runs)})" for name, runs in self.partial.items()]
        note = "OOD datasets that only some runs have, so not in near, far and all"
        return [f"{note}: {'; '.join(parts)}."] if parts else []

    def missing(self, *, averaged: bool = False, of: Collection[str] | None = None) -> list[str]:
        """Sentences on what is not finished, damaged, lost or failed: whatever is made of it should say so.

        ``averaged``: what is not finished is in the averages all the same, but for seeds that others of
        their method are ahead of. ``of`` are the CIL methods that are shown (default: all).
        """
        runs = [run for run in self.runs if of is None or run["cil"] in of]
        lost = [f"{_run(run)} ({', '.join(files)})" for run in runs if (files := run.get("left_out"))]
        for name in self.unread:
            if of is None or setting_of(name) is None or name.split("/")[-2] in of:
                lost.append(f"{name} (all of it)")
        failed = [f"{_run(run)} ({run['failed']})" for run in runs if "failed" in run]
        unfinished = "Unfinished, so not comparable" if averaged else "Not finished, so not counted"
        sentences = {unfinished: self.unfinished(of), "Damaged or lost, so left out": lost, "Failed": failed}
        return [f"{what}: {'; '.join(parts)}." for what, parts in sentences.items() if parts]

    def mixture(self) -> list[str]:
        """A note on runs that count as seeds of one method but were made under different configs."""
        parts = [
            f"{cil} ({', '.join(keys[:_NAMED])}{f' and {len(keys) - _NAMED} more' * (len(keys) > _NAMED)})"
            for cil, keys in _mixed(self.runs).items()
        ]
        notes = [f"Runs of one method that differ in more than their seeds: {'; '.join(parts)}."]
        return notes * bool(parts) + self._makers()

    def _makers(self) -> list[str]:
        """A note on rows that were made by different versions of the source, or on different devices."""
        made = [one for run in self.runs for one in run.get("made", [])]
        plugins: dict[str, set[str]] = {}
        for plugin, sha256 in [pair for one in made for pair in one.get("plugins", {}).items()]:
            plugins.setdefault(f"versions of {Path(plugin).name}", set()).add(sha256[:16])
        notes = []
        for what, values in (
            ("versions of the source", {one["source"] for one in made}),
            *plugins.items(),
            ("devices", {f"{one['device']} ({one['precision']})" for one in made}),
        ):
            if len(values) > 1:
                notes.append(f"Rows were made by several {what}: {', '.join(sorted(values))}.")
        return notes

    def unfinished(self, of: Collection[str] | None = None) -> list[str]:
        """How far each run and detector that is not finished has come, in words; of some CIL methods."""

        def place(b: Behind) -> tuple[str, int, int]:
            return b.cil, b.seed, b.steps

        order = {name: i for i, name in enumerate([*self.cil, *self.detectors])}
        ordered = sorted(
            (b for b in self.behind if of is None or b.cil in of),
            key=lambda b: (order[b.cil], b.seed, b.steps, order.get(b.detector, -1)),
        )
        whole = count(self.steps, "step")
        return [
            f"{cil} seed {seed}, {steps} of {whole} ({self._named([b.detector for b in part])})"
            for (cil, seed, steps), part in groupby(ordered, key=place)
        ]

    def _fewer_seeds(self, seeds: int) -> list[str]:
        fewer: dict[tuple[str, int], list[str]] = {}
        for cil in self.cil:
            for detector in ["", *self.detectors]:
                average = self.of(cil, detector, *(("auc", "all") if detector else ("accuracy", "")))
                if average and average.seeds < seeds:
                    fewer.setdefault((cil, average.seeds), []).append(detector)
        return [f"{cil}, {count} of {seeds} ({self._named(names)})" for (cil, count), names in fewer.items()]

    def _named(self, detectors: list[str]) -> str:
        names = [name for name in detectors if name]
        if len(names) > 1 and len(names) == len(self.detectors):
            return "all detectors"
        return ", ".join(names) or "the model"


def results(study: Study, metrics: Iterable[str] = PAPER) -> list[Outcome]:
    """The results of a study, for each benchmark and k; its records say what is still to come.

    Only runs that are finished are averaged: after half of the steps, which are the easier half, a method
    would look better than it is.
    """
    known, key = _known.setdefault(study, {}), tuple(metrics)
    if key not in known:
        known[key] = _outcomes(study, key)
    return list(known[key])


def _outcomes(study: Study, metrics: Iterable[str]) -> list[Outcome]:
    rows = study.rows
    shown, kept = rows[rows["metric"].isin(["accuracy", *metrics])], megabytes(rows)
    return [
        _results(
            name,
            k,
            shown[(shown["benchmark"] == name) & (shown["k"] == k)],
            kept[(kept["benchmark"] == name) & (kept["k"] == k)],
            [run for run in study.runs if (run["benchmark"], run["k"]) == (name, k)],
            [run for run in study.left_out if setting_of(run) in (None, (name, k))],
        )
        for name, k in settings_of(shown)
    ]


def _results(
    benchmark: str,
    k: int | str,
    rows: pd.DataFrame,
    kept: pd.DataFrame,
    runs: list[RunRecord],
    unread: list[str],
) -> Outcome:
    measured = of_datasets(rows)
    distances = measured[["ood", "distance"]].drop_duplicates().itertuples(index=False, name=None)
    datasets = sort_datasets(benchmark, dict(distances))
    steps = max([int(rows["step"].max()), *(r["steps"] for r in runs if r["steps"])])
    progress, planned = _progress(rows, measured), _planned(runs)
    all_of_them = progress.index.union(planned)
    progress = progress.reindex(all_of_them, fill_value=0)
    behind = [Behind(*key, steps=int(done)) for key, done in _items(progress[progress < steps])]
    whole = progress[progress >= steps].index
    rows = rows[pd.MultiIndex.from_frame(rows[_METHOD]).isin(whole)]
    partial = partial_datasets(rows)
    splits = over_steps(rows[~rows["ood"].isin(partial)]).rename(columns={"split": "place"})
    by_dataset = datasets_over_steps(rows)
    by_dataset["place"] = by_dataset.pop("ood").map(of_dataset)
    values = pd.concat([splits, by_dataset], ignore_index=True)
    values = values.assign(value=100 * values["value"])
    table = spread(values, ["cil", "detector", "metric", "place"])
    averages = {
        (cil, detector, metric, place): Average(mean, None if pd.isna(std) else std, seeds)
        for cil, detector, metric, place, mean, std, seeds in table[
            ["cil", "detector", "metric", "place", "mean", "std", "seeds"]
        ].itertuples(index=False, name=None)
    }
    last = kept[kept["step"] == steps].groupby("cil")[["model", "memory"]].mean()
    return Outcome(
        benchmark=benchmark,
        k=k,
        steps=steps,
        seeds=sorted({int(seed) for _, seed, _ in all_of_them}),
        cil=sort_cil(cil for cil, _, _ in all_of_them),
        detectors=sort_detectors(name for _, _, name in all_of_them if name),
        datasets=datasets,
        averaged={name: distance for name, distance in datasets.items() if name not in partial},
        partial={name: partial[name] for name in datasets if name in partial},
        averages=averages,
        per_seed=values[[*_METHOD, "metric", "place", "value"]],
        kept={cil: (model, memory) for cil, model, memory in last.itertuples(name=None)},
        behind=behind,
        runs=runs,
        unread=unread,
    )


def _run(run: RunRecord) -> str:
    return f"{run['cil']} seed {run['seed']}"


def partial_datasets(rows: pd.DataFrame) -> dict[str, list[str]]:
    """The OOD datasets that only some of the runs of one benchmark and k have, with those runs' names."""
    have = of_datasets(rows)[["cil", "seed", "ood"]].drop_duplicates()
    runs = len(have[["cil", "seed"]].drop_duplicates())
    return {
        str(name): [f"{cil} seed {seed}" for cil, seed in sorted(zip(part["cil"], part["seed"], strict=True))]
        for name, part in have.groupby("ood")
        if len(part) < runs
    }


def _mixed(runs: list[RunRecord]) -> dict[str, list[str]]:
    """For each CIL method, the keys under which its runs' configs differ: seeds may, and sets of detectors.

    A key that only some configs have is no difference: the others are of before it existed, or of another
    set of detectors.
    """
    differing = {}
    for cil in sort_cil(run["cil"] for run in runs):
        values: dict[str, set[str]] = {}
        for run in runs:
            config = {"foreign": False} | run["config"]  # models from elsewhere are no seeds of ours
            for key, value in flat(config).items() if run["cil"] == cil else ():
                values.setdefault(key, set()).add(repr(value))
        keys = [key for key, several in values.items() if len(several) > 1]
        keys = [key for key in keys if key.partition(".")[0] not in ("seed", "place", "plugins")]
        if keys:
            differing[cil] = keys
    return differing


def _progress(rows: pd.DataFrame, measured: pd.DataFrame) -> "pd.Series[int]":
    """Steps that each detector of each run has on all of the run's datasets; a model's have no detector."""
    cells = measured[[*_METHOD, "step", "ood"]].drop_duplicates()
    cells = cells.assign(own=cells.groupby(["cil", "seed"])["ood"].transform("nunique"))
    of_step = cells.groupby([*_METHOD, "step"]).agg(there=("ood", "size"), own=("own", "first"))
    detectors = (of_step["there"] == of_step["own"]).groupby(_METHOD).sum()
    models = rows.loc[rows["detector"] == "", [*_METHOD, "step"]].drop_duplicates().groupby(_METHOD).size()
    return pd.concat([models, detectors]).astype(int)


def _items(series: "pd.Series[int]") -> Iterable[tuple[tuple[str, int, str], int]]:
    return zip(series.index, series, strict=True)


def _planned(runs: list[RunRecord]) -> pd.MultiIndex:
    """What will be there in the end."""
    keys = [(run["cil"], run["seed"], name) for run in runs for name in ["", *run["detectors"]]]
    return pd.MultiIndex.from_frame(pd.DataFrame(keys, columns=_METHOD))


def count(number: int, what: str) -> str:
    """A number of things in words: ``1 step``, ``2 steps``."""
    return f"{number} {what}{'s' * (number != 1)}"
