"""Compare our figures with the paper's, cell by cell, and our accuracies with a survey's."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby
from typing import Literal

import pandas as pd

from opencil import published
from opencil.data.roles import ALL, OOD_ROLES
from opencil.errors import BadInput
from opencil.evaluation.metric import metric_of
from opencil.report.averages import dataset_place
from opencil.report.layout import CIL, DETECTOR, Block, Cell, Column, Table, list_note, words
from opencil.report.order import group_families, is_labelled, method, sort_detectors
from opencil.report.results import Outcome, results
from opencil.report.tables import Key, Kind, columns_of
from opencil.study.records import RunRecord
from opencil.study.study import Study

#: The kinds of tables with figures in the paper.
COMPARED: tuple[Kind, ...] = ("main", "distance", "ablation")
_FLAG = "†"
_FLAGGED = (
    f"{_FLAG} The paper contradicts itself here: the mean over all datasets is not that of its own near and "
    "far figures. Such cells are not counted."
)
#: The survey's benchmark, as this project names it, and its splits by steps and classes per step.
_SURVEYED = "cifar100"
_SPLITS: dict[tuple[int, int | str], str] = {(10, 10): "b0-10", (20, 5): "b0-5", (6, "50+10"): "b50-10"}
_CELL = ["cil", "detector", "metric", "place"]
_NONE = [Cell()] * 3


def comparison_tables(
    study: Study, kinds: Sequence[Kind] = ("main",), metrics: tuple[str, ...] = ()
) -> list[Table]:
    """Return ours beside the paper's, then how far they agree, for each benchmark and k of the paper."""
    made: list[Table] = []
    for outcome in results(study, metrics):
        cells, data = compare(outcome), data_notes(outcome)
        compared = [table for kind in kinds for table in _tables_of_kind(outcome, cells, kind, data)]
        if compared and cells["flagged"].any():
            compared.append(_contradictions(outcome, cells[cells["flagged"]]))
        made += compared
    return made


def incomparable(study: Study, source: Literal["paper", "survey"]) -> BadInput:
    """Return the error for a study of which nothing can be compared, not yet or not at all."""
    if source == "paper":
        sizes = published.published_results().sort_values("k").groupby("benchmark")["k"].unique()
        has = "; ".join(f"{name} with k = {', '.join(map(str, k))}" for name, k in sizes.items())
    else:
        splits = ", ".join(f"{steps} of {k}" for steps, k in _SPLITS)
        has = f"{_SURVEYED} in {splits}, of {', '.join(sorted(published.published_survey()['cil'].unique()))}"
    outcomes = results(study) if source == "paper" else _model_results(study)
    ours = "; ".join(f"{outcome.benchmark}, {outcome.steps} steps, k = {outcome.k}" for outcome in outcomes)
    waiting = list_note(". Not finished", (part for of in outcomes for part in of.unfinished()), "; ")
    nothing = f"nothing finished here ({ours}) can be compared with the {source}: it has {has}"
    return BadInput("".join([nothing, *waiting]))


def compare(outcome: Outcome) -> pd.DataFrame:
    """Return every cell of the paper on a benchmark and k, beside ours, in percent.

    ``ours`` is NaN where no run is finished; ``difference`` is NaN where it does not count: in cells flagged
    as contradictory, and where ours is the mean over other OOD datasets than the paper's.
    """
    every = _paper_cells()
    here = (every["benchmark"] == outcome.benchmark) & (every["k"] == outcome.k)
    cells = every.loc[here, [*_CELL, "paper", "recomputed", "flagged"]].reset_index(drop=True)
    ours = [outcome.of(*cell) for cell in cells[_CELL].itertuples(index=False, name=None)]
    values = [(average.value, average.std, average.seeds) for average in ours]
    cells = cells.join(pd.DataFrame(values, columns=["ours", "std", "seeds"], dtype=float))
    counts = ~cells["flagged"] & ~cells["place"].isin(_other_splits(outcome))
    return cells.assign(difference=(cells["ours"] - cells["paper"]).where(counts))


