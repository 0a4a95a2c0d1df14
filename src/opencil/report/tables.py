"""Make the paper's tables of any set of runs: main, near and far, per dataset, ablation; and a summary."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import compress, groupby
from typing import Literal, get_args

import pandas as pd

from opencil.data.roles import ALL, FUTURE, OOD_ROLES
from opencil.evaluation.metric import OVER_STEPS, metric_of, table_metrics
from opencil.evaluation.metric import metrics as all_metrics
from opencil.report.averages import average_models, average_rows, average_tasks, dataset_place
from opencil.report.layout import CIL, DETECTOR, Block, Cell, Column, Table, list_note, words
from opencil.report.order import group_families, is_labelled, method, sort_cil, sort_detectors, sort_metrics
from opencil.report.results import Outcome, describe_steps, find_partial, make_cells, note_partial, results
from opencil.study.records import RunRecord
from opencil.study.study import Study
from opencil.validation import flat

Kind = Literal["summary", "main", "distance", "dataset", "ablation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: The key of a column: CIL method, metric, place.
Key = tuple[str, str, str]

#: The scorer of fine-tuning detectors without a scorer of their own: without training, they would be this.
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
_FUTURE = (
    "AUC, FPR and AP: against test images of the classes of later steps, so without the last step. AUC "
    "(average) and AUC (forgetting): against all OOD sets."
)
_SIZES = ("model MB", "memory MB")
_MARKS = "¹ best, ² second, ³ third in its column."
_LABELLED = (
    "A name with @ is its method under other values; it counts neither in averages of detectors nor among "
    "the best."
)


def tables(kind: Kind, study: Study, extra: bool = False, metrics: tuple[str, ...] = ()) -> list[Table]:
    """Return all tables of a kind, for each benchmark and k; ``extra`` is for the summary.

    ``metrics`` replace the metrics that a table has by default.
    """
    if kind == "summary":
        return summaries(study, extra, metrics)
    make = _ablation_tables if kind == "ablation" else partial(_tables_by_family, kind)
    return [table for outcome in results(study, metrics) if outcome.datasets for table in make(outcome)]


def columns_of(kind: Kind, outcome: Outcome, methods: list[str]) -> list[dict[Column, Key]]:
    """Return the columns of each table of a kind: one, one for each metric, or one for each CIL method."""
    main = outcome.metrics("all")
    if kind == "main":
        return [{Column(metric_of(m).column, cil): (cil, m, ALL) for cil in methods for m in main}]
    if kind == "distance":  # metrics that should be low come last
        names = sorted(outcome.metrics("all", "near-far"), key=lambda name: metric_of(name).lower_is_better)
        return [{Column(role, cil): (cil, m, role) for cil in methods for role in OOD_ROLES} for m in names]
    places = [(f"{distance} {name}", dataset_place(name)) for name, distance in outcome.datasets.items()]
    return [
        {Column(metric_of(m).column, name): (cil, m, place) for name, place in places for m in main}
        for cil in methods
    ]


def _tables_by_family(kind: Kind, outcome: Outcome) -> list[Table]:
    """Make the tables of a kind like the paper's, in blocks of detectors."""
    made = []
    for columns in columns_of(kind, outcome, outcome.cil):
        cil, metric, _ = next(iter(columns.values()))
        name, title, of = "main", "main results", ""
        if kind == "distance":
            name, title = f"distance-{metric}", f"near and far OOD, {metric_of(metric).column}"
        elif kind == "dataset":
            name, title, of = f"dataset-{cil}", "OOD detection per dataset", cil
        made.append(_table_by_family(outcome, name, title, columns, of))
    return made


