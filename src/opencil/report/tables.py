"""The paper's tables, of any set of runs: main, near and far, per dataset, ablation; and a plain summary."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import compress
from typing import Any, Literal

import pandas as pd

from opencil.data.roles import ALL, OOD_ROLES
from opencil.evaluation.metric import metric_of
from opencil.evaluation.metric import metrics as all_metrics
from opencil.report.averages import continual, over_seeds
from opencil.report.layout import MARKS, MARKS_IN_BLOCK, Block, Cell, Column, Table, words
from opencil.report.order import FAMILIES, families, labelled, method, sort_cil, sort_detectors, sort_metrics
from opencil.report.results import (
    FLIPPED,
    PAPER,
    Average,
    Outcome,
    count,
    of_dataset,
    partial_datasets,
    results,
)
from opencil.study.records import RunRecord
from opencil.study.study import Study
from opencil.validation import flat

Kind = Literal["summary", "main", "distance", "dataset", "ablation"]
KINDS: tuple[Kind, ...] = ("summary", "main", "distance", "dataset", "ablation")

_SPLITS = (*OOD_ROLES, ALL)
_MAIN = ("auc", "fpr")
#: Fine-tuning detectors score by Energy unless told otherwise: without training, that is what they would be.
UNTUNED = "energy"
_CONTINUAL = (
    "Percent. Average: mean over steps of the accuracy on all classes seen. Forgetting: best earlier "
    "accuracy on a task minus the last, mean over old tasks. Backward transfer: last minus first."
)
_KEPT = (
    "MB: millions of bytes that are kept after the last step, of the model's tensors and of the exemplars' "
    "pixels, or of all images that are seen again where none are chosen; a dash where a run did not note "
    "them."
)
_UNKNOWN = (None, None)
_LABELLED = (
    "A name with @ is its method under other values; it counts neither in averages of detectors nor among "
    "the best."
)


def tables(kind: Kind, study: Study, extra: bool = False) -> list[Table]:
    """All tables of a kind, one for each benchmark and k (and CIL method, where that is a table each).

    There is none before a detector has been evaluated; the summary then has accuracy alone.

    ``extra`` adds the flipped conventions of FPR and AP to the summary.
    """
    if kind == "summary":
        return summaries(study, extra)
    makers: dict[Kind, Callable[[Outcome], list[Table]]] = {
        "main": main_tables,
        "distance": distance_tables,
        "dataset": dataset_tables,
        "ablation": ablation_tables,
    }
    evaluated = [outcome for outcome in results(study) if outcome.datasets]
    return [table for outcome in evaluated for table in makers[kind](outcome)]


# --- the paper's -----------------------------------------------------------------------------------

#: The key of a column: CIL method, metric, place.
Key = tuple[str, str, str]


def main_tables(outcome: Outcome) -> list[Table]:
    """AUC and FPR over all datasets, per CIL method."""
    columns = {Column(metric_of(m).column, cil): (cil, m, "all") for cil in outcome.cil for m in _MAIN}
    return [_by_family(outcome, f"main-{outcome.name}", f"{outcome.title}: main results", columns)]


def distance_tables(outcome: Outcome) -> list[Table]:
    """Near and far datasets apart, per CIL method: a table each for AUC, AP and FPR."""
    made = []
    for metric in ("auc", "ap", "fpr"):
        columns: dict[Column, Key] = {
            Column(role, cil): (cil, metric, role) for cil in outcome.cil for role in OOD_ROLES
        }
        title = f"{outcome.title}: near and far OOD, {metric_of(metric).column}"
        made.append(_by_family(outcome, f"distance-{metric}-{outcome.name}", title, columns))
    return made


def dataset_tables(outcome: Outcome) -> list[Table]:
    """AUC and FPR on each OOD dataset: a table for each CIL method."""
    made = []
    for cil in outcome.cil:
        title = f"{outcome.title}, {cil}: OOD detection per dataset"
        made.append(_by_family(outcome, f"dataset-{cil}-{outcome.name}", title, _per_dataset(outcome, cil)))
    return made


def ablation_tables(outcome: Outcome) -> list[Table]:
    """AUC and FPR on each OOD dataset of one detector under several values: those with labels."""
    made = []
    for own in dict.fromkeys(method(name) for name in outcome.detectors if labelled(name)):
        for cil in outcome.cil:
            columns = _per_dataset(outcome, cil)
            keys = list(columns.values())
            every = ablation_lines(outcome, own)
            names = [n for n in every if any((cil, n, m, p) in outcome.averages for _, m, p in keys)]
            if not any(map(labelled, names)):
                continue
            lines = _ranked(
                [_line(outcome, name, columns) for name in names], [m for _, m, _ in keys], variants=True
            )
            values = _differing_values(names, own, outcome.runs)
            notes = [*outcome.basis(), *values, MARKS, *(metric_of(m).sentence for m in _MAIN)]
            title = f"{outcome.title}, {cil}: ablation of {own}"
            made.append(
                Table(
                    f"ablation-{own}-{cil}-{outcome.name}",
                    title,
                    _columns(columns),
                    [Block(lines)],
                    notes,
                    outcome.missing(of=[cil]),
                )
            )
    return made


def ablation_lines(outcome: Outcome, own: str) -> list[str]:
    """The lines of a method's ablation: what it is without its training, its variants, then the method."""
    tuned = own in dict(families([own])).get(FAMILIES[1], [])
    variants = sorted(name for name in outcome.detectors if labelled(name) and method(name) == own)
    return [name for name in [*[UNTUNED] * tuned, *variants, own] if name in outcome.detectors]