@cache
def _paper_cells() -> pd.DataFrame:
    """Return every cell of the paper's tables, in percent."""
    figures, ablation = published.published_results(), published.published_ablation()
    recomputed = 100 * published.recomputed_means(figures)
    figures = figures.assign(recomputed=recomputed, flagged=published.contradictory(figures))
    places = ablation["ood"].map(dataset_place)
    ablation = ablation.assign(distance=places, recomputed=float("nan"), flagged=False)
    every = pd.concat([figures, ablation]).rename(columns={"distance": "place"})
    return every.assign(paper=published.in_percent(every["value"]))


def _other_splits(outcome: Outcome) -> list[str]:
    """Return the splits in which our averages are over other OOD datasets than the paper's."""
    ours = {split: {n for n, d in outcome.averaged.items() if d == split} for split in OOD_ROLES}
    paper = published.OOD.get(outcome.benchmark, {})
    other = [split for split, names in ours.items() if names != set(paper.get(split, ()))]
    return [*other, ALL] if other else []


def _tables_of_kind(outcome: Outcome, cells: pd.DataFrame, kind: Kind, data: list[str]) -> list[Table]:
    """Return the comparison of one kind of tables, then the table of its agreement."""
    parts = [list(columns.values()) for columns in columns_of(kind, outcome, outcome.cil)]
    parts = [list(chain(*parts))] if kind == "ablation" else parts
    every = pd.MultiIndex.from_frame(cells[["cil", "metric", "place"]])
    shown = cells[every.isin(list(chain(*parts))) & cells["ours"].notna()]
    if shown.empty:
        return []
    strangers = [cil for cil in outcome.cil if cil not in set(cells["cil"])]
    parts = [[key for key in keys if key[0] in set(shown["cil"])] for keys in parts]
    other = [place for place in _other_splits(outcome) if any(key[2] == place for key in parts[0])]
    data = [
        *data,
        *list_note("CIL methods that the paper does not have", strangers),
        *list_note("Ours is over other OOD datasets than the paper's, so it does not count", other),
    ]
    made = []
    for keys in parts:
        metric = keys[0][1]
        name = f"{kind}-{metric}" if kind == "distance" else kind
        about = {"main": "", "distance": f"near and far OOD, {metric_of(metric).column}, "}
        title = f"{about.get(kind, f'{kind}, ')}ours beside the paper's"
        made.append(_side_by_side(outcome, f"compare-{name}", title, cells, keys, data))
    return [*made, _agreement_table(outcome, f"agreement-{kind}", shown, list(chain(*parts)), data)]


def _name_place(place: str) -> str:
    return "" if place == ALL else place.removeprefix(dataset_place(""))


def _heading(cil: str, metric: str, place: str) -> str:
    return " ".join(filter(None, (cil, _name_place(place), metric_of(metric).column)))


def _side_by_side(
    outcome: Outcome, name: str, title: str, cells: pd.DataFrame, keys: list[Key], data: list[str]
) -> Table:
    """Make a table of the detectors that both have, in blocks; an ablation has the paper's order."""
    by_cell = {
        tuple(cell[key] for key in _CELL): [
            Cell(cell["ours"], cell["std"], seeds=int(cell["seeds"])),
            Cell(cell["paper"], flag=_FLAG * cell["flagged"]),
            Cell(cell["difference"], signed=True),
        ]
        for cell in cells.to_dict("records")
    }
    shown = cells[pd.MultiIndex.from_frame(cells[["cil", "metric", "place"]]).isin(keys)]
    theirs = list(dict.fromkeys(shown["detector"]))
    names = [detector for detector in theirs if detector in outcome.detectors]
    heads = [Column(head, _heading(*key)) for key in keys for head in ("ours", "paper", "Δ")]

    def line(detector: str) -> list[Cell]:
        found = [by_cell.get((cil, detector, metric, place), _NONE) for cil, metric, place in keys]
        return [words(detector), *chain(*found)]

    def averages(name: str, detectors: list[str]) -> list[Cell]:
        """Return means over the detectors that count, the same for ours and the paper's."""
        counted = shown[shown["detector"].isin(detectors) & shown["difference"].notna()]
        by_key, cells = dict(list(counted.groupby(["cil", "metric", "place"]))), [words(name)]
        for key in keys:
            here = by_key.get(key, counted[:0])
            ours, paper = outcome.mean_over(here["detector"], *key), float(here["paper"].mean())
            found = [] if ours.value is None else [ours, Cell(paper), Cell(ours.value - paper, signed=True)]
            cells += found or _NONE
        return cells

    blocks = [Block([line(detector) for detector in names])]
    if not any(map(is_labelled, theirs)):
        families = group_families(names)
        blocks = [Block([line(d) for d in of], name, [averages("Average", of)]) for name, of in families]
        if len(blocks) > 1:
            blocks.append(Block([averages("Average (All)", names)]))
    accuracy = [words("CIL accuracy")]
    for cil, of_cil in groupby(keys, key=lambda key: key[0]):  # in its first columns
        accuracy += by_cell.get((cil, "", "accuracy", ""), _NONE)
        accuracy += [words("")] * 3 * (len(list(of_cil)) - 1)
    strangers = [detector for detector in outcome.detectors if detector not in theirs]
    metrics = dict.fromkeys(["accuracy", *(metric for _, metric, _ in keys)])
    notes = [
        *outcome.basis(),
        "Δ: ours minus the paper's, in percent points. Averages: over detectors that count.",
        *([_FLAGGED] if shown["flagged"].any() else []),
        *list_note("Not in these runs", [detector for detector in theirs if detector not in names]),
        *list_note("Not in this table of the paper's", strangers),
        *data,
        *(metric_of(metric).sentence for metric in metrics),
    ]
    return outcome.complete(Table(name, title, [DETECTOR, *heads], [Block([accuracy]), *blocks], notes))


