"""Write the tables of a report, its page and a folder of everything; watch runs under way."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from opencil.errors import BadInput, OpenCILError, check_known
from opencil.files import write_text
from opencil.report.averages import is_ood
from opencil.report.compare import COMPARED, comparison_tables, incomparable, survey_tables
from opencil.report.layout import ENDINGS, Table
from opencil.report.order import ALL_SHOWN, Top, sort_metrics
from opencil.report.statistics import statistics_tables
from opencil.report.tables import KINDS, Kind, tables
from opencil.study.study import Study, write_study

if TYPE_CHECKING:  # Matplotlib: imported where figures are drawn
    from opencil.report.figures.chosen import Choice
    from opencil.report.figures.drawing import Figure


def chosen_tables(
    study: Study,
    kinds: Sequence[Kind],
    *,
    compare: Literal["paper", "survey"] | None = None,
    statistics: bool = False,
    baseline: str | None = None,
    extra: bool = False,
    top: Top = ALL_SHOWN,
    metrics: tuple[str, ...] = (),
) -> list[Table]:
    """Return tables, comparisons and statistics; an empty kind is an error, unless all are asked for."""
    made: list[Table] = []
    check_known("metric of detectors in these rows", metrics, list_metrics(study.rows))
    for kind in kinds:
        of_kind = tables(kind, study, extra, metrics)
        if not of_kind and set(kinds) != set(KINDS):
            detector = "detector@label" if kind == "ablation" else "detector"
            raise BadInput(f"there is no table {kind!r} to show: no {detector} has been evaluated yet")
        made += of_kind if kind == "ablation" else shorten_tables(of_kind, study, top)
    if compare:
        asked = [kind for kind in kinds if kind in COMPARED] or ["main"]
        beside = survey_tables(study) if compare == "survey" else comparison_tables(study, asked, metrics)
        if not beside:
            raise incomparable(study, compare)
        made += beside
    if statistics:
        ranked = statistics_tables(study, baseline, metrics)
        if not ranked:
            raise BadInput("statistics need two detectors, finished on the same runs, steps and OOD datasets")
        made += shorten_tables(ranked, study, top)
    return made


def list_metrics(rows: pd.DataFrame) -> list[str]:
    """Return the metrics of detectors on OOD sets that rows have."""
    return sort_metrics(rows.loc[is_ood(rows), "metric"].unique())


def shorten_tables(tables: Sequence[Table], study: Study, top: Top) -> list[Table]:
    """Return tables with the methods that ``top`` shows; tables without detectors stay as they are."""
    rows = study.rows
    hidden = {
        "detector": set(rows["detector"].unique()) - {""} - top.select(rows, "detector"),
        "CIL": set(rows["cil"].unique()) - top.select(rows, "cil"),
    }
    note = (
        f"Shown are the best by mean AUC: {top.describe(rows)}; averages and marks are over all. opencil "
        "report --top all shows all, --top 20 more, --top 20,NAME some by name; CSV has all."
    )
    return [
        table.without(hidden, note) if any(column.name == "detector" for column in table.columns) else table
        for table in tables
        if table.cil not in hidden["CIL"]
    ]


def write_page(
    study: Study,
    path: Path,
    figures: "Iterable[Figure]" = (),
    refresh: float | None = None,
    tables: Sequence[Table] | None = None,
    opened: tuple[str, int | str] | None = None,
) -> None:
    """Write the page of a study, by default with statistics and survey unless it reloads itself.

    ``opened`` is the benchmark and k that it shows first, with its tables above all.
    """
    from opencil.report.page import page

    if tables is None:
        tables = [] if refresh else [*statistics_tables(study), *survey_tables(study)]
    write_text(path, page(study, figures=figures, tables=tables, refresh=refresh, opened=opened))


def write_report(
    study: Study,
    folder: Path,
    figures: "Sequence[Figure]",
    baseline: str | None = None,
    extra: bool = False,
    top: Top = ALL_SHOWN,
    metrics: tuple[str, ...] = (),
) -> None:
    """Write a study with all its tables, figures and page into a folder; ``top`` does not limit CSV."""
    write_study(study, folder)
    survey, statistics = survey_tables(study), statistics_tables(study, baseline, metrics)
    many = [table for kind in KINDS if kind != "ablation" for table in tables(kind, study, extra, metrics)]
    many += statistics
    few = [*tables("ablation", study, metrics=metrics), *comparison_tables(study, COMPARED, metrics), *survey]
    short = [*shorten_tables(many, study, top), *few]
    for form, ending in ENDINGS.items():
        for table in [*many, *few] if form == "csv" else short:
            write_text(folder / "tables" / f"{table.file}.{ending}", getattr(table, form)())
    write_text(folder / "tables.md", "\n".join(table.markdown() for table in short))
    for figure in figures:
        figure.save(folder / "figures")
    write_page(study, folder / "index.html", figures, tables=[*statistics, *survey])


def watch_runs(
    read: Callable[[], Study], path: Path, choice: "Choice", every: float, say: Callable[[str], None]
) -> Study:
    """Write the page until all runs are done or Ctrl-C is pressed; return the study. The last has figures."""
    from opencil.report.figures.drawing import figures

    study, said, problem, ending = read(), "", "", "all runs are done"
    try:
        while problem or not study.finished:
            write_page(study, path, refresh=every)
            now = problem or f"{describe_progress(study)}: {path}"
            if now != said:
                say(now)
                said = now
            time.sleep(every)
            try:
                study, problem = read(), ""
            except (OpenCILError, OSError) as error:
                problem = f"the page shows what could be read last ({error})"
    except KeyboardInterrupt:
        ending = "stopped watching"
        say(ending)
    finally:
        write_page(study, path)
    write_page(study, path, figures(study, choice))
    say(f"{ending}: {path}")
    return study


def describe_progress(study: Study) -> str:
    """Return how far a study's runs are, in a few words."""
    done, steps = sum(run["trained"] for run in study.runs), sum(run["steps"] or 0 for run in study.runs)
    evaluated = sum(sum(run["detectors"].values()) for run in study.runs)
    wanted = sum(len(run["detectors"]) * (run["steps"] or 0) for run in study.runs)
    lost = f", damaged or lost: {'; '.join(study.problems)}" if study.problems else ""
    return f"{done} of {steps} steps trained, {evaluated} of {wanted} evaluations{lost}"