def _differing_values(names: list[str], own: str, runs: list[RunRecord]) -> list[str]:
    """What a method's variants differ in, as far as runs recorded it."""
    variants: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, values in run["config"].get("detector", {}).items():
            if name in names and method(name) == own:
                variants[name] = flat(values)
    keys = sorted({key for values in variants.values() for key in values})
    differing = [key for key in keys if len({repr(v.get(key)) for v in variants.values()}) > 1]
    return [
        f"{name}: {', '.join(f'{key} = {variants[name].get(key)}' for key in differing)}."
        for name in names
        if name in variants and differing
    ]


def _per_dataset(outcome: Outcome, cil: str) -> dict[Column, Key]:
    return {
        Column(metric_of(m).column, f"{distance} {name}"): (cil, m, of_dataset(name))
        for name, distance in outcome.datasets.items()
        for m in _MAIN
    }


def _by_family(outcome: Outcome, name: str, title: str, columns: dict[Column, Key]) -> Table:
    """A table like the paper's: accuracy on top, a block of detectors per family, averages below each."""
    keys = list(columns.values())
    blocks, plain = [], []
    for family, names in families(outcome.detectors):
        lines = [_line(outcome, detector, columns) for detector in names]
        own = [detector for detector in names if not labelled(detector)]
        plain += own
        blocks.append(Block(lines, family, [_average("Average", outcome, own, keys)] if own else []))
    ranked = iter(_ranked([line for block in blocks for line in block.lines], [m for _, m, _ in keys]))
    blocks = [replace(block, lines=[next(ranked) for _ in block.lines]) for block in blocks]
    kept = _kept_lines(outcome, columns)
    top = [Block([_accuracy_line(outcome, columns), *kept])]
    bottom = [Block([_average("Average (All)", outcome, plain, keys)])] if len(blocks) > 1 else []
    notes = [*outcome.basis(), MARKS, *[_LABELLED] * any(map(labelled, outcome.detectors))]
    # All columns are of one method: its accuracy has no place on top.
    alone = any(column.group != cil for column, (cil, _, _) in columns.items())
    notes += [_KEPT] * (bool(kept) and not alone)
    if alone:
        top = []
        notes.append(f"Average accuracy of {keys[0][0]}: {_cell(outcome.accuracy(keys[0][0])).text}.")
    notes += [
        metric_of(metric).sentence for metric in ["accuracy", *dict.fromkeys(metric for _, metric, _ in keys)]
    ]
    missing = outcome.missing(of=[keys[0][0]] if alone else None)
    of = keys[0][0] if alone else ""
    return Table(name, title, _columns(columns), [*top, *blocks, *bottom], notes, missing, cil=of)


def _columns(columns: dict[Column, Key]) -> list[Column]:
    return [Column("detector", label=True), *columns]


def _line(outcome: Outcome, detector: str, columns: dict[Column, Key]) -> list[Cell]:
    return [words(detector), *(_cell(outcome.of(cil, detector, m, p)) for cil, m, p in columns.values())]


def _average(name: str, outcome: Outcome, detectors: list[str], keys: list[Key]) -> list[Cell]:
    return [words(name), *(_cell(outcome.mean_over(detectors, *key)) for key in keys)]


def _accuracy_line(outcome: Outcome, columns: dict[Column, Key]) -> list[Cell]:
    """The accuracy of each CIL method."""
    return _over_groups("CIL accuracy", columns, lambda cil: _cell(outcome.accuracy(cil)))


