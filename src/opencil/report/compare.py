"""Compare our figures with the paper's, cell by cell, and measure how far the two agree."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import chain, groupby

import pandas as pd

from opencil.data.roles import ALL, OOD_ROLES
from opencil.errors import BadInput
from opencil.evaluation.metric import metric_of, table_metrics
from opencil.published import (
    OOD,
    contradictory,
    in_percent,
    published_ablation,
    published_results,
    recomputed_means,
)
from opencil.report.averages import dataset_place
from opencil.report.layout import Block, Cell, Column, Table, list_note, words
from opencil.report.order import group_families, is_labelled, sort_detectors
from opencil.report.results import Outcome, results
from opencil.report.tables import Key, Kind, distance_metrics
from opencil.study.rows import settings_of
from opencil.study.study import Study

#: The kinds of tables with figures in the paper.
COMPARED: tuple[Kind, ...] = ("main", "distance", "ablation")
_FLAG = "†"
_FLAGGED = (
    f"{_FLAG} The paper contradicts itself here: the mean over all datasets is not that of its own near and "
    "far figures. Such cells are not counted."
)
_CELL = ["cil", "detector", "metric", "place"]
_NONE = [Cell()] * 3


def comparison_tables(study: Study, kinds: Sequence[Kind] = ("main",)) -> list[Table]:
    """Return ours beside the paper's, then how far they agree, for each benchmark and k of the paper."""
    made: list[Table] = []
    for outcome in results(study):
        cells, data = compare(outcome), data_notes(outcome)
        compared = [table for kind in kinds for table in _tables_of_kind(outcome, cells, kind, data)]
        if compared and cells["flagged"].any():
            compared.append(_contradictions(outcome, cells[cells["flagged"]]))
        made += compared
    return made


def incomparable(study: Study) -> BadInput:
    """Return the error for a study of which nothing can be compared, not yet or not at all."""
    sizes = published_results().sort_values("k").groupby("benchmark")["k"].unique()
    has = "; ".join(f"{name} with k = {', '.join(map(str, k))}" for name, k in sizes.items())
    ours = ", ".join(f"{benchmark} with k = {k}" for benchmark, k in settings_of(study.rows))
    return refuse_comparison(results(study), ours, f"the paper's figures: it has {has}")


def refuse_comparison(outcomes: Sequence[Outcome], ours: str, source: str) -> BadInput:
    """Return the error for results that cannot be compared with a source."""
    waiting = "; ".join(part for outcome in outcomes for part in outcome.unfinished())
    return BadInput(
        f"nothing that is finished here, {ours}, can be compared with {source}"
        + f". Not finished: {waiting}" * bool(waiting)
    )


def compare(outcome: Outcome) -> pd.DataFrame:
    """Return every cell of the paper on a benchmark and k, in percent.

    Columns: cil, detector, metric, place, paper, recomputed (the mean of the paper's near and far figures),
    flagged, ours, std, difference. ``ours`` is NaN where no run is finished. ``difference`` is NaN where it
    does not count: in flagged cells, and where ours is the mean over other OOD datasets than the paper's.
    """
    every = _paper_cells()
    here = (every["benchmark"] == outcome.benchmark) & (every["k"] == outcome.k)
    cells = every.loc[here, [*_CELL, "paper", "recomputed", "flagged"]].reset_index(drop=True)
    ours = [outcome.of(*cell) for cell in cells[_CELL].itertuples(index=False, name=None)]
    cells["ours"] = pd.Series([average.value for average in ours], dtype=float)
    cells["std"] = pd.Series([average.std for average in ours], dtype=float)
    counts = ~cells["flagged"] & ~cells["place"].isin(_other_splits(outcome))
    return cells.assign(difference=(cells["ours"] - cells["paper"]).where(counts))


@cache
def _paper_cells() -> pd.DataFrame:
    """Return every cell of the paper's tables, in percent."""
    figures, ablation = published_results(), published_ablation()
    figures = figures.assign(recomputed=100 * recomputed_means(figures), flagged=contradictory(figures))
    places = ablation["ood"].map(dataset_place)
    ablation = ablation.assign(distance=places, recomputed=float("nan"), flagged=False)
    every = pd.concat([figures, ablation]).rename(columns={"distance": "place"})
    return every.assign(paper=in_percent(every["value"]))


