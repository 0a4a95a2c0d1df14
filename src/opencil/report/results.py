"""Average the finished runs of a study, for each benchmark and k, and list missing results."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.roles import ALL, OOD_ROLES
from opencil.evaluation.metric import table_metrics
from opencil.report.averages import (
    average_datasets,
    average_seeds,
    average_steps,
    is_ood,
    list_megabytes,
)
from opencil.report.layout import Cell, list_note
from opencil.report.order import sort_cil, sort_datasets, sort_detectors
from opencil.study.records import RunRecord, setting_of
from opencil.study.rows import settings_of
from opencil.study.study import Study
from opencil.validation import flat

_METHOD = ["cil", "seed", "detector"]
_PLACE = ["cil", "detector", "metric", "place"]
_NAMED = 5  # keys of configs that a note names


@dataclass(frozen=True)
class Outcome:
    """Averages over the finished runs of one benchmark and k, and the list of unfinished runs.

    ``averages`` are means over seeds in percent, ``seeds`` their numbers of seeds; both by CIL method,
    detector, metric and place.
    """

    benchmark: str
    k: int | str
    steps: int
    cil: list[str]
    detectors: list[str]
    datasets: dict[str, str]  #: near or far, by name
    partial: dict[str, list[str]]  #: datasets of some finished runs only, with these runs
    averages: dict[tuple[str, str, str, str], Cell]
    seeds: dict[tuple[str, str, str, str], int]
    per_seed: pd.DataFrame  #: cil, seed, detector, metric, place, value; of finished runs, in percent
    kept: dict[str, tuple[float, float]]  #: MB of model and memory after the last step, by CIL method
    behind: dict[tuple[str, int, str], int]  #: steps of unfinished detectors, by CIL method, seed, detector
    runs: list[RunRecord]
    unread: list[str]  #: runs of it, or perhaps of it, of which nothing could be read

    @property
    def title(self) -> str:
        """Return the beginning of the title of all its tables."""
        return f"{self.benchmark}, {self.k} classes per step"

    @property
    def name(self) -> str:
        """Return its name for files."""
        return f"{self.benchmark}-k{self.k}"

    @property
    def averaged(self) -> dict[str, str]:
        """Return the datasets of every finished run, over which near, far and all are."""
        return {name: distance for name, distance in self.datasets.items() if name not in self.partial}

    def of(self, cil: str, detector: str, metric: str, place: str) -> Cell:
        """Return an average, without a value where no run is finished."""
        return self.averages.get((cil, detector, metric, place), Cell())

    def accuracy(self, cil: str) -> Cell:
        """Return the average incremental accuracy of a CIL method."""
        return self.of(cil, "", "accuracy", "")

    def mean_over(self, detectors: Iterable[str], cil: str, metric: str, place: str) -> Cell:
        """Average over detectors, if each has a value; the deviation is over the seeds that all have."""
        names = list(detectors)
        means = [mean for name in names if (mean := self.of(cil, name, metric, place).value) is not None]
        if not names or len(means) < len(names):
            return Cell()
        whole = self._by_seed[cil, metric, place][names].dropna().mean(axis=1)
        return Cell(sum(means) / len(means), whole.std())

    @cached_property
    def _by_seed(self) -> dict[Any, pd.DataFrame]:
        """Return tables of seeds × detectors by CIL method, metric and place."""
        parts = self.per_seed.groupby(["cil", "metric", "place"])
        return {key: part.pivot(index="seed", columns="detector", values="value") for key, part in parts}

    def select_finished(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of its finished runs and detectors."""
        here = rows[(rows["benchmark"] == self.benchmark) & (rows["k"] == self.k)]
        return here.merge(self.per_seed[_METHOD].drop_duplicates(), on=_METHOD)

    def basis(self) -> list[str]:
        """Return notes on datasets, steps and seeds of the averages; ``missing`` names missing runs."""
        seeds = max(self.seeds.values(), default=0)
        splits = {d: [name for name, far in self.averaged.items() if far == d] for d in OOD_ROLES}
        named = "; ".join(f"{distance}: {', '.join(names)}" for distance, names in splits.items() if names)
        first = f"Percent: mean over OOD datasets ({named or 'none'}), {describe_steps(self.steps, seeds)}."
        fewer = list_note("Over fewer seeds, so with care", self._fewer_seeds(seeds), "; ")
        return [first, *self.uneven(), *self.mixture(), *fewer]

    def uneven(self) -> list[str]:
        """Return a note on OOD datasets that only some finished runs have, if there are any."""
        return note_partial("so not in near, far and all", self.partial)

    def missing(self, *, averaged: bool = False, of: Collection[str] | None = None) -> list[str]:
        """Return sentences on what is unfinished, damaged, lost or failed.

        With ``averaged``, unfinished methods are in the averages all the same. ``of`` are the shown CIL
        methods (default: all).
        """
        runs = [run for run in self.runs if of is None or run["cil"] in of]
        lost = [f"{_name_run(run)} ({', '.join(files)})" for run in runs if (files := run.get("left_out"))]
        lost += [f"{name} (all of it)" for name in self.unread]
        failed = [f"{_name_run(run)} ({run['failed']})" for run in runs if "failed" in run]
        unfinished = "Unfinished, so not comparable" if averaged else "Not finished, so not counted"
        sentences = {unfinished: self.unfinished(of), "Damaged or lost, so left out": lost, "Failed": failed}
        return [note for kind, parts in sentences.items() for note in list_note(kind, parts, "; ")]

    def mixture(self) -> list[str]:
        """Return notes on seeds of one method that were made under different configs or by different code."""
        parts = [
            f"{cil} ({', '.join(keys[:_NAMED])}{f' and {len(keys) - _NAMED} more' * (len(keys) > _NAMED)})"
            for cil, keys in _differing_keys(self.runs).items()
        ]
        notes = list_note("Runs of one method that differ in more than their seeds", parts, "; ")
        makers = [maker for run in self.runs for maker in run.get("made", [])]
        values = {
            "versions of the source": {maker["source"] for maker in makers},
            "devices": {f"{maker['device']} ({maker['precision']})" for maker in makers},
        }
        for plugin, sha256 in (pair for maker in makers for pair in maker.get("plugins", {}).items()):
            values.setdefault(f"versions of {Path(plugin).name}", set()).add(sha256[:16])
        for kind, several in values.items():
            if len(several) > 1:
                notes += list_note(f"Rows were made by several {kind}", sorted(several))
        return notes

    def unfinished(self, of: Collection[str] | None = None) -> list[str]:
        """Return how far each unfinished run and detector has come, in words; ``of`` some CIL methods."""
        order = {name: i for i, name in enumerate(["", *self.cil, *self.detectors])}
        parts: dict[tuple[int, str, int, int], list[str]] = {}
        for (cil, seed, detector), steps in sorted(self.behind.items(), key=lambda item: order[item[0][2]]):
            if of is None or cil in of:
                parts.setdefault((order[cil], cil, seed, steps), []).append(detector)
        return [
            f"{cil} seed {seed}, {steps} of {count(self.steps, 'step')} ({self._list(names)})"
            for (_, cil, seed, steps), names in sorted(parts.items())
        ]

    def _fewer_seeds(self, seeds: int) -> list[str]:
        """Return the CIL methods and detectors that have fewer seeds than others."""
        fewer: dict[tuple[str, int], list[str]] = {}
        headline = table_metrics("all")[0]
        for cil in self.cil:
            for detector in ["", *self.detectors]:
                key = (cil, detector, headline, ALL) if detector else (cil, "", "accuracy", "")
                number = self.seeds.get(key, seeds)
                if number < seeds:
                    fewer.setdefault((cil, number), []).append(detector)
        return [f"{cil}, {number} of {seeds} ({self._list(names)})" for (cil, number), names in fewer.items()]

    def _list(self, detectors: list[str]) -> str:
        names = [name for name in detectors if name]
        if len(names) > 1 and len(names) == len(self.detectors):
            return "all detectors"
        return ", ".join(names) or "the model"