def _kept_lines(outcome: Outcome, columns: dict[Column, Key]) -> list[list[Cell]]:
    """What each CIL method keeps after the last step, where any run noted that."""
    if not outcome.kept:
        return []
    return [
        _over_groups("model MB", columns, lambda cil: Cell(outcome.kept.get(cil, _UNKNOWN)[0])),
        _over_groups("memory MB", columns, lambda cil: Cell(outcome.kept.get(cil, _UNKNOWN)[1])),
    ]


def _over_groups(name: str, columns: dict[Column, Key], of: Callable[[str], Cell]) -> list[Cell]:
    """A line of what each CIL method has, over the columns of its group."""
    cells, names = [words(name)], [cil for cil, _, _ in columns.values()]
    for i, cil in enumerate(names):
        first = i == 0 or names[i - 1] != cil
        cells.append(replace(of(cil), span=names.count(cil)) if first else words(""))
    return cells


def _cell(average: Average | None) -> Cell:
    return Cell(average.mean, average.std) if average else Cell()


def _ranked(
    lines: list[list[Cell]], metrics: list[str], variants: bool = False, name: int = 0
) -> list[list[Cell]]:
    """Lines in which the three best values of each column are marked, compared as they are shown.

    The last columns are of ``metrics``, and that at ``name`` says which detector a line is of. Names with a
    label compete only where ``variants`` are what is compared.
    """
    ranked = [list(line) for line in lines]
    competing = [line for line in ranked if variants or not labelled(line[name].text)]
    for i, metric in enumerate(metrics, start=-len(metrics)):
        shown = {round(line[i].value or 0.0, 2) for line in competing if line[i].value is not None}
        best = sorted(shown, reverse=not metric_of(metric).lower_is_better)[:3]
        for line in competing:
            value = line[i].value
            if value is not None and round(value, 2) in best:
                line[i] = replace(line[i], rank=best.index(round(value, 2)) + 1)
    return ranked


# --- summary ---------------------------------------------------------------------------------------


def summaries(study: Study, extra: bool = False) -> list[Table]:
    """For each benchmark and k: the CIL models themselves, then the detectors on them, finished or not.

    ``extra`` adds the flipped conventions of FPR and AP.
    """
    rows = study.rows
    metrics = [*PAPER, *(FLIPPED if extra else ()), *_asked_for(rows)]
    models = dict(list(continual(rows).groupby(["benchmark", "k"])))
    shifted = [m.name for m in all_metrics().values() if m.reads_shifted and not m.of_model]
    shown = rows[rows["metric"].isin(["accuracy", *metrics, *shifted])]  # some others begin at step 2
    averages = dict(list(over_seeds(shown).groupby(["benchmark", "k"])))
    made = []
    for outcome in results(study, metrics=["auc"]):
        key = (outcome.benchmark, outcome.k)
        missing = outcome.missing(averaged=True)
        if key in models:
            title = f"{outcome.title}: accuracy"
            accuracy = _models(f"accuracy-{outcome.name}", title, models[key], outcome)
            made.append(replace(accuracy, missing=missing))
        if outcome.datasets:
            notes = [
                *outcome.mixture(),
                *_uneven(rows[(rows["benchmark"] == key[0]) & (rows["k"] == key[1])]),
            ]
            title = f"{outcome.title}: OOD detection"
            summary = _summary(f"summary-{outcome.name}", title, averages[key], metrics, notes)
            made.append(replace(summary, missing=missing))
            here = averages[key]["metric"]
            if of_shift := [name for name in shifted if (here == name).any()]:
                title = f"{outcome.title}: OOD detection under covariate shift"
                summary = _summary(f"shifted-{outcome.name}", title, averages[key], of_shift, notes)
                made.append(replace(summary, missing=missing))
    return made


def _asked_for(rows: pd.DataFrame) -> list[str]:
    """The metrics of detectors that somebody asked for: those that are not measured by default."""
    present = set(rows.loc[(rows["detector"] != "") & (rows["task"] == 0), "metric"].unique())
    return [name for name in sort_metrics(present) if not metric_of(name).standard]


def _uneven(rows: pd.DataFrame) -> list[str]:
    """A note on OOD datasets that some runs have and others have not, if there are any."""
    parts = [f"{name} ({', '.join(runs)})" for name, runs in partial_datasets(rows).items()]
    note = "OOD datasets that only some runs have, so that averages with and without them do not compare: "
    return [f"{note}{'; '.join(parts)}."] if parts else []