def _agreement_table(
    outcome: Outcome, name: str, cells: pd.DataFrame, keys: list[Key], data: list[str]
) -> Table:
    """Make a table of how far ours and the paper's agree: a line per CIL method and split, then a total."""
    metrics = list(dict.fromkeys(metric for _, metric, _ in keys))
    pairs = list(dict.fromkeys((cil, place) for cil, _, place in keys))
    several = len({place for _, place in pairs}) > 1
    columns = [CIL, Column("OOD", label=True)] if several else [CIL]
    heads = ("cells", "mean|Δ|", "max|Δ|", "rank ρ", "same best")
    columns += [Column(head, metric_of(m).column) for m in metrics for head in heads]
    none = agreement(cells[:0])
    every = {key: agreement(part) for key, part in cells.groupby(["cil", "place", "metric"])}

    def line(names: list[str], pairs: list[tuple[str, str]]) -> list[Cell]:
        found = [[every.get((*pair, metric), none) for pair in pairs] for metric in metrics]
        return [*map(words, names[: 1 + several]), *chain(*map(_agreement_cells, found))]

    lines = [line([cil, _name_place(place)], [(cil, place)]) for cil, place in pairs]
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
    blocks = [Block(lines, foot=[line(["all", ""], pairs)])]
    return outcome.complete(Table(name, "agreement with the paper", columns, blocks, [*notes, *data]))


def agreement(cells: pd.DataFrame) -> dict[str, float]:
    """Measure how far ours and the paper's agree on one CIL method, metric and place; NaN for few cells."""
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
        names = map(words, (row["cil"], row["detector"], metric_of(row["metric"]).column))
        lines.append([*names, Cell(row["paper"]), Cell(row["recomputed"]), Cell(row["ours"], row["std"])])
    columns = [CIL, DETECTOR, Column("metric", label=True)]
    columns += map(Column, ("printed", "from near/far", "ours"))
    near, far = (len(published.OOD[outcome.benchmark][role]) for role in OOD_ROLES)
    notes = [
        f"The mean over all {near + far} datasets should be ({near} · near + {far} · far) / {near + far}; "
        "these miss it by more than 0.05. They are not counted in the comparison."
    ]
    title = "where the paper contradicts itself"
    return outcome.complete(Table("contradictions", title, columns, [Block(lines)], notes))