def _other_splits(outcome: Outcome) -> list[str]:
    """Return the splits in which our averages are over other OOD datasets than the paper's."""
    ours = {split: {n for n, d in outcome.averaged.items() if d == split} for split in OOD_ROLES}
    paper = OOD.get(outcome.benchmark, {})
    other = [split for split, names in ours.items() if names != set(paper.get(split, ()))]
    return [*other, ALL] if other else []


def _tables_of_kind(outcome: Outcome, cells: pd.DataFrame, kind: Kind, data: list[str]) -> list[Table]:
    """Return the comparison of one kind of tables, then the table of its agreement."""
    split = kind == "distance"  # a table for each metric, as in the paper
    metrics = distance_metrics() if split else table_metrics("all")
    places: Sequence[str] = OOD_ROLES if split else [ALL]
    if kind == "ablation":
        places = [dataset_place(name) for name in outcome.datasets]
    shown = cells[cells["place"].isin(places) & cells["metric"].isin(metrics) & cells["ours"].notna()]
    if shown.empty:
        return []
    methods = [cil for cil in outcome.cil if cil in set(shown["cil"])]
    strangers = [cil for cil in outcome.cil if cil not in set(cells["cil"])]
    other = [place for place in _other_splits(outcome) if place in places]
    data = [
        *data,
        *list_note("CIL methods that the paper does not have", strangers),
        *list_note("Ours is over other OOD datasets than the paper's, so it does not count", other),
    ]
    made = []
    for part in [[metric] for metric in metrics] if split else [metrics]:
        groups = [(cil, m, place) for cil in methods for place in places for m in part]
        name = f"{kind}-{part[0]}" if split else kind
        about = {"main": "", "distance": f"near and far OOD, {metric_of(part[0]).column}, "}
        title = f"{outcome.title}: {about.get(kind, f'{kind}, ')}ours beside the paper's"
        made.append(_side_by_side(outcome, f"compare-{name}-{outcome.name}", title, cells, groups, data))
    name = f"agreement-{kind}-{outcome.name}"
    return [*made, _agreement_table(outcome, name, shown, methods, metrics, places, data)]


def _name_place(place: str) -> str:
    return "" if place == ALL else place.removeprefix(dataset_place(""))


def _heading(cil: str, metric: str, place: str) -> str:
    return " ".join(filter(None, (cil, _name_place(place), metric_of(metric).column)))


def _side_by_side(
    outcome: Outcome, name: str, title: str, cells: pd.DataFrame, groups: list[Key], data: list[str]
) -> Table:
    """Make a table of the detectors that both have, in blocks; an ablation has the paper's order."""
    by_cell = {
        tuple(cell[key] for key in _CELL): [
            Cell(cell["ours"], cell["std"]),
            Cell(cell["paper"], flag=_FLAG * cell["flagged"]),
            Cell(cell["difference"], signed=True),
        ]
        for cell in cells.to_dict("records")
    }
    shown = cells[pd.MultiIndex.from_frame(cells[["cil", "metric", "place"]]).isin(groups)]
    theirs = list(dict.fromkeys(shown["detector"]))
    names = [detector for detector in theirs if detector in outcome.detectors]
    columns = [Column("detector", label=True)]
    columns += [Column(head, _heading(*group)) for group in groups for head in ("ours", "paper", "Δ")]

    def line(detector: str) -> list[Cell]:
        found = [by_cell.get((cil, detector, metric, place), _NONE) for cil, metric, place in groups]
        return [words(detector), *chain.from_iterable(found)]

    if any(map(is_labelled, theirs)):
        blocks = [Block([line(detector) for detector in names])]
    else:
        blocks = [
            Block([line(d) for d in members], family, [_averages("Average", outcome, shown, members, groups)])
            for family, members in group_families(names)
        ]
        if len(blocks) > 1:
            blocks.append(Block([_averages("Average (All)", outcome, shown, names, groups)]))
    accuracy = [words("CIL accuracy")]
    for cil, of_cil in groupby(groups, key=lambda group: group[0]):  # in its first group
        accuracy += by_cell.get((cil, "", "accuracy", ""), _NONE)
        accuracy += [words("")] * 3 * (len(list(of_cil)) - 1)
    notes = outcome.basis()
    notes.append("Δ: ours minus the paper's, in percent points. Averages: over detectors that count.")
    notes += [_FLAGGED] * bool(shown["flagged"].any())
    notes += list_note("Not in these runs", [detector for detector in theirs if detector not in names])
    strangers = [detector for detector in outcome.detectors if detector not in theirs]
    notes += list_note("Not in this table of the paper's", strangers)
    metrics = dict.fromkeys(["accuracy", *(metric for _, metric, _ in groups)])
    notes += [*data, *(metric_of(metric).sentence for metric in metrics)]
    return Table(name, title, columns, [Block([accuracy]), *blocks], notes, outcome.missing())


