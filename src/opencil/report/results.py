"""Average the finished runs of a study, for each benchmark and k, and list missing results."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from opencil.data.roles import ALL, OOD_ROLES
from opencil.evaluation.metric import Tables, table_metrics
from opencil.report.averages import average_datasets, average_seeds, average_steps, is_ood, list_megabytes
from opencil.report.layout import Cell, Table, list_note
from opencil.report.order import sort_cil, sort_datasets, sort_detectors
from opencil.study.records import RunRecord, setting_of
from opencil.study.rows import settings_of
from opencil.study.study import Study
from opencil.validation import flat

_METHOD = ["cil", "seed", "detector"]
_PLACE = ["cil", "detector", "metric", "place"]
_NAMED = 5  # keys of configs that a note names


class Outcome:
    """Averages over the finished runs of one benchmark and k, and the list of unfinished runs."""

    def __init__(
        self,
        study: Study,
        benchmark: str,
        k: int | str,
        rows: pd.DataFrame,
        megabytes: pd.DataFrame,
        chosen: tuple[str, ...] = (),
    ) -> None:
        self.benchmark, self.k, self._chosen = benchmark, k, chosen
        rows, megabytes = (
            table[(table["benchmark"] == benchmark) & (table["k"] == k)] for table in (rows, megabytes)
        )
        self.runs = [run for run in study.runs if (run["benchmark"], run["k"]) == (benchmark, k)]
        #: runs of it, or perhaps of it, of which nothing could be read
        self.unread = [run for run in study.left_out if setting_of(run) in (None, (benchmark, k))]
        self.steps = max([int(rows["step"].max()), *(run["steps"] for run in self.runs if run["steps"])])
        planned = [(run["cil"], run["seed"], name) for run in self.runs for name in ["", *run["detectors"]]]
        done = dict.fromkeys(planned, 0) | _count_steps(rows)
        self.cil = sort_cil(cil for cil, _, _ in done)
        self.detectors = sort_detectors(name for _, _, name in done if name)
        #: number of seeds of any of its runs, finished or not
        self.planned_seeds = len({seed for _, seed, _ in done})
        #: steps of unfinished detectors, by CIL method, seed and detector
        self.behind = {key: number for key, number in done.items() if number < self.steps}
        finished = pd.DataFrame([key for key in done if key not in self.behind], columns=_METHOD)
        distances = rows.loc[is_ood(rows), ["ood", "distance"]].drop_duplicates()
        #: near or far, by name
        self.datasets = sort_datasets(benchmark, dict(distances.itertuples(index=False, name=None)))
        rows = rows.merge(finished.astype(rows[_METHOD].dtypes), on=_METHOD)
        partial = find_partial(rows)
        #: datasets of some finished runs only, with these runs
        self.partial = {name: partial[name] for name in self.datasets if name in partial}
        values = average_steps(average_datasets(rows, partial, each=True))
        values = values.assign(value=100 * values["value"])
        #: cil, seed, detector, metric, place, value; of finished runs, in percent
        self.per_seed = values[[*_METHOD, "metric", "place", "value"]]
        #: means over seeds in percent, by CIL method, detector, metric and place
        self.averages = make_cells(average_seeds(values, _PLACE).set_index(_PLACE))
        last = megabytes[megabytes["step"] == self.steps].groupby("cil")[["model", "memory"]].mean()
        #: MB of model and memory after the last step, by CIL method
        self.kept = {cil: (model, memory) for cil, model, memory in last.itertuples(name=None)}

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

    def metrics(self, *tables: Tables) -> list[str]:
        """Return the metrics that were chosen, or else those that some tables show unasked."""
        return list(self._chosen) or table_metrics(*tables)

    def of(self, cil: str, detector: str, metric: str, place: str) -> Cell:
        """Return an average, without a value where no run is finished."""
        return self.averages.get((cil, detector, metric, place), Cell())

    def mean_over(self, detectors: Iterable[str], cil: str, metric: str, place: str) -> Cell:
        """Average over detectors, if each has a value; the deviation is over the seeds that all have."""
        names = list(detectors)
        means = [self.of(cil, name, metric, place).value for name in names]
        if not means or None in means:
            return Cell()
        by_seed = self._by_seed[cil, metric, place][names].dropna().mean(axis=1)
        return Cell(sum(filter(None, means)) / len(means), by_seed.std(), seeds=len(by_seed))

    @cached_property
    def _by_seed(self) -> dict[Any, pd.DataFrame]:
        """Return tables of seeds × detectors by CIL method, metric and place."""
        parts = self.per_seed.groupby(["cil", "metric", "place"])
        return {key: part.pivot(index="seed", columns="detector", values="value") for key, part in parts}

    def select_finished(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of its finished runs and detectors."""
        here = rows[(rows["benchmark"] == self.benchmark) & (rows["k"] == self.k)]
        return here.merge(self.per_seed[_METHOD].drop_duplicates(), on=_METHOD)

    def complete(self, table: Table, averaged: bool = False) -> Table:
        """Return a table of these results with benchmark and k in name and title, and with missing runs."""
        of = f", {table.cil}" if table.cil else ""
        missing = self.missing(averaged=averaged, of=[table.cil] if table.cil else None)
        name, title = f"{table.name}-{self.name}", f"{self.title}{of}: {table.title}"
        return replace(table, name=name, title=title, missing=missing, seeds=self.planned_seeds)

    def basis(self) -> list[str]:
        """Return notes on datasets, steps and seeds of the averages; ``missing`` names missing runs."""
        seeds = max((cell.seeds for cell in self.averages.values()), default=0)
        splits = {d: [name for name, far in self.averaged.items() if far == d] for d in OOD_ROLES}
        named = "; ".join(f"{distance}: {', '.join(names)}" for distance, names in splits.items() if names)
        of_all = describe_steps(self.steps, seeds, self.planned_seeds)
        first = f"Percent: mean over OOD datasets ({named or 'none'}), {of_all}."
        fewer = list_note("Over fewer seeds, so with care", self._fewer_seeds(seeds), "; ")
        return [first, *self.uneven(), *self.mixture(), *fewer]

    def uneven(self) -> list[str]:
        """Return a note on OOD datasets that only some finished runs have, if there are any."""
        return note_partial("so not in near, far and all", self.partial)

    def missing(self, *, averaged: bool = False, of: Collection[str] | None = None) -> list[str]:
        """Return sentences on unfinished, damaged, lost and failed runs, of some CIL methods or all."""
        runs = [run for run in self.runs if of is None or run["cil"] in of]
        named = [(f"{run['cil']} seed {run['seed']}", run) for run in runs]
        lost = [f"{name} ({', '.join(files)})" for name, run in named if (files := run.get("left_out"))]
        lost += [f"{name} (all of it)" for name in self.unread]
        failed = [f"{name} ({run['failed']})" for name, run in named if "failed" in run]
        unfinished = "Unfinished, so not comparable" if averaged else "Not finished, so not counted"
        sentences = {unfinished: self.unfinished(of), "Damaged or lost, so left out": lost, "Failed": failed}
        return [note for kind, parts in sentences.items() for note in list_note(kind, parts, "; ")]

    def mixture(self) -> list[str]:
        """Return notes on seeds of one method that were made under different configs or by different code."""
        return [*self.differing(), *self.makers()]

    def differing(self) -> list[str]:
        """Return a note on methods whose runs have different configs, if there are any."""
        parts = []
        for cil, keys in _differing_keys(self.runs).items():
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            parts.append(f"{cil} ({', '.join(keys[:_NAMED])}{more})")
        return list_note("Runs of one method that differ in more than their seeds", parts, "; ")

    def makers(self) -> list[str]:
        """Return notes on several sources, devices or plugins that made the rows."""
        notes, values = list[str](), dict[str, set[str]]()
        for maker in (maker for run in self.runs for maker in run.get("made", [])):
            values.setdefault("versions of the source", set()).add(maker["source"])
            values.setdefault("devices", set()).add(f"{maker['device']} ({maker['precision']})")
            for plugin, sha256 in maker.get("plugins", {}).items():
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
        headline = self.metrics("all")[0]
        for cil, detector in product(self.cil, ["", *self.detectors]):
            key = (cil, detector, headline, ALL) if detector else (cil, "", "accuracy", "")
            if (number := self.averages[key].seeds if key in self.averages else seeds) < seeds:
                fewer.setdefault((cil, number), []).append(detector)
        return [f"{cil}, {number} of {seeds} ({self._list(names)})" for (cil, number), names in fewer.items()]

    def _list(self, detectors: list[str]) -> str:
        names = list(filter(None, detectors))
        every = len(names) > 1 and len(names) == len(self.detectors)
        return "all detectors" if every else ", ".join(names) or "the model"


