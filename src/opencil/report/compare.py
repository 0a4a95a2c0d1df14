"""Ours beside the paper's figures: cell by cell, and how far the two agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from opencil.data.roles import ALL, OOD_ROLES
from opencil.errors import BadInput
from opencil.evaluation.metric import metric_of
from opencil.published import (
    OOD,
    contradictory,
    in_percent,
    published_ablation,
    published_results,
    recomputed_means,
)
from opencil.report.layout import Block, Cell, Column, Table, words
from opencil.report.order import families, labelled, sort_cil, sort_detectors
from opencil.report.results import Outcome, of_dataset, results
from opencil.report.tables import Kind
from opencil.study.rows import settings_of
from opencil.study.study import Study

#: The kinds of tables that the paper has figures for, each with its metrics and its OOD splits.
COMPARED: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "main": (("auc", "fpr"), (ALL,)),
    "distance": (("auc", "ap", "fpr"), OOD_ROLES),
    "ablation": (("auc", "fpr"), ()),  # its places are the datasets
}
_FLAG = "†"
_FLAGGED = (
    f"{_FLAG} The paper contradicts itself here: the mean over all datasets is not that of its own near and "
    "far figures. Such cells are not counted."
)
_CELL = ["cil", "detector", "metric", "place"]


def comparison_tables(study: Study, kinds: Sequence[Kind] = ("main",)) -> list[Table]:
    """For each benchmark and k that the paper has: ours beside the paper's, then how far they agree."""
    made: list[Table] = []
    for outcome in results(study):
        cells = compare(outcome)
        if cells.empty:
            continue
        data = data_notes(outcome)
        compared = [table for kind in kinds for table in _of_kind(outcome, cells, kind, data)]
        if compared and (flagged := _contradictions(outcome, cells)):
            compared.append(flagged)
        made += compared
    return made


def incomparable(study: Study) -> BadInput:
    """The error for a study of which nothing can be compared: not yet, or not at all."""
    published = published_results()
    figures = published[["benchmark", "k"]].drop_duplicates()
    in_paper = set(figures.itertuples(index=False, name=None))
    waiting = [outcome for outcome in results(study) if (outcome.benchmark, outcome.k) in in_paper]
    if waiting:
        cil, detectors = (set(published[name]) - {""} for name in ("cil", "detector"))
        why = [f"{outcome.title} ({_why_not(outcome, cil, detectors)})" for outcome in waiting]
        return BadInput(
            f"nothing that is finished can be compared with the paper's figures: {', '.join(why)}"
        )
    sizes = figures.sort_values("k").groupby("benchmark")["k"]
    has = "; ".join(f"{name} with k = {', '.join(map(str, k))}" for name, k in sizes)
    named = ", ".join(f"{benchmark} with k = {k}" for benchmark, k in settings_of(study.rows))
    return BadInput(f"the paper has no figures to compare {named} with: it has {has}")


def _why_not(outcome: Outcome, cil: set[str], detectors: set[str]) -> str:
    """What keeps some results from being compared: what is not finished, or what the paper does not have."""
    for kind, ours, theirs in (
        ("CIL methods", outcome.cil, sort_cil(cil)),
        ("detectors", outcome.detectors, sort_detectors(detectors)),
    ):
        if not set(ours) & set(theirs):
            named = f"none of the {kind} {', '.join(ours)}" if ours else f"no figures without {kind}"
            return f"the paper has {named}: it has {', '.join(theirs)}"
    return "; ".join(outcome.unfinished()) or "the paper has none of these detectors on these CIL methods"


def compare(outcome: Outcome) -> pd.DataFrame:
    """Every cell that the paper has of a benchmark and k: cil, detector, metric, place, ours, std, paper,
    recomputed (what the paper's near and far figures give), flagged, difference; in percent.

    ``ours`` is NaN where no run is finished; ``difference`` where there is nothing to count, as where ours
    is the mean over other OOD datasets than the paper's.
    """
    figures = published_results()
    figures = figures.assign(recomputed=100 * recomputed_means(figures), flagged=contradictory(figures))
    figures = figures.rename(columns={"distance": "place"})
    ablation = published_ablation()
    ablation = ablation.assign(place=ablation["ood"].map(of_dataset), recomputed=float("nan"), flagged=False)
    columns = ["benchmark", "k", *_CELL, "value", "recomputed", "flagged"]
    every = pd.concat([figures[columns], ablation[columns]])
    every = every.assign(paper=in_percent(every["value"]))
    here = (every["benchmark"] == outcome.benchmark) & (every["k"] == outcome.k)
    cells = every.loc[here, [*_CELL, "paper", "recomputed", "flagged"]].reset_index(drop=True)
    ours = [outcome.of(*cell) for cell in cells[_CELL].itertuples(index=False, name=None)]
    cells["ours"] = pd.Series([average.mean if average else None for average in ours], dtype=float)
    cells["std"] = pd.Series([average.std if average else None for average in ours], dtype=float)
    counts = ~cells["flagged"] & ~cells["place"].isin(_other_splits(outcome))
    return cells.assign(difference=(cells["ours"] - cells["paper"]).where(counts))