def _averages(
    name: str, outcome: Outcome, cells: pd.DataFrame, detectors: list[str], groups: list[Key]
) -> list[Cell]:
    """Return a line of means over the detectors that count, the same for ours and the paper's."""
    counted = cells[cells["detector"].isin(detectors) & cells["difference"].notna()]
    by_group = dict(list(counted.groupby(["cil", "metric", "place"])))
    line = [words(name)]
    for key in groups:
        here = by_group.get(key, counted[:0])
        ours, paper = outcome.mean_over(here["detector"], *key), float(here["paper"].mean())
        three = [] if ours.value is None else [ours, Cell(paper), Cell(ours.value - paper, signed=True)]
        line += three or _NONE
    return line


def _agreement_table(
    outcome: Outcome,
    name: str,
    cells: pd.DataFrame,
    methods: list[str],
    metrics: Sequence[str],
    places: Sequence[str],
    data: list[str],
) -> Table:
    """Make a table of how far ours and the paper's agree: a line per CIL method and split, then a total."""
    several = len(places) > 1
    columns = [Column("CIL", label=True), *[Column("OOD", label=True)] * several]
    heads = ("cells", "mean|Δ|", "max|Δ|", "rank ρ", "same best")
    columns += [Column(head, metric_of(m).column) for m in metrics for head in heads]
    none = agreement(cells[:0])
    every = {key: agreement(part) for key, part in cells.groupby(["cil", "place", "metric"])}
    pairs = [(cil, place) for cil in methods for place in places]

    def line(names: list[str], pairs: list[tuple[str, str]]) -> list[Cell]:
        found = [[every.get((*pair, metric), none) for pair in pairs] for metric in metrics]
        return [*map(words, names[: 1 + several]), *chain.from_iterable(map(_agreement_cells, found))]

    lines = [line([cil, _name_place(place)], [(cil, place)]) for cil, place in pairs]
    total = line(["all", ""], pairs)
    notes = [
        "Cells: detectors that both have, less those in which the paper contradicts itself. |Δ|: absolute "
        "difference, in percent points.",
        "rank ρ: Spearman's correlation of the detectors' ranks, ours and the paper's (in the last line the "
        "mean of those above it); same best: whether the same detector is best.",
    ]
    counted = cells[cells["difference"].notna()].sort_values("difference", key=abs)
    for worst in counted[-1:].to_dict("records"):
        where = _heading(f"{worst['cil']} {worst['detector']}", worst["metric"], worst["place"])
        figures = f"{worst['ours']:.2f} against {worst['paper']:.2f} in the paper"
        notes.append(f"Largest difference: {where}, {figures}.")
    title = f"{outcome.title}: agreement with the paper"
    return Table(name, title, columns, [Block(lines, foot=[total])], [*notes, *data], outcome.missing())


