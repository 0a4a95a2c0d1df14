"""Statistics over cells: which detectors can be told apart, and by how much they differ.

A cell is one (CIL method, seed, OOD dataset) of a benchmark and k, mean over its steps, which share a history
and nested OOD images: all detectors are measured on the same models and the same images there, so that they
are compared in pairs. Cells of one run are not independent of each other either: the intervals are about
these runs, and are too narrow for what another training would give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import numpy as np
import pandas as pd

from opencil.errors import BadInput, unknown
from opencil.evaluation.metric import metric_of
from opencil.report.averages import of_datasets
from opencil.report.layout import Block, Cell, Column, Table, words
from opencil.report.order import labelled, method, sort_cil
from opencil.report.results import Outcome, results
from opencil.study.study import Study

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_UNIT = ["cil", "seed", "ood"]
_CHUNK = 500  # resamplings at a time: memory stays small


@dataclass(frozen=True)
class Ranking:
    """Detectors by mean rank over cells, best first, with the test that tells them apart.

    ``friedman`` is its statistic and p, None of two detectors; those whose mean ranks differ by ``critical``
    or more are told apart (Nemenyi). ``groups`` are the largest sets of detectors that are not, as positions.
    """

    detectors: list[str]
    ranks: Matrix
    friedman: tuple[float, float] | None
    critical: float
    groups: list[range]


@dataclass(frozen=True)
class Interval:
    """A mean difference and its bootstrap interval."""

    mean: float
    low: float
    high: float


def cell_matrix(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Cells × detectors of a metric, fractions, mean over the steps that every detector has.

    Cells of which not every detector has a step are left out.
    """
    chosen = of_datasets(rows)
    chosen = chosen[chosen["metric"] == metric]
    steps = chosen.pivot(index=[*_UNIT, "step"], columns="detector", values="value").dropna()
    return steps.groupby(_UNIT).mean()


def rank_detectors(cells: pd.DataFrame, lower_is_better: bool = False, alpha: float = 0.05) -> Ranking:
    """Friedman's test over cells × detectors, and Nemenyi's critical difference of mean ranks.

    With N cells and K detectors, CD = q · sqrt(K (K + 1) / (6 N)), q the studentised range's 1 − α quantile
    for K groups and infinitely many degrees of freedom, over sqrt 2.
    """
    count, detectors = cells.shape
    if detectors < 2 or count < 2:
        raise BadInput(
            f"{detectors} detectors on {count} cells cannot be ranked: at least 2 of each are needed, on the "
            "same runs, steps and OOD datasets"
        )
    ranks = cells.rank(axis=1, ascending=lower_is_better).to_numpy()  # [N, K], 1 is best, ties share
    mean = ranks.mean(axis=0)
    critical = nemenyi(detectors, count, alpha)
    order = np.argsort(mean, kind="stable")
    return Ranking(
        detectors=[str(cells.columns[i]) for i in order],
        ranks=mean[order],
        friedman=_friedman(ranks),
        critical=critical,
        groups=_groups(mean[order], critical),
    )


def nemenyi(detectors: int, cells: int, alpha: float = 0.05) -> float:
    """By how much the mean ranks of two detectors must differ for them to be told apart."""
    from scipy.stats import studentized_range  # takes half a second to import

    q = studentized_range.ppf(1 - alpha, detectors, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(detectors * (detectors + 1) / (6 * cells)))


def _friedman(ranks: Matrix) -> tuple[float, float] | None:
    """Statistic and p of Friedman's test, which is for three or more; where all are tied, nothing differs."""
    from scipy.stats import friedmanchisquare

    if ranks.shape[1] < 3:
        return None
    if not np.ptp(ranks):
        return 0.0, 1.0
    test = friedmanchisquare(*ranks.T)
    return float(test.statistic), float(test.pvalue)


