"""Compare our accuracies with the accuracies of a survey of class-incremental learning."""

from dataclasses import replace

import pandas as pd

from opencil.errors import BadInput
from opencil.published import SURVEY, SURVEY_ACCURACY, published_survey
from opencil.report.compare import refuse_comparison
from opencil.report.layout import Block, Cell, Column, Table, list_note, words
from opencil.report.order import method
from opencil.report.results import Outcome, results
from opencil.study.records import RunRecord
from opencil.study.study import Study

#: The survey's benchmark, as this project names it, and its splits by steps and classes per step.
_BENCHMARK = "cifar100"
_SPLITS: dict[tuple[int, int | str], str] = {(10, 10): "b0-10", (20, 5): "b0-5", (6, "50+10"): "b50-10"}


def survey_tables(study: Study) -> list[Table]:
    """Return the accuracies of finished runs beside the survey's, for each k that the survey has."""
    made, figures = [], published_survey()
    for outcome in _model_results(study):
        split = _SPLITS.get((outcome.steps, outcome.k)) if outcome.benchmark == _BENCHMARK else None
        lines = {}
        for cil in outcome.cil:
            theirs = figures[(figures["split"] == split) & (figures["cil"] == method(cil))]
            ours = _our_accuracies(outcome, study.rows, cil)
            if len(ours) and len(theirs):
                lines[cil] = _line(outcome, cil, ours, theirs)
        if lines:
            made.append(_table(outcome, lines))
    return made


def not_in_survey(study: Study) -> BadInput:
    """Return the error for a study of which nothing can be compared with the survey."""
    splits = ", ".join(f"{steps} of {k}" for steps, k in _SPLITS)
    methods = ", ".join(sorted(published_survey()["cil"].unique()))
    source = f"the survey: it has {_BENCHMARK} in {splits}, of {methods}"
    return refuse_comparison(_model_results(study), source)


def _model_results(study: Study) -> list[Outcome]:
    """Return the results of the runs' models, whether or not their detectors are finished."""
    records: list[RunRecord] = [{**run, "detectors": {}} for run in study.runs]
    models = replace(study, rows=study.rows[study.rows["detector"] == ""], runs=records)
    return results(models, tuple(SURVEY_ACCURACY.values()))


def _our_accuracies(outcome: Outcome, rows: pd.DataFrame, cil: str) -> pd.DataFrame:
    """Return accuracies of a method's finished runs in percent, a line per step, a column per seed."""
    metric = SURVEY_ACCURACY.get(method(cil), "accuracy")
    of_model = (rows["detector"] == "") & (rows["task"] == 0) & (rows["metric"] == metric)
    here = outcome.select_finished(rows[of_model & (rows["cil"] == cil)])
    return 100 * here.pivot(index="step", columns="seed", values="value")


def _line(outcome: Outcome, cil: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> list[Cell]:
    """Return average and last accuracy, ours, the survey's and the difference, then differences per step."""
    of_metric = theirs.set_index(["metric", "step"])["value"].to_dict()
    figures = theirs.loc[theirs["metric"] == "accuracy", "value"].tolist()
    if figures:  # the survey prints no average of its larger first step
        of_metric.setdefault(("average_accuracy", 0), sum(figures) / len(figures))
        of_metric.setdefault(("last_accuracy", 0), figures[-1])
    line = [words(f"{cil} (nearest mean)" if method(cil) in SURVEY_ACCURACY else cil)]
    for metric, values in (("average_accuracy", ours.mean()), ("last_accuracy", ours.iloc[-1])):
        mean, survey = float(values.mean()), of_metric.get((metric, 0))
        std = float(values.std()) if len(values) > 1 else None
        line += [Cell(mean, std), Cell(survey), _subtract(mean, survey)]
    per_step = ours.mean(axis=1)
    steps = range(1, outcome.steps + 1)
    return line + [_subtract(float(per_step[step]), of_metric.get(("accuracy", step))) for step in steps]


def _subtract(ours: float, survey: float | None) -> Cell:
    return Cell() if survey is None else Cell(ours - survey, signed=True)


def _table(outcome: Outcome, lines: dict[str, list[Cell]]) -> Table:
    groups = ("average accuracy", "last accuracy")
    columns = [Column("CIL", label=True)]
    columns += [Column(head, group) for group in groups for head in ("ours", "survey", "Δ")]
    columns += [Column(str(step), "Δ after step") for step in range(1, outcome.steps + 1)]
    notes = [
        f"Percent, mean over seeds. Δ: ours minus the survey's, in percent points. Survey: {SURVEY}.",
        f"The survey's accuracy of {', '.join(SURVEY_ACCURACY)} is that of nearest means of exemplars; so is "
        "ours here.",
        "Its training images are made brighter or darker too, by up to 63/255 (our transform.brightness).",
        *list_note("Not compared", [cil for cil in outcome.cil if cil not in lines]),
    ]
    title, blocks = f"{outcome.title}: accuracy, ours beside the survey's", [Block(list(lines.values()))]
    return Table(f"survey-{outcome.name}", title, columns, blocks, notes, outcome.missing())