@lru_cache(maxsize=2)  # all tables, figures and pages of a report ask for the same
def results(study: Study, metrics: tuple[str, ...] = ()) -> list[Outcome]:
    """Return the results of a study for each benchmark and k; its records name the runs still to come.

    Only finished runs are averaged: after half of the steps, the easier half, a method would look better
    than it is. ``metrics`` are those of the tables of near and far OOD unless they are given.
    """
    metrics = ("accuracy", *(metrics or table_metrics("all", "near-far")))
    rows = study.rows[study.rows["metric"].isin(metrics) & (study.rows["task"] == 0)]
    megabytes = list_megabytes(study.rows)
    return [_summarize(study, *setting, rows, megabytes) for setting in settings_of(rows)]


def _summarize(
    study: Study, benchmark: str, k: int | str, rows: pd.DataFrame, megabytes: pd.DataFrame
) -> Outcome:
    """Return the results of one benchmark and k."""
    rows, megabytes = (
        table[(table["benchmark"] == benchmark) & (table["k"] == k)] for table in (rows, megabytes)
    )
    runs = [run for run in study.runs if (run["benchmark"], run["k"]) == (benchmark, k)]
    distances = rows.loc[is_ood(rows), ["ood", "distance"]].drop_duplicates()
    datasets = sort_datasets(benchmark, dict(distances.itertuples(index=False, name=None)))
    steps = max([int(rows["step"].max()), *(run["steps"] for run in runs if run["steps"])])
    planned = [(run["cil"], run["seed"], name) for run in runs for name in ["", *run["detectors"]]]
    done = dict.fromkeys(planned, 0) | _count_steps(rows)
    finished = pd.DataFrame([key for key, number in done.items() if number >= steps], columns=_METHOD)
    rows = rows.merge(finished.astype(rows[_METHOD].dtypes), on=_METHOD)
    partial = find_partial(rows)
    values = average_steps(average_datasets(rows, partial, each=True))
    values = values.assign(value=100 * values["value"])
    table = average_seeds(values, _PLACE).set_index(_PLACE)
    last = megabytes[megabytes["step"] == steps].groupby("cil")[["model", "memory"]].mean()
    return Outcome(
        benchmark=benchmark,
        k=k,
        steps=steps,
        cil=sort_cil(cil for cil, _, _ in done),
        detectors=sort_detectors(name for _, _, name in done if name),
        datasets=datasets,
        partial={name: partial[name] for name in datasets if name in partial},
        averages=dict(zip(table.index, map(Cell, table["mean"], table["std"]), strict=True)),
        seeds=dict(zip(table.index, table["seeds"].tolist(), strict=True)),
        per_seed=values[[*_METHOD, "metric", "place", "value"]],
        kept={cil: (model, memory) for cil, model, memory in last.itertuples(name=None)},
        behind={key: number for key, number in done.items() if number < steps},
        runs=runs,
        unread=[run for run in study.left_out if setting_of(run) in (None, (benchmark, k))],
    )


