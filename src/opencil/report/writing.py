"""What a report comes to: the tables that are asked for, the page, and a folder of everything."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opencil.atomic_files import write_text
from opencil.errors import BadInput
from opencil.report.compare import COMPARED, comparison_tables, incomparable
from opencil.report.layout import ENDINGS, Table
from opencil.report.statistics import statistics_tables
from opencil.report.survey import not_in_survey, survey_tables
from opencil.report.tables import KINDS, Kind, tables
from opencil.report.top import ALL, Top, shortened
from opencil.study.study import Study, write_study

if TYPE_CHECKING:  # Matplotlib: only where something is drawn
    from opencil.report.figures.drawing import Figure

_WHY = {"ablation": "it is of detectors with labels, as ber@nter, and these runs have none"}
_NOTHING = "no detector has been evaluated yet"


def chosen_tables(
    study: Study,
    kinds: Sequence[Kind],
    *,
    compare: Literal["paper", "survey"] | None = None,
    statistics: bool = False,
    baseline: str | None = None,
    extra: bool = False,
    top: Top = ALL,
) -> list[Table]:
    """Tables of some kinds, beside published figures, with statistics; there is an error for what is empty.

    All kinds together are asked for as far as there are any. ``top`` is what they show of many methods:
    ablations and comparisons are of few.
    """
    made: list[Table] = []
    for kind in kinds:
        of_kind = tables(kind, study, extra)
        if not of_kind and set(kinds) != set(KINDS):
            raise BadInput(f"there is no table {kind!r} to show: {_WHY.get(kind, _NOTHING)}")
        made += of_kind if kind == "ablation" else shortened(of_kind, study.rows, top)
    if compare == "survey":
        accuracies = survey_tables(study)
        if not accuracies:
            raise not_in_survey(study)
        made += accuracies
    if compare == "paper":
        compared = [kind for kind in kinds if kind in COMPARED] or ["main"]
        beside = comparison_tables(study, compared)
        if not beside:
            raise incomparable(study)
        made += beside
    if statistics:
        ranked = statistics_tables(study, baseline)
        if not ranked:
            raise BadInput(
                "there is nothing to compare by statistics: at least two detectors that are finished on the "
                "same runs, steps and OOD datasets are needed"
            )
        made += shortened(ranked, study.rows, top)
    return made


def write_page(
    study: Study,
    path: Path,
    figures: "Iterable[Figure]" = (),
    refresh: float | None = None,
    tables: Sequence[Table] | None = None,
) -> None:
    """Write the page of a study; with ``refresh`` it loads itself anew every so many seconds.

    ``tables`` are its statistics and comparisons: unless they are given, they are made here, but not for a
    page that will be written again in a moment.
    """
    from opencil.report.page import known_differences, page

    if tables is None:
        tables = [] if refresh else [*statistics_tables(study), *survey_tables(study)]
    differences = known_differences(study)
    text = page(study, figures=figures, tables=tables, differences=differences, refresh=refresh)
    write_text(path, text)


def write_report(
    study: Study,
    folder: Path,
    figures: "Sequence[Figure]",
    baseline: str | None = None,
    extra: bool = False,
    top: Top = ALL,
) -> None:
    """Write a study into a folder with all that can be made of it: tables, figures, the page.

    ``top`` is what tables show of many methods, but in CSV, which has all.
    """
    write_study(study, folder)
    survey, statistics = survey_tables(study), statistics_tables(study, baseline)
    many = [table for kind in KINDS if kind != "ablation" for table in tables(kind, study, extra)]
    many += statistics
    few = [*tables("ablation", study), *comparison_tables(study, list(COMPARED)), *survey]
    short = [*shortened(many, study.rows, top), *few]
    for form, ending in ENDINGS.items():
        for table in [*many, *few] if form == "csv" else short:
            write_text(folder / "tables" / f"{table.file}.{ending}", table.text(form))
    write_text(folder / "tables.md", "\n".join(table.markdown() for table in short))
    for figure in figures:
        figure.save(folder / "figures")
    write_page(study, folder / "index.html", figures, tables=[*statistics, *survey])