def bootstrap(
    differences: Matrix, resamplings: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> list[Interval]:
    """Percentile intervals of the means of paired differences [cells, pairs]; a cell's are drawn together."""
    count, pairs = differences.shape
    draw = np.random.default_rng(seed)
    means = np.empty((resamplings, pairs))
    for start in range(0, resamplings, _CHUNK):
        size = min(_CHUNK, resamplings - start)
        chosen = draw.integers(0, count, size=(size, count))
        # How often each cell was drawn, [size, cells]: one product then gives the means of all pairs.
        flat = (chosen + count * np.arange(size)[:, None]).ravel()
        times = np.bincount(flat, minlength=size * count).reshape(size, count)
        means[start : start + size] = times @ differences / count
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [Interval(*map(float, three)) for three in zip(differences.mean(axis=0), low, high, strict=True)]


def signed_rank(differences: Matrix) -> float:
    """Two-sided p of Wilcoxon's signed-rank test of paired differences [cells]; those of 0 say nothing."""
    from scipy.stats import wilcoxon

    told = differences[differences != 0]
    return float(wilcoxon(told).pvalue) if len(told) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Values of p, adjusted for being several by Holm: the i-th smallest of n, from 0, times n − i."""
    adjusted, largest = [0.0] * len(p), 0.0
    for i, place in enumerate(np.argsort(p)):
        largest = max(largest, min(1.0, (len(p) - i) * p[place]))
        adjusted[place] = largest
    return adjusted


def statistics_tables(study: Study, baseline: str | None = None) -> list[Table]:
    """For each benchmark and k, of AUC and of FPR: detectors ranked, with their differences from one of them.

    Only what is finished counts. Names with a label do not: variants of one method would be ranked as
    methods, and a CIL model whose variant is there would count twice. ``baseline`` is the detector to differ
    from; by default the best. Where not all detectors have at least two cells in common, there is no table.
    """
    rows = study.rows
    known = {str(name) for name in rows["detector"].unique() if name and not labelled(name)}
    if baseline is not None and baseline not in known:
        raise unknown("detector", baseline, known)
    plain = rows[rows["detector"].isin(known)]
    made = []
    for outcome in results(study):
        finished = of_datasets(outcome.finished(plain))
        variants = _variants(finished)
        finished = finished[~finished["cil"].isin(variants)]
        for metric in ("auc", "fpr"):
            cells = cell_matrix(finished, metric)
            if min(cells.shape) > 1:
                total = len(finished[_UNIT].drop_duplicates())
                made.append(_table(outcome, cells, total, metric, baseline, variants))
    return made


def _variants(rows: pd.DataFrame) -> list[str]:
    """The CIL models that are one of the others under other values."""
    names = sort_cil(rows["cil"])
    return [name for name in names if labelled(name) and method(name) in names]


def _table(
    outcome: Outcome,
    cells: pd.DataFrame,
    total: int,
    metric: str,
    baseline: str | None,
    uncounted: list[str],
) -> Table:
    ranking = rank_detectors(cells, metric_of(metric).lower_is_better)
    reference = baseline if baseline in cells.columns else ranking.detectors[0]
    values = 100 * cells[ranking.detectors].to_numpy(dtype=np.float64)
    differences = values - values[:, [ranking.detectors.index(str(reference))]]
    intervals = bootstrap(differences)
    others = [i for i, detector in enumerate(ranking.detectors) if detector != reference]
    tests = dict(zip(others, holm([signed_rank(differences[:, i]) for i in others]), strict=True))
    lines = []
    for i, detector in enumerate(ranking.detectors):
        letters = _letters([g for g, group in enumerate(ranking.groups) if i in group], len(ranking.groups))
        own, interval = detector == reference, intervals[i]
        limits = [Cell(interval.mean), Cell(interval.low), Cell(interval.high)]
        shown = [words("") if own else Cell(c.value, signed=True) for c in limits]
        shown.append(words("") if own else Cell(tests[i], digits=4, bounded=True))
        lines.append(
            [words(detector), Cell(ranking.ranks[i]), words(letters), Cell(values[:, i].mean()), *shown]
        )
    columns = [Column("detector", label=True), Column("mean rank"), Column("group")]
    columns += [
        Column(metric_of(metric).column),
        Column("difference"),
        Column("low"),
        Column("high"),
        Column("p"),
    ]
    left_out = [name for name in outcome.detectors if labelled(name)]
    tested = ""
    if ranking.friedman:
        statistic, p = ranking.friedman
        bound = f"p = {p:.2g}" if p >= 1e-12 else "p < 1e-12"
        tested = f"Friedman's test: χ² = {statistic:.1f} with {len(lines) - 1} degrees of freedom, {bound}. "
    notes = [
        f"Over {len(cells):,} cells (CIL method × seed × OOD dataset, mean over steps)"
        + (f" of {total:,}: those that all detectors have." if len(cells) < total else "."),
        f"{tested}Mean ranks that differ by less than {ranking.critical:.2f} (Nemenyi, 5 %) are not told "
        "apart: such detectors share a group's letter.",
        f"Difference from {reference}, in percent points: mean over cells, and its 95 % interval (low, high) "
        "by a paired bootstrap that draws cells (10,000 times, seed 0); p is that of Wilcoxon's signed-rank "
        "test of the same pairs, adjusted by Holm for the number of detectors. Cells of one run depend on "
        "each other: all this is about these runs, not about other trainings.",
        *[f"{baseline} is not finished here, so the best stands for it."]
        * (baseline not in (None, reference)),
        *[f"Variants of a method are not ranked: {', '.join(left_out)}."] * bool(left_out),
        *[f"Variants of a CIL model are not counted beside it: {', '.join(uncounted)}."] * bool(uncounted),
        *outcome.mixture(),
        metric_of(metric).sentence,
    ]
    title = f"{outcome.title}: detectors ranked by {metric_of(metric).column}"
    name = f"statistics-{metric}-{outcome.name}"
    return Table(name, title, columns, [Block(lines)], notes, outcome.missing())


def _letters(groups: list[int], count: int) -> str:
    """The names of some of ``count`` groups: letters, or numbers where the alphabet is too short."""
    if count <= len(ascii_lowercase):
        return "".join(ascii_lowercase[group] for group in groups)
    return " ".join(str(group + 1) for group in groups)


def _groups(ranks: Matrix, critical: float) -> list[range]:
    """The largest sequences of detectors whose mean ranks differ by less than the critical difference."""
    ends = [int(np.searchsorted(ranks, rank + critical, side="left")) for rank in ranks]
    return [range(i, end) for i, end in enumerate(ends) if i == 0 or end > ends[i - 1]]