def _name_run(run: RunRecord) -> str:
    return f"{run['cil']} seed {run['seed']}"


def note_partial(effect: str, partial: dict[str, list[str]]) -> list[str]:
    """Return a note on OOD datasets that only some runs have, and its effect on averages."""
    parts = [f"{name} ({', '.join(runs)})" for name, runs in partial.items()]
    return list_note(f"OOD datasets that only some runs have, {effect}", parts, "; ")


def find_partial(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the OOD datasets that only some runs of one benchmark and k have, with these runs' names."""
    have = rows.loc[is_ood(rows), ["cil", "seed", "ood"]].drop_duplicates()
    runs = len(have[["cil", "seed"]].drop_duplicates())
    return {
        str(name): [f"{cil} seed {seed}" for cil, seed in sorted(zip(part["cil"], part["seed"], strict=True))]
        for name, part in have.groupby("ood")
        if len(part) < runs
    }


def _differing_keys(runs: list[RunRecord]) -> dict[str, list[str]]:
    """Return for each CIL method the keys in which its runs' configs differ: seeds and places may.

    A key of some configs only is no difference: the others have another set of detectors.
    """
    values: dict[str, dict[str, set[str]]] = {cil: {} for cil in sort_cil(run["cil"] for run in runs)}
    for run in runs:
        for key, value in flat({"foreign": False} | run["config"]).items():  # foreign: models from elsewhere
            if key.partition(".")[0] not in ("seed", "place", "plugins"):
                values[run["cil"]].setdefault(key, set()).add(repr(value))
    differing = {cil: [key for key in keys if len(keys[key]) > 1] for cil, keys in values.items()}
    return {cil: keys for cil, keys in differing.items() if keys}


def _count_steps(rows: pd.DataFrame) -> dict[tuple[str, int, str], int]:
    """Count the steps that each detector of each run has on all of the run's datasets.

    The steps of a run's model have an empty detector.
    """
    cells = rows.loc[is_ood(rows), [*_METHOD, "step", "ood"]].drop_duplicates()
    cells = cells.assign(own=cells.groupby(["cil", "seed"])["ood"].transform("nunique"))
    of_step = cells.groupby([*_METHOD, "step"])["own"].agg(["size", "first"])
    detectors = (of_step["size"] == of_step["first"]).groupby(_METHOD).sum()
    models = rows.loc[rows["detector"] == "", [*_METHOD, "step"]].drop_duplicates().groupby(_METHOD).size()
    steps: dict[Any, int] = {**models.to_dict(), **detectors.to_dict()}
    return {key: int(number) for key, number in steps.items()}


def describe_steps(steps: int, seeds: int) -> str:
    """Return the numbers of steps and seeds that averages are over, in words."""
    deviation = " (± standard deviation)" * (seeds > 1)
    return f"then over {count(steps, 'step')}, then over {count(seeds, 'seed')}{deviation}"


def count(number: int, noun: str) -> str:
    """Return a number of things in words: ``1 step``, ``2 steps``."""
    return f"{number} {noun}{'s' * (number != 1)}"