@lru_cache(maxsize=2)  # all tables, figures and pages of a report ask for the same
def results(study: Study, metrics: tuple[str, ...] = ()) -> list[Outcome]:
    """Return the results for each benchmark and k; the easier first steps of unfinished runs do not count.

    ``metrics`` are those that tables show, by default the standard ones.
    """
    shown = ["accuracy", *table_metrics("all", "near-far"), *metrics]
    rows = study.rows[study.rows["metric"].isin(shown) & (study.rows["task"] == 0)]
    megabytes = list_megabytes(study.rows)
    return [Outcome(study, *setting, rows, megabytes, metrics) for setting in settings_of(rows)]


def make_cells(averages: pd.DataFrame, factor: float = 1) -> dict[Any, Cell]:
    """Return means times a factor, with their deviations and numbers of seeds, as cells by index."""
    numbers = zip(factor * averages["mean"], factor * averages["std"], averages["seeds"], strict=True)
    cells = (Cell(mean, std, seeds=int(seeds)) for mean, std, seeds in numbers)
    return dict(zip(averages.index, cells, strict=True))


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
    """Return for each CIL method the keys its runs' configs share and differ in; seeds and places may."""
    values: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for key, value in flat({"foreign": False} | run["config"]).items():  # foreign: models from elsewhere
            if key.partition(".")[0] not in ("seed", "place", "plugins"):
                values.setdefault((run["cil"], key), set()).add(repr(value))
    differing: dict[str, list[str]] = {}
    for (cil, key), several in values.items():
        if len(several) > 1:
            differing.setdefault(cil, []).append(key)
    return {cil: differing[cil] for cil in sort_cil(differing)}


def _count_steps(rows: pd.DataFrame) -> dict[tuple[str, int, str], int]:
    """Count the steps that each detector ('': the model) of each run has on all of the run's datasets."""
    cells = rows.loc[is_ood(rows), [*_METHOD, "step", "ood"]].drop_duplicates()
    own = cells.groupby(["cil", "seed"])["ood"].transform("nunique")
    of_step = cells.assign(own=own).groupby([*_METHOD, "step"])["own"].agg(["size", "first"])
    detectors = (of_step["size"] == of_step["first"]).groupby(_METHOD).sum()
    models = rows[rows["detector"] == ""].groupby(_METHOD)["step"].nunique()
    steps: dict[Any, int] = {**models.to_dict(), **detectors.to_dict()}
    return steps


def describe_steps(steps: int, seeds: int, planned: int) -> str:
    """Return the numbers of steps and seeds that averages are over, in words."""
    deviation = " (± standard deviation)" if seeds > 1 else ""
    return f"then over {count(steps, 'step')}, then over {seeds} of {count(planned, 'seed')}{deviation}"


def count(number: int, noun: str) -> str:
    """Return a number of things in words: ``1 step``, ``2 steps``."""
    return f"{number} {noun}{'s' * (number != 1)}"