def _other_splits(outcome: Outcome) -> list[str]:
    """The splits in which our averages are over other OOD datasets than the paper's."""
    ours = {split: {n for n, d in outcome.averaged.items() if d == split} for split in OOD_ROLES}
    paper = OOD.get(outcome.benchmark, {})
    other = [split for split, names in ours.items() if names != set(paper.get(split, ()))]
    return [*other, "all"] if other else []


# --- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """Three columns: ours, the paper's and the difference of one CIL method, metric and place."""

    cil: str
    metric: str
    place: str
    group: str


def _of_kind(outcome: Outcome, cells: pd.DataFrame, kind: Kind, data: list[str]) -> list[Table]:
    metrics, places = COMPARED[kind]
    if not places:
        places = tuple(of_dataset(name) for name in outcome.datasets)
    shown = cells[cells["place"].isin(places) & cells["metric"].isin(metrics) & cells["ours"].notna()]
    if shown.empty:
        return []
    methods = [cil for cil in outcome.cil if cil in set(shown["cil"])]
    if strangers := [cil for cil in outcome.cil if cil not in set(cells["cil"])]:
        data = [*data, f"CIL methods that the paper does not have: {', '.join(strangers)}."]
    if other := [place for place in _other_splits(outcome) if place in places]:
        named = ", ".join(other)
        data = [*data, f"Ours is over other OOD datasets than the paper's, so it does not count: {named}."]
    made = []
    split = len(places) == 2  # near and far: a table for each metric, as in the paper
    for part in [(metric,) for metric in metrics] if split else [metrics]:
        pairs = [
            _Pair(cil, m, place, " ".join([cil, *_place_words(place), metric_of(m).column]))
            for cil in methods
            for place in places
            for m in part
        ]
        table = _side_by_side(outcome, cells, pairs, data)
        if split:
            name, about = f"distance-{part[0]}", f"near and far OOD, {metric_of(part[0]).column}, "
        else:
            name, about = kind, "" if kind == "main" else f"{kind}, "
        title = f"{outcome.title}: {about}ours beside the paper's"
        made.append(replace(table, name=f"compare-{name}-{outcome.name}", title=title))
    return [
        *made,
        _agreement(outcome, shown, methods, metrics, places, f"agreement-{kind}-{outcome.name}", data),
    ]


def _place_words(place: str) -> list[str]:
    return [] if place == "all" else [place.removeprefix(of_dataset(""))]


def _side_by_side(outcome: Outcome, cells: pd.DataFrame, pairs: list[_Pair], data: list[str]) -> Table:
    """Detectors that both have, in blocks; or in the paper's order, where they are of its ablation."""
    by_cell = cells.set_index(_CELL).to_dict("index")
    keys = pd.MultiIndex.from_tuples([(p.cil, p.metric, p.place) for p in pairs])
    of_pairs = cells[pd.MultiIndex.from_frame(cells[["cil", "metric", "place"]]).isin(keys)]
    theirs = list(dict.fromkeys(of_pairs["detector"]))
    columns = [Column("detector", label=True)]
    columns += [Column(what, pair.group) for pair in pairs for what in ("ours", "paper", "Δ")]
    nothing: dict[Any, Any] = {}

    def line(detector: str) -> list[Cell]:
        found_cells = [by_cell.get((p.cil, detector, p.metric, p.place), nothing) for p in pairs]
        return [words(detector), *(cell for values in found_cells for cell in _three(values))]

    names = [detector for detector in theirs if detector in outcome.detectors]
    if any(map(labelled, theirs)):
        blocks = [Block([line(detector) for detector in names])]
    else:
        blocks = [
            Block(
                [line(d) for d in members], family, [_averages("Average", outcome, of_pairs, members, pairs)]
            )
            for family, members in families(names)
        ]
        if len(blocks) > 1:
            blocks.append(Block([_averages("Average (All)", outcome, of_pairs, names, pairs)]))
    accuracy = [words("CIL accuracy")]
    seen: set[str] = set()
    for pair in pairs:  # in the first group of each CIL method
        new = pair.cil not in seen
        seen.add(pair.cil)
        accuracy += _three(by_cell.get((pair.cil, "", "accuracy", ""), nothing)) if new else [words("")] * 3
    notes = [
        *outcome.basis(),
        "Δ: ours minus the paper's, in percent points. Averages: over detectors that count.",
    ]
    notes += [_FLAGGED] if of_pairs["flagged"].any() else []
    for where, missing in (
        ("in these runs", [d for d in theirs if d not in names]),
        ("in this table of the paper's", [d for d in outcome.detectors if d not in theirs]),
    ):
        notes += [f"Not {where}: {', '.join(missing)}."] if missing else []
    notes += [
        *data,
        *(metric_of(m).sentence for m in dict.fromkeys(["accuracy", *(p.metric for p in pairs)])),
    ]
    return Table("", "", columns, [Block([accuracy]), *blocks], notes, outcome.missing())