def agreement(cells: pd.DataFrame) -> dict[str, float]:
    """Measure how far ours and the paper's agree in the cells of one CIL method, metric and place.

    Return the number of counted cells, mean and maximum of their absolute differences, Spearman's
    correlation, and whether the same detector is best; NaN where there are too few cells for it.
    """
    counted = cells[cells["difference"].notna()]
    size, off = len(counted), counted["difference"].abs()
    ours, paper = counted["ours"].round(2), counted["paper"]
    if size and metric_of(str(counted["metric"].iloc[0])).lower_is_better:
        ours, paper = -ours, -paper
    # Spearman's is Pearson's of the ranks. Of two it can only be 1 or −1; without any spread there is none.
    ranks = pd.DataFrame({"ours": ours.rank(), "paper": paper.rank()})
    meaningful = size > 2 and bool((ranks.nunique() > 1).all())
    correlation = ranks["ours"].corr(ranks["paper"]) if meaningful else math.nan
    best = bool(((ours == ours.max()) & (paper == paper.max())).any()) if size > 1 else math.nan
    return {"cells": size, "mean": off.mean(), "max": off.max(), "rank": correlation, "best": best}


def _agreement_cells(agreements: list[dict[str, float]]) -> list[Cell]:
    """Return five cells of one agreement, or of several together."""
    found = pd.DataFrame(agreements)
    size, best = found["cells"].sum(), found["best"].dropna()
    mean = (found["mean"] * found["cells"]).sum() / size if size else math.nan
    numbers = map(Cell, (mean, found["max"].max(), found["rank"].mean()))
    same = "yes" if best.any() else "no"
    if len(found) > 1:
        same = f"{int(best.sum())} of {len(best)}"
    return [Cell(int(size), digits=0), *numbers, words(same if len(best) else "–")]


def _contradictions(outcome: Outcome, flagged: pd.DataFrame) -> Table:
    """Make a table of the cells in which the paper contradicts itself, with the mean of near and far."""
    detectors = pd.Categorical(flagged["detector"], sort_detectors(flagged["detector"]))
    flagged = flagged.assign(detector=detectors).sort_values(["metric", "detector"], kind="stable")
    lines = []
    for row in flagged.to_dict("records"):
        named = map(words, (row["cil"], row["detector"], metric_of(row["metric"]).column))
        lines.append([*named, Cell(row["paper"]), Cell(row["recomputed"]), Cell(row["ours"], row["std"])])
    columns = [Column(name, label=True) for name in ("CIL", "detector", "metric")]
    columns += [Column("printed"), Column("from near/far"), Column("ours")]
    near, far = (len(OOD[outcome.benchmark][role]) for role in OOD_ROLES)
    notes = [
        f"The mean over all {near + far} datasets should be ({near} · near + {far} · far) / {near + far}; "
        "these miss it by more than 0.05. They are not counted in the comparison."
    ]
    title = f"{outcome.title}: where the paper contradicts itself"
    return Table(f"contradictions-{outcome.name}", title, columns, [Block(lines)], notes, outcome.missing())


def data_notes(outcome: Outcome) -> list[str]:
    """Return notes on the datasets that differ from the paper's, by the images that the runs recorded."""
    theirs = {name for names in OOD.get(outcome.benchmark, {}).values() for name in names}
    notes = list_note(
        "OOD datasets of the paper that these runs lack", sorted(theirs - set(outcome.datasets))
    )
    notes += list_note("OOD datasets that the paper does not have", sorted(set(outcome.datasets) - theirs))
    read = [d for run in outcome.runs for d in run["data"]]
    recorded = {(d["name"], d["split"], d["images"], d["paper"], d["files"]) for d in read}
    if not recorded:
        return [*notes, "Data: these runs did not note which images they read."]
    other = sorted((n, s, i, p) for n, s, i, p, _ in recorded if p is not None and i != p)
    files = sorted({(n, s) for n, s, i, p, f in recorded if f == "differs" and i == p})
    notes += [f"Data: {n} has {i:,} {_name_split(s)} images, the paper's {p:,}." for n, s, i, p in other]
    notes += list_note(
        "Data: as many images as the paper's, but from files that are not, byte for byte, those that the "
        "datasets' makers distribute, which may be a matter of packing alone",
        [f"{n} ({_name_split(s)})" for n, s in files],
    )
    if not other and not files:
        notes.append("Data: every dataset has as many images as the paper's.")
    return notes


def _name_split(split: str) -> str:
    return {"train": "training"}.get(split, split)