def _ablation_tables(outcome: Outcome) -> list[Table]:
    """Make a table for each CIL method and each detector with labels: its variants on each OOD dataset."""
    made = []
    for own in dict.fromkeys(method(name) for name in outcome.detectors if is_labelled(name)):
        every = sorted(name for name in outcome.detectors if is_labelled(name) and method(name) == own)
        if own in outcome.detectors:
            every.append(own)
        if UNTUNED in outcome.detectors and "fine-tuning" in dict(group_families([own])):
            every.insert(0, UNTUNED)
        for cil, columns in zip(outcome.cil, columns_of("ablation", outcome, outcome.cil), strict=True):
            lines = [_line(outcome, name, columns) for name in every]
            lines = [line for line in lines if any(cell.value is not None for cell in line)]
            names = [line[0].text for line in lines]
            if any(map(is_labelled, names)):
                lines = _rank(lines, [metric for _, metric, _ in columns.values()], [True] * len(lines))
                notes = [*outcome.basis(), *_differing_values(names, own, outcome.runs), _MARKS]
                notes += [metric_of(m).sentence for m in outcome.metrics("all")]
                name, title, heads = f"ablation-{own}-{cil}", f"ablation of {own}", [DETECTOR, *columns]
                made.append(outcome.complete(Table(name, title, heads, [Block(lines)], notes, cil=cil)))
    return made


def _differing_values(names: list[str], own: str, runs: list[RunRecord]) -> list[str]:
    """Return notes on the values in which a method's variants differ, as far as runs recorded them."""
    configs = (run["config"].get("detector", {}).items() for run in runs)
    recorded = {name: flat(values) for config in configs for name, values in config}
    variants = {name: recorded[name] for name in names if method(name) == own and name in recorded}
    keys = sorted({key for values in variants.values() for key in values})
    differing = [key for key in keys if len({repr(values.get(key)) for values in variants.values()}) > 1]
    return [
        f"{name}: {', '.join(f'{key} = {values.get(key)}' for key in differing)}."
        for name, values in variants.items()
        if differing
    ]


def _table_by_family(
    outcome: Outcome, name: str, title: str, columns: dict[Column, Key], cil: str = ""
) -> Table:
    """Make a table like the paper's: accuracy (of one ``cil`` in a note), a block per family, averages."""
    keys, every = list(columns.values()), outcome.detectors
    metrics = [metric for _, metric, _ in keys]
    plain = [detector for detector in every if not is_labelled(detector)]
    ranked = _rank([_line(outcome, d, columns) for d in every], metrics, [d in plain for d in every])
    lines, blocks = dict(zip(every, ranked, strict=True)), []
    for family, names in group_families(every):
        own = [detector for detector in names if detector in plain]
        foot = [_average("Average", outcome, own, keys)] if own else []
        blocks.append(Block([lines[detector] for detector in names], family, foot))
    if len(blocks) > 1:
        blocks.append(Block([_average("Average (All)", outcome, plain, keys)]))
    notes = [*outcome.basis(), _MARKS]
    if plain != every:
        notes.append(_LABELLED)
    if cil:
        notes.append(f"Average accuracy of {cil}: {outcome.of(cil, '', 'accuracy', '').text}.")
    else:
        top = [_line_over_groups("CIL accuracy", keys, lambda cil: outcome.of(cil, "", "accuracy", ""))]
        if outcome.kept:
            top.append(_line_over_groups(_SIZES[0], keys, lambda cil: _kept_cells(outcome, cil)[0]))
            top.append(_line_over_groups(_SIZES[1], keys, lambda cil: _kept_cells(outcome, cil)[1]))
            notes.append(_KEPT)
        blocks = [Block(top), *blocks]
    notes += [metric_of(metric).sentence for metric in dict.fromkeys(["accuracy", *metrics])]
    return outcome.complete(Table(name, title, [DETECTOR, *columns], blocks, notes, cil=cil))


def _line(outcome: Outcome, detector: str, columns: dict[Column, Key]) -> list[Cell]:
    return [words(detector), *(outcome.of(cil, detector, m, place) for cil, m, place in columns.values())]


def _average(name: str, outcome: Outcome, detectors: list[str], keys: list[Key]) -> list[Cell]:
    return [words(name), *(outcome.mean_over(detectors, *key) for key in keys)]