def data_notes(outcome: Outcome) -> list[str]:
    """Return notes on the datasets that differ from the paper's, by the images that the runs recorded."""
    ours = set(outcome.datasets)
    theirs = {name for names in published.OOD.get(outcome.benchmark, {}).values() for name in names}
    notes = [
        *list_note("OOD datasets of the paper that these runs lack", sorted(theirs - ours)),
        *list_note("OOD datasets that the paper does not have", sorted(ours - theirs)),
    ]
    read = [d for run in outcome.runs for d in run["data"]]
    split = {"train": "training"}  # as a word
    recorded = {
        (d["name"], split.get(d["split"], d["split"]), d["images"], d["paper"], d["files"]) for d in read
    }
    if not recorded:
        return [*notes, "Data: these runs did not note which images they read."]
    other = sorted((n, s, i, p) for n, s, i, p, _ in recorded if p is not None and i != p)
    files = sorted({f"{n} ({s})" for n, s, i, p, f in recorded if f == "differs" and i == p})
    notes += [f"Data: {n} has {i:,} {s} images, the paper's {p:,}." for n, s, i, p in other]
    notes += list_note(
        "Data: as many images as the paper's, but from files that are not, byte for byte, those that the "
        "datasets' makers distribute, which may be a matter of packing alone",
        files,
    )
    return notes if other or files else [*notes, "Data: every dataset has as many images as the paper's."]


def survey_tables(study: Study) -> list[Table]:
    """Return the accuracies of finished runs beside the survey's, for each k that the survey has."""
    made, figures = [], published.published_survey()
    rows = study.rows[(study.rows["detector"] == "") & (study.rows["task"] == 0)]
    for outcome in _model_results(study):
        split = _SPLITS.get((outcome.steps, outcome.k)) if outcome.benchmark == _SURVEYED else None
        lines = {}
        for cil in outcome.cil:
            theirs = figures[(figures["split"] == split) & (figures["cil"] == method(cil))]
            metric = published.SURVEY_ACCURACY.get(method(cil), "accuracy")
            here = outcome.select_finished(rows[(rows["cil"] == cil) & (rows["metric"] == metric)])
            ours = 100 * here.pivot(index="step", columns="seed", values="value")
            if len(ours) and len(theirs):
                lines[cil] = _survey_line(cil, ours, theirs)
        if lines:
            made.append(_survey_table(outcome, lines))
    return made


def _model_results(study: Study) -> list[Outcome]:
    """Return the results of the runs' models, whether or not their detectors are finished."""
    records: list[RunRecord] = [{**run, "detectors": {}} for run in study.runs]
    return results(replace(study, rows=study.rows[study.rows["detector"] == ""], runs=records))


def _survey_line(cil: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> list[Cell]:
    """Return average and last accuracy, ours (steps × seeds), theirs and Δ, then Δ after each step."""
    printed = theirs.set_index(["metric", "step"])["value"].to_dict()
    figures = theirs.loc[theirs["metric"] == "accuracy", "value"].tolist()
    if figures:  # the survey prints no average of its larger first step
        printed.setdefault(("average_accuracy", 0), sum(figures) / len(figures))
        printed.setdefault(("last_accuracy", 0), figures[-1])
    line = [words(f"{cil} (nearest mean)" if method(cil) in published.SURVEY_ACCURACY else cil)]
    for metric, values in (("average_accuracy", ours.mean()), ("last_accuracy", ours.iloc[-1])):
        mean, survey = values.mean(), printed.get((metric, 0), math.nan)
        line += [Cell(mean, values.std()), Cell(survey), Cell(mean - survey, signed=True)]
    for step, mean in ours.mean(axis=1).items():
        line.append(Cell(mean - printed.get(("accuracy", step), math.nan), signed=True))
    return line


def _survey_table(outcome: Outcome, lines: dict[str, list[Cell]]) -> Table:
    groups = ("average accuracy", "last accuracy")
    columns = [CIL, *(Column(head, group) for group in groups for head in ("ours", "survey", "Δ"))]
    columns += [Column(str(step), "Δ after step") for step in range(1, outcome.steps + 1)]
    notes = [
        "Percent, mean over seeds. Δ: ours minus the survey's, in percent points. "
        f"Survey: {published.SURVEY}.",
        f"The survey's accuracy of {', '.join(published.SURVEY_ACCURACY)} is that of nearest means of "
        "exemplars; so is ours here.",
        "Its training images are made brighter or darker too, by up to 63/255 (our transform.brightness).",
        *list_note("Not compared", [cil for cil in outcome.cil if cil not in lines]),
    ]
    title = "accuracy, ours beside the survey's"
    return outcome.complete(Table("survey", title, columns, [Block(list(lines.values()))], notes))