def _models(name: str, title: str, averages: pd.DataFrame, outcome: Outcome) -> Table:
    cells = {(row["cil"], row["metric"]): _spread(row) for row in averages.to_dict("records")}
    known = ["average accuracy", "last accuracy", "forgetting", "backward transfer"]
    others = sorted(m for m in averages["metric"].unique() if m not in known and m.startswith("average "))
    metrics = [metric for metric in [*known, *others] if metric in set(averages["metric"])]
    noted = bool(outcome.kept)
    lines = [
        [words(cil), *(cells.get((cil, m), Cell()) for m in metrics)]
        + [Cell(megabytes) for megabytes in outcome.kept.get(cil, _UNKNOWN)] * noted
        for cil in sort_cil(averages["cil"])
    ]
    records = {metric: metric_of(metric.removeprefix("average ")) for metric in others}
    heads = {m: f"average {record.column}" for m, record in records.items() if "accuracy_" not in m}
    columns = [Column(heads.get(m, m.replace("accuracy_", "").replace("_", " "))) for m in metrics]
    columns += [Column("model MB"), Column("memory MB")] * noted
    measured = [record.sentence for record in records.values() if record.function]
    notes = [_CONTINUAL, *_fewer_seeds(averages.groupby("cil")["seeds"].min()), *measured]
    notes += [*[_KEPT] * noted, *outcome.mixture()]
    return Table(name, title, [Column("CIL", label=True), *columns], [Block(lines)], notes)


def _summary(name: str, title: str, averages: pd.DataFrame, metrics: list[str], more: list[str]) -> Table:
    cells = {
        (row["cil"], row["detector"], row["metric"], row["split"]): _spread(row)
        for row in averages.to_dict("records")
    }
    measured = averages[averages["detector"] != ""]
    # A metric of ID images alone has one value, not one for each split of the OOD sets.
    alone = set(measured.loc[measured["split"] == "", "metric"])
    keys = [(m, split) for m in metrics for split in ([""] if m in alone else _SPLITS)]
    counts = measured.groupby(["cil", "detector"])[["steps", "seeds"]].min()
    whole = set(counts[(counts == counts.groupby("cil").transform("max")).all(axis=1)].index)
    blocks = []
    for cil in sort_cil(measured["cil"]):
        names = sort_detectors(measured.loc[measured["cil"] == cil, "detector"])
        accuracy = cells.get((cil, "", "accuracy", ""), Cell())
        lines = [
            [words(cil), words(name), accuracy, *(cells.get((cil, name, *key), Cell()) for key in keys)]
            for name in names
        ]
        # Of so few, to mark three would be to mark all.
        level = [(cil, name) in whole for name in names]  # what is unfinished does not compare
        if sum(not labelled(name) for name in compress(names, level)) > 3:
            ranked = iter(_ranked(list(compress(lines, level)), [m for m, _ in keys], name=1))
            lines = [next(ranked) if so else line for line, so in zip(lines, level, strict=True)]
        blocks.append(Block(lines))
    columns = [Column("CIL", label=True), Column("detector", label=True), Column("acc↑")]
    columns += [
        Column(split, metric_of(m).column) if split else Column(metric_of(m).column) for m, split in keys
    ]
    marked = any(cell.rank for block in blocks for line in block.lines for cell in line)
    notes = [_basis(averages), *more, *[MARKS_IN_BLOCK] * marked]
    notes += [*[_LABELLED] * (marked and any(map(labelled, measured["detector"].unique())))]
    notes += [metric_of(metric).sentence for metric in metrics]
    return Table(name, title, columns, blocks, notes)


def _basis(averages: pd.DataFrame) -> str:
    """What was averaged; and which methods have fewer seeds than others, so that they compare badly."""
    counts = averages.groupby(["cil", "detector"])[["steps", "seeds"]].min()
    steps, seeds = counts.max()
    text = (
        f"Percent: mean over the datasets of a split, then over {count(steps, 'step')}, "
        f"then over {count(seeds, 'seed')}{' (± standard deviation)' * (seeds > 1)}."
    )
    return " ".join([text, *_fewer_seeds(counts["seeds"].drop("", level="detector", errors="ignore"))])


def _fewer_seeds(seeds: "pd.Series[int]") -> list[str]:
    """A note on methods with fewer seeds than others, if there are any."""
    most = seeds.max()
    parts = [
        f"{' '.join(filter(None, name if isinstance(name, tuple) else [str(name)]))} ({number} of {most})"
        for name, number in seeds.items()
        if number < most
    ]
    return [f"Over fewer seeds, so with care: {', '.join(parts)}."] if parts else []


def _spread(row: Mapping[Any, Any]) -> Cell:
    return Cell(100 * row["mean"], None if pd.isna(row["std"]) else 100 * row["std"])
