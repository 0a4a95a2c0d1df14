"""Rank detectors over cells, and test which of them differ and by how much.

A cell is one CIL method, seed and OOD dataset of a benchmark and k, mean over its steps. All detectors of a
cell are measured on the same models and images, so they are compared in pairs. Cells of one run depend on
each other: the intervals are about these runs, and are too narrow for another training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import numpy as np
import pandas as pd

from opencil.data.roles import ALL
from opencil.errors import unknown
from opencil.evaluation.metric import metric_of
from opencil.report.averages import is_ood
from opencil.report.layout import DETECTOR, Block, Cell, Column, Table, list_note, words
from opencil.report.order import is_labelled, method, sort_cil
from opencil.report.results import Outcome, results
from opencil.study.study import Study

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_UNIT = ["cil", "seed", "ood"]


@dataclass(frozen=True)
class Ranking:
    """Detectors by mean rank over cells, best first, with the tests of their differences."""

    detectors: list[str]
    ranks: Matrix
    friedman: tuple[float, float] | None  #: statistic and p; None for two detectors
    critical: float  #: smallest significant difference of mean ranks (Nemenyi)
    groups: list[range]  #: largest ranges of positions without such a difference


def cell_matrix(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return cells × detectors of a metric, as fractions, mean over the steps that every detector has."""
    chosen = rows[is_ood(rows) & (rows["metric"] == metric)]
    steps = chosen.pivot(index=[*_UNIT, "step"], columns="detector", values="value").dropna()
    return steps.groupby(_UNIT).mean()


def rank_detectors(cells: pd.DataFrame, lower_is_better: bool = False) -> Ranking:
    """Rank detectors by Friedman's test over cells, with Nemenyi's critical difference of mean ranks."""
    from scipy.stats import friedmanchisquare  # imported here: it takes half a second

    ranks = cells.rank(axis=1, ascending=lower_is_better).to_numpy()  # [N, K], 1 is best, ties share
    mean = pd.Series(ranks.mean(axis=0), cells.columns).sort_values(kind="stable")
    means, critical = mean.to_numpy(), nemenyi(cells.shape[1], len(cells))
    ends = [int(np.searchsorted(means, rank + critical, side="left")) for rank in means]
    groups = [range(i, end) for i, end in enumerate(ends) if i == 0 or end > ends[i - 1]]
    friedman = None
    if cells.shape[1] > 2:
        statistic, p = friedmanchisquare(*ranks.T) if np.ptp(ranks) else (0, 1)  # all are tied
        friedman = float(statistic), float(p)
    return Ranking(list(mean.index), means, friedman, critical, groups)


def nemenyi(detectors: int, cells: int) -> float:
    """Return the difference of two mean ranks from which on it is significant, at 5 %.

    With N cells and K detectors it is q · sqrt(K (K + 1) / (6 N)), q the studentised range's 95 % quantile
    for K groups and infinitely many degrees of freedom, over sqrt 2.
    """
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, detectors, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(detectors * (detectors + 1) / (6 * cells)))


def bootstrap(differences: Matrix, resamplings: int = 10_000) -> Matrix:
    """Return mean, low and high of 95 % intervals of paired differences [cells, pairs], by drawing cells."""
    count = len(differences)
    chosen = np.random.default_rng(0).integers(0, count, size=(resamplings, count))
    times = np.stack([np.bincount(cells, minlength=count) for cells in chosen])  # how often each was drawn
    means = times @ differences / count  # [resamplings, pairs]
    return np.stack([differences.mean(axis=0), *np.quantile(means, [0.025, 0.975], axis=0)], axis=1)


