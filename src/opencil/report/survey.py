"""Ours beside a survey of class-incremental learning: accuracies, average, last and per step."""

from dataclasses import replace

import pandas as pd

from opencil.errors import BadInput
from opencil.published import SURVEY, SURVEY_ACCURACY, published_survey
from opencil.report.layout import Block, Cell, Column, Table, words
from opencil.report.order import method
from opencil.report.results import Outcome, results
from opencil.study.records import RunRecord
from opencil.study.study import Study

#: The survey's benchmark, as this project names it, and its splits by steps and classes per step.
_BENCHMARK = "cifar100"
_SPLITS: dict[tuple[int, int | str], str] = {(10, 10): "b0-10", (20, 5): "b0-5", (6, "50+10"): "b50-10"}
_METRICS = ("accuracy", *SURVEY_ACCURACY.values())


def survey_tables(study: Study) -> list[Table]:
    """For each k that the survey has: the accuracies of finished runs beside it."""
    made = []
    for outcome in _models(study):
        theirs = _theirs(outcome)
        of_method = {cil: theirs[theirs["cil"] == method(cil)] for cil in outcome.cil}
        ours = {cil: _ours(outcome, study.rows, cil) for cil, part in of_method.items() if len(part)}
        if compared := [cil for cil, values in ours.items() if len(values)]:
            lines = [_line(outcome, cil, ours[cil], of_method[cil]) for cil in compared]
            made.append(_table(outcome, lines, [cil for cil in outcome.cil if cil not in compared]))
    return made


def not_in_survey(study: Study) -> BadInput:
    """The error for a study of which nothing can be compared with the survey: why."""
    every = _models(study)
    there = [outcome for outcome in every if len(_theirs(outcome))]
    if not there:
        ours = ", ".join(f"{outcome.benchmark} in {outcome.steps} steps of {outcome.k}" for outcome in every)
        has = ", ".join(f"{steps} of {k}" for steps, k in _SPLITS)
        return BadInput(f"the survey has no figures to compare {ours} with: it has {_BENCHMARK} in {has}")
    why = []
    for outcome in there:
        known = sorted(set(_theirs(outcome)["cil"]))
        if set(map(method, outcome.cil)) & set(known):
            why.append(
                f"{outcome.title}: {'; '.join(outcome.unfinished()) or 'the accuracy it has is missing'}"
            )
        else:
            why.append(f"{outcome.title}: it has none of {', '.join(outcome.cil)}, but {', '.join(known)}")
    return BadInput(f"nothing that is finished can be compared with the survey: {'. '.join(why)}")


def _models(study: Study) -> list[Outcome]:
    """What the runs' models have come to; whether detectors are finished is no matter here."""
    records: list[RunRecord] = [{**run, "detectors": {}} for run in study.runs]
    models = replace(study, rows=study.rows[study.rows["detector"] == ""], runs=records)
    return results(models, _METRICS)


def _theirs(outcome: Outcome) -> pd.DataFrame:
    table = published_survey()
    split = _SPLITS.get((outcome.steps, outcome.k)) if outcome.benchmark == _BENCHMARK else None
    return table[table["split"] == split]


def _ours(outcome: Outcome, rows: pd.DataFrame, cil: str) -> pd.DataFrame:
    """Accuracies of a method's finished runs in percent: a line for each step, a column for each seed."""
    metric = SURVEY_ACCURACY.get(method(cil), "accuracy")
    of_model = (rows["detector"] == "") & (rows["task"] == 0) & (rows["metric"] == metric)
    here = outcome.finished(rows[of_model & (rows["cil"] == cil)])
    return 100 * here.pivot(index="step", columns="seed", values="value")


def _line(outcome: Outcome, cil: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> list[Cell]:
    """Average and last accuracy, each ours, the survey's and the difference; then the steps' differences."""
    of_metric = theirs.set_index(["metric", "step"])["value"].to_dict()
    steps = theirs.loc[theirs["metric"] == "accuracy", "value"].tolist()
    if steps:  # the survey prints no average of its larger first step
        of_metric = {
            ("average_accuracy", 0): sum(steps) / len(steps),
            ("last_accuracy", 0): steps[-1],
        } | of_metric
    line = [words(f"{cil} (nearest mean)" if method(cil) in SURVEY_ACCURACY else cil)]
    for metric, values in (("average_accuracy", ours.mean()), ("last_accuracy", ours.iloc[-1])):
        mean, survey = float(values.mean()), of_metric.get((metric, 0))
        std = float(values.std()) if len(values) > 1 else None
        line += [Cell(mean, std), Cell(survey), _difference(mean, survey)]
    per_step = ours.mean(axis=1)
    return line + [
        _difference(float(per_step[step]), of_metric.get(("accuracy", step)))
        for step in range(1, outcome.steps + 1)
    ]


def _difference(ours: float, survey: float | None) -> Cell:
    return Cell() if survey is None else Cell(ours - survey, signed=True)


def _table(outcome: Outcome, lines: list[list[Cell]], others: list[str]) -> Table:
    columns = [Column("CIL", label=True)]
    columns += [
        Column(what, group)
        for group in ("average accuracy", "last accuracy")
        for what in ("ours", "survey", "Δ")
    ]
    columns += [Column(str(step), "Δ after step") for step in range(1, outcome.steps + 1)]
    notes = [
        f"Percent, mean over seeds. Δ: ours minus the survey's, in percent points. Survey: {SURVEY}.",
        f"The survey's accuracy of {', '.join(SURVEY_ACCURACY)} is that of nearest means of exemplars; so is "
        "ours here.",
        "Its training images are made brighter or darker too, by up to 63/255 (our transform.brightness).",
    ]
    notes += [f"Not compared: {', '.join(others)}."] if others else []
    title = f"{outcome.title}: accuracy, ours beside the survey's"
    return Table(f"survey-{outcome.name}", title, columns, [Block(lines)], notes, outcome.missing())