def _three(values: Mapping[Any, Any]) -> list[Cell]:
    """Ours, the paper's and the difference."""
    if not values:
        return [Cell(), Cell(), Cell()]
    ours = Cell(_number(values["ours"]), _number(values["std"]))
    paper = Cell(values["paper"], flag=_FLAG if values["flagged"] else "")
    return [ours, paper, Cell(_number(values["difference"]), signed=True)]


def _averages(
    name: str, outcome: Outcome, cells: pd.DataFrame, detectors: list[str], pairs: list[_Pair]
) -> list[Cell]:
    """Means over the detectors that count, so that ours and the paper's are over the same ones."""
    counted = cells[cells["detector"].isin(detectors) & cells["difference"].notna()]
    by_pair = dict(list(counted.groupby(["cil", "metric", "place"])))
    line = [words(name)]
    for pair in pairs:
        key = (pair.cil, pair.metric, pair.place)
        here = by_pair.get(key, counted[:0])
        ours, paper = outcome.mean_over(here["detector"], *key), float(here["paper"].mean())
        line += (
            [Cell(ours.mean, ours.std), Cell(paper), Cell(ours.mean - paper, signed=True)]
            if ours
            else [Cell(), Cell(), Cell()]
        )
    return line


def _agreement(
    outcome: Outcome,
    cells: pd.DataFrame,
    methods: list[str],
    metrics: Sequence[str],
    places: Sequence[str],
    name: str,
    data: list[str],
) -> Table:
    """How far ours and the paper's agree: a line for each CIL method and split, then over all of them."""
    several = len(places) > 1
    columns = [Column("CIL", label=True), *[Column("OOD", label=True)] * several]
    for m in metrics:
        columns += [
            Column(what, metric_of(m).column)
            for what in ("cells", "mean|Δ|", "max|Δ|", "rank ρ", "same best")
        ]
    lines = []
    for cil in methods:
        for place in places:
            here = cells[(cells["cil"] == cil) & (cells["place"] == place)]
            labels = [words(cil), *[words(" ".join(_place_words(place)))] * several]
            agreements = [agreement(here[here["metric"] == m]) for m in metrics]
            lines.append([*labels, *(cell for a in agreements for cell in _agreement_cells([a]))])
    every = [
        [agreement(part) for _, part in cells[cells["metric"] == m].groupby(["cil", "place"])]
        for m in metrics
    ]
    total = [
        words("all"),
        *[words("")] * several,
        *(cell for part in every for cell in _agreement_cells(part)),
    ]
    counted = cells[cells["difference"].notna()].sort_values("difference", key=abs)
    notes = [
        "Cells: detectors that both have, less those in which the paper contradicts itself. |Δ|: absolute "
        "difference, in percent points.",
        "rank ρ: Spearman's correlation of the detectors' ranks, ours and the paper's (in the last line the "
        "mean of those above it); same best: whether the same detector is best.",
    ]
    if len(counted):
        worst = counted.iloc[-1]
        at = " ".join(
            [
                worst["cil"],
                worst["detector"],
                *_place_words(worst["place"]),
                metric_of(worst["metric"]).column,
            ]
        )
        notes.append(
            f"Largest difference: {at}, {worst['ours']:.2f} against {worst['paper']:.2f} in the paper."
        )
    title = f"{outcome.title}: agreement with the paper"
    return Table(name, title, columns, [Block(lines, foot=[total])], [*notes, *data], outcome.missing())


@dataclass(frozen=True)
class Agreement:
    """Of some cells: how many count, their absolute differences, the ranks' correlation, the same best."""

    cells: int
    mean: float | None
    largest: float | None
    correlation: float | None
    same_best: bool | None