def signed_rank(differences: Matrix) -> float:
    """Return the two-sided p of Wilcoxon's signed-rank test of paired differences [cells] other than 0."""
    from scipy.stats import wilcoxon

    nonzero = differences[differences != 0]
    return float(wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Adjust several p by Holm: the i-th smallest of n, counted from 0, times n − i."""
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return adjusted.tolist()


def select_best(values: pd.DataFrame, lower_is_better: bool, noise: float) -> list[str]:
    """Return the best detector of seeds × detectors in percent, and those not told apart, best first.

    The best is of those with the most seeds. Others are told apart if they are worse on every seed that they
    share with it, and by over a point in the mean; on a single seed, by ``noise`` points.
    """
    signed = -values if lower_is_better else values
    best = signed.loc[:, signed.count() == signed.count().max()].mean().idxmax()
    behind = -signed.sub(signed[best], axis=0)  # NaN where a detector lacks the seed
    apart = ((behind > 0) | behind.isna()).all() & (behind.mean() > 1)
    apart = apart.where(behind.count() > 1, behind.mean() >= noise)
    close = signed.loc[:, ~apart].mean().drop(best).sort_values(ascending=False, kind="stable")
    return [str(best), *map(str, close.index)]


def find_answers(outcome: Outcome, noise: float) -> dict[str, dict[str, Any]]:
    """Return the best detectors of finished runs on all OOD sets, for each CIL method, by the main metric.

    ``best`` are those of ``select_best`` with the most seeds, and ``few`` have fewer. Each has its mean,
    deviation and number of seeds. Variants are left out.
    """
    metric, values = metric_of(outcome.metrics("all")[0]), outcome.per_seed
    values = values[(values["metric"] == metric.name) & (values["place"] == ALL)]
    values = values[~values["detector"].map(is_labelled).astype(bool)]
    found: dict[str, dict[str, Any]] = {}
    for cil, part in values.groupby("cil"):
        table = part.pivot(index="seed", columns="detector", values="value")
        told = table.agg(["mean", "std", "count"]).round(2).astype(object)
        kinds: dict[str, list[Any]] = {"best": [], "few": []}
        for name in select_best(table, metric.lower_is_better, noise):
            kind = "best" if table[name].count() == table.count().max() else "few"
            kinds[kind].append([name, *told[name].where(told[name].notna(), None)])
        found[str(cil)] = kinds
    return found


def statistics_tables(
    study: Study, baseline: str | None = None, metrics: tuple[str, ...] = ()
) -> list[Table]:
    """Return a table of ranked detectors for each benchmark, k and main metric.

    Only finished runs count; variants of detectors and CIL models do not. Differences are from ``baseline``,
    by default the best detector. Detectors need two cells in common.
    """
    rows = study.rows
    known = {str(name) for name in rows["detector"].unique() if name and not is_labelled(name)}
    if baseline is not None and baseline not in known:
        raise unknown("detector", baseline, known)
    plain = rows[rows["detector"].isin(known) & is_ood(rows)]
    made = []
    for outcome in results(study, metrics):
        finished = outcome.select_finished(plain)
        names = sort_cil(finished["cil"].unique())
        variants = [name for name in names if is_labelled(name) and method(name) in names]
        finished = finished[~finished["cil"].isin(variants)]
        total = len(finished[_UNIT].drop_duplicates())
        for metric in outcome.metrics("all"):
            cells = cell_matrix(finished, metric)
            if min(cells.shape) > 1:
                made.append(_table(outcome, cells, total, metric, baseline, variants))
    return made


def _table(
    outcome: Outcome, cells: pd.DataFrame, total: int, metric: str, baseline: str | None, variants: list[str]
) -> Table:
    ranking = rank_detectors(cells, metric_of(metric).lower_is_better)
    names = ranking.detectors
    reference = baseline if baseline in names else names[0]
    absent = baseline not in (None, reference)
    values = 100 * cells[names].to_numpy(dtype=np.float64)
    differences = values - values[:, [names.index(reference)]]
    intervals = bootstrap(differences)
    others = [i for i, name in enumerate(names) if name != reference]
    tests = dict(zip(others, holm([signed_rank(differences[:, i]) for i in others]), strict=True))
    lines = []
    for i, name in enumerate(names):
        letters = "".join(ascii_letters[g] for g, group in enumerate(ranking.groups) if i in group)
        compared = [words("")] * 4
        if i in tests:
            compared = [Cell(limit, signed=True) for limit in intervals[i]]
            compared.append(Cell(tests[i], digits=4, bounded=True))
        lines.append(
            [words(name), Cell(ranking.ranks[i]), words(letters), Cell(values[:, i].mean()), *compared]
        )
    heads = ("mean rank", "group", metric_of(metric).column, "difference", "low", "high", "p")
    columns = [DETECTOR, *map(Column, heads)]
    counted = f" of {total:,}: those that all detectors have" if len(cells) < total else ""
    tested = ""
    if ranking.friedman:
        statistic, p = ranking.friedman
        bound = f"p = {p:.2g}" if p >= 1e-12 else "p < 1e-12"
        tested = f"Friedman's test: χ² = {statistic:.1f} with {len(lines) - 1} degrees of freedom, {bound}. "
    notes = [
        f"Over {len(cells):,} cells (CIL method × seed × OOD dataset, mean over steps){counted}.",
        f"{tested}Mean ranks that differ by less than {ranking.critical:.2f} (Nemenyi, 5 %) are not told "
        "apart: such detectors share a group's letter.",
        f"Difference from {reference}, in percent points: mean over cells, and its 95 % interval (low, high) "
        "by a paired bootstrap that draws cells (10,000 times, seed 0); p is that of Wilcoxon's signed-rank "
        "test of the same pairs, adjusted by Holm for the number of detectors. Cells of one run depend on "
        "each other: all this is about these runs, not about other trainings.",
        *([f"{baseline} is not finished here, so the best stands for it."] if absent else []),
        *list_note("Variants of a method are not ranked", filter(is_labelled, outcome.detectors)),
        *list_note("Variants of a CIL model are not counted beside it", variants),
        *outcome.mixture(),
        metric_of(metric).sentence,
    ]
    title = f"detectors ranked by {metric_of(metric).column}"
    return outcome.complete(Table(f"statistics-{metric}", title, columns, [Block(lines)], notes))