def _kept_cells(outcome: Outcome, cil: str) -> list[Cell]:
    """Return the megabytes of model and memory after the last step; dashes if no run noted them."""
    return list(map(Cell, outcome.kept.get(cil, (None, None))))


def _line_over_groups(name: str, keys: list[Key], of: Callable[[str], Cell]) -> list[Cell]:
    """Return a line with one cell for each CIL method, over the columns of its group."""
    cells = [words(name)]
    for cil, group in groupby(keys, key=lambda key: key[0]):
        span = len(list(group))
        cells += [replace(of(cil), span=span), *[Cell(words="", span=0)] * (span - 1)]
    return cells


def _rank(lines: list[list[Cell]], metrics: list[str], competes: list[bool]) -> list[list[Cell]]:
    """Mark the three best values of each of the last columns, of ``metrics``, among lines that compete."""
    ranked = [list(line) for line in lines]
    competing = list(compress(ranked, competes))
    for i, metric in enumerate(metrics, start=-len(metrics)):
        shown = {round(value, 2) for line in competing if (value := line[i].value) is not None}
        best = sorted(shown, reverse=not metric_of(metric).lower_is_better)[:3]
        for line in competing:
            if (value := line[i].value) is not None and round(value, 2) in best:
                line[i] = replace(line[i], rank=best.index(round(value, 2)) + 1)
    return ranked


def summaries(study: Study, extra: bool = False, chosen: tuple[str, ...] = ()) -> list[Table]:
    """Return the CIL models and their detectors, finished or not; ``extra`` adds flipped FPR and AP.

    ``chosen`` metrics replace all others.
    """
    rows = study.rows
    present = set(rows.loc[(rows["detector"] != "") & (rows["task"] == 0), "metric"].unique())
    asked_for = [name for name in sort_metrics(present) if not metric_of(name).standard]
    standard = [*table_metrics("all", "near-far"), *(table_metrics("extra") if extra else ()), *asked_for]
    metrics = list(chosen) or standard
    models = dict(list(average_models(rows).groupby(["benchmark", "k"])))
    shifted = [m.name for m in all_metrics().values() if m.reads_shifted and not m.of_model]
    shown = rows[rows["metric"].isin(["accuracy", *metrics, *shifted])]  # some others begin at step 2
    every = average_rows(shown)
    later = every["place"] == FUTURE
    averages = dict(list(every[~later].groupby(["benchmark", "k"])))
    continual = pd.concat([every[later].assign(place=""), average_tasks(rows)])
    over_steps = dict(list(continual.groupby(["benchmark", "k"])))
    made = []
    for outcome in results(study, chosen):
        key = (outcome.benchmark, outcome.k)
        if key in models:
            made.append(_accuracy_table(models[key], outcome))
        if not outcome.datasets:
            continue
        partial = find_partial(rows[(rows["benchmark"] == key[0]) & (rows["k"] == key[1])])
        effect = "so that averages with and without them do not compare"
        notes = [*outcome.mixture(), *note_partial(effect, partial)]
        title = "OOD detection"
        made.append(_summary("summary", title, averages[key], metrics, notes, outcome))
        if of_shift := not chosen and [name for name in shifted if (averages[key]["metric"] == name).any()]:
            title = f"{title} under covariate shift"
            made.append(_summary("shifted", title, averages[key], of_shift, notes, outcome))
        if key in over_steps:
            title = "OOD detection of classes to come, and of old tasks"
            found = pd.concat([over_steps[key], averages[key][averages[key]["detector"] == ""]])
            of_both = [m for m in [*metrics, *OVER_STEPS] if (over_steps[key]["metric"] == m).any()]
            made.append(_summary("continual", title, found, of_both, [_FUTURE, *notes], outcome))
    return made