def agreement(cells: pd.DataFrame) -> Agreement:
    """How far ours and the paper's agree in the cells of one CIL method, metric and place."""
    counted = cells[cells["difference"].notna()]
    if counted.empty:
        return Agreement(0, None, None, None, None)
    off = counted["difference"].abs()
    ours, paper = counted["ours"].round(2), counted["paper"]
    if metric_of(str(counted["metric"].iloc[0])).lower_is_better:
        ours, paper = -ours, -paper
    several = len(counted) > 1
    # Spearman's is Pearson's of the ranks. Of two it can only be 1 or −1; without any spread there is none.
    ranks = pd.DataFrame({"ours": ours.rank(), "paper": paper.rank()})
    meaningful = len(counted) > 2 and bool((ranks.nunique() > 1).all())
    correlation = float(ranks["ours"].corr(ranks["paper"])) if meaningful else None
    best = set(counted.index[ours == ours.max()]) & set(counted.index[paper == paper.max()])
    return Agreement(
        len(counted), float(off.mean()), float(off.max()), correlation, bool(best) if several else None
    )


def _agreement_cells(agreements: list[Agreement]) -> list[Cell]:
    """Five cells of one agreement, or of several together."""
    counted = [a for a in agreements if a.cells]
    cells = sum(a.cells for a in counted)
    mean = sum((a.mean or 0.0) * a.cells for a in counted) / cells if cells else None
    largest = max((a.largest for a in counted if a.largest is not None), default=None)
    correlations = [a.correlation for a in counted if a.correlation is not None]
    correlation = sum(correlations) / len(correlations) if correlations else None
    best = [a.same_best for a in counted if a.same_best is not None]
    if len(agreements) > 1:
        told = f"{sum(best)} of {len(best)}" if best else "–"
    else:
        told = ("yes" if best[0] else "no") if best else "–"
    return [Cell(cells, digits=0), Cell(mean), Cell(largest), Cell(correlation), words(told)]


def _contradictions(outcome: Outcome, cells: pd.DataFrame) -> Table | None:
    """The cells in which the paper contradicts itself, with what its near and far figures give."""
    flagged = cells[cells["flagged"]]
    if flagged.empty:
        return None
    order = {name: i for i, name in enumerate(sort_detectors(flagged["detector"]))}
    flagged = flagged.assign(order=flagged["detector"].map(order)).sort_values(
        ["metric", "order"], kind="stable"
    )
    lines = [
        [
            words(row["cil"]),
            words(row["detector"]),
            words(metric_of(row["metric"]).column),
            Cell(row["paper"]),
            Cell(row["recomputed"]),
            Cell(_number(row["ours"]), _number(row["std"])),
        ]
        for row in flagged.to_dict("records")
    ]
    columns = [Column(name, label=True) for name in ("CIL", "detector", "metric")]
    columns += [Column("printed"), Column("from near/far"), Column("ours")]
    near, far = (len(OOD[outcome.benchmark][role]) for role in OOD_ROLES)
    notes = [
        f"The mean over all {near + far} datasets should be ({near} · near + {far} · far) / {near + far}; "
        "these miss it by more than 0.05. They are not counted in the comparison."
    ]
    title = f"{outcome.title}: where the paper contradicts itself"
    return Table(f"contradictions-{outcome.name}", title, columns, [Block(lines)], notes, outcome.missing())


def _number(value: float | None) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


# --- data ------------------------------------------------------------------------------------------


def data_notes(outcome: Outcome) -> list[str]:
    """Which datasets differ from the paper's, by what the runs noted about the images they read."""
    notes = []
    paper = OOD.get(outcome.benchmark, {})
    theirs = {name for names in paper.values() for name in names}
    if lacking := sorted(theirs - set(outcome.datasets)):
        notes.append(f"OOD datasets of the paper that these runs lack: {', '.join(lacking)}.")
    if added := sorted(set(outcome.datasets) - theirs):
        notes.append(f"OOD datasets that the paper does not have: {', '.join(added)}.")
    read = [d for run in outcome.runs for d in run["data"]]
    recorded = {(d["name"], d["split"], d["images"], d["paper"], d["files"]) for d in read}
    if not recorded:
        return [*notes, "Data: these runs did not note which images they read."]
    other = sorted((n, s, i, p) for n, s, i, p, _ in recorded if p is not None and i != p)
    files = sorted({(n, s) for n, s, i, p, f in recorded if f == "differs" and i == p})
    notes += [f"Data: {n} has {i:,} {_split(s)} images, the paper's {p:,}." for n, s, i, p in other]
    if files:
        named = ", ".join(f"{n} ({_split(s)})" for n, s in files)
        notes.append(
            "Data: as many images as the paper's, but from files that are not, byte for byte, those that the "
            f"datasets' makers distribute, which may be a matter of packing alone: {named}."
        )
    if not other and not files:
        notes.append("Data: every dataset has as many images as the paper's.")
    return notes


def _split(split: str) -> str:
    return {"train": "training"}.get(split, split)