def _accuracy_table(averages: pd.DataFrame, outcome: Outcome) -> Table:
    """Make the table of the CIL models themselves."""
    cells, kept = make_cells(averages.set_index(["cil", "metric"]), 100), bool(outcome.kept)
    known = ["average accuracy", "last accuracy", "forgetting", "backward transfer"]
    others = sorted(m for m in averages["metric"].unique() if m not in known and m.startswith("average "))
    metrics = [metric for metric in [*known, *others] if metric in set(averages["metric"])]
    lines = [
        [words(cil), *(cells.get((cil, m), Cell()) for m in metrics), *_kept_cells(outcome, cil) * kept]
        for cil in sort_cil(averages["cil"])
    ]
    records = {metric: metric_of(metric.removeprefix("average ")) for metric in others}
    heads = {m: f"average {record.column}" for m, record in records.items() if "accuracy_" not in m}
    columns = [CIL, *(Column(heads.get(m, m.replace("accuracy_", "").replace("_", " "))) for m in metrics)]
    notes = [_CONTINUAL, *_note_fewer_seeds(averages.groupby("cil")["seeds"].min())]
    notes += [record.sentence for record in records.values() if record.function]
    if kept:
        columns += map(Column, _SIZES)
        notes.append(_KEPT)
    notes += outcome.mixture()
    return outcome.complete(Table("accuracy", "accuracy", columns, [Block(lines)], notes), averaged=True)


def _summary(
    name: str, title: str, averages: pd.DataFrame, metrics: list[str], more: list[str], outcome: Outcome
) -> Table:
    """Make a table of some metrics of the detectors on each CIL model."""
    cells = make_cells(averages.set_index(["cil", "detector", "metric", "place"]), 100)
    measured = averages[averages["detector"] != ""]
    # A metric of ID images alone has one value, not one for each split of the OOD sets.
    alone = set(measured.loc[measured["place"] == "", "metric"])
    shown = [(m, place) for m in metrics for place in ([""] if m in alone else (*OOD_ROLES, ALL))]
    counts = averages.groupby(["cil", "detector"])[["steps", "seeds"]].min()
    of_detectors = counts.drop("", level="detector", errors="ignore")
    whole = (of_detectors == of_detectors.groupby("cil").transform("max")).all(axis=1)
    blocks = []
    for cil in sort_cil(measured["cil"]):
        names = sort_detectors(measured.loc[measured["cil"] == cil, "detector"])
        accuracy = cells.get((cil, "", "accuracy", ""), Cell())
        lines = [
            [words(cil), words(detector), accuracy]
            + [cells.get((cil, detector, *key), Cell()) for key in shown]
            for detector in names
        ]
        # Unfinished detectors do not compare.
        competes = [whole[cil, detector] and not is_labelled(detector) for detector in names]
        if sum(competes) > 3:
            lines = _rank(lines, [m for m, _ in shown], competes)
        blocks.append(Block(lines))
    heads = [(metric_of(m).column, place) for m, place in shown]
    columns = [CIL, DETECTOR, Column("acc↑"), *(Column(p or m, m if p else "") for m, p in heads)]
    marked = any(cell.rank for block in blocks for line in block.lines for cell in line)
    steps, seeds = counts.max()
    basis = (
        f"Percent: mean over the datasets of a split, {describe_steps(steps, seeds, outcome.planned_seeds)}."
    )
    fewer = _note_fewer_seeds(of_detectors["seeds"].set_axis(of_detectors.index.map(" ".join)))
    notes = [" ".join([basis, *fewer]), *more]
    if marked:
        notes.append(_MARKS.replace("in its column", "of its CIL model"))
        notes += [_LABELLED] if any(map(is_labelled, measured["detector"].unique())) else []
    notes += [metric_of(metric).sentence for metric in metrics]
    return outcome.complete(Table(name, title, columns, blocks, notes), averaged=True)


def _note_fewer_seeds(seeds: "pd.Series[int]") -> list[str]:
    """Return a note on methods with fewer seeds than others, if there are any."""
    few = seeds[seeds < seeds.max()]
    parts = [f"{name} ({number} of {seeds.max()})" for name, number in few.items()]
    return list_note("Over fewer seeds, so with care", parts)
