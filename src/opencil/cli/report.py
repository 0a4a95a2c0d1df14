"""``opencil report``: tables, figures and a page of stored or published runs, from their rows alone."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from opencil.cli.flags import (
    PLUGIN,
    RUNS,
    Plugins,
    cil_names,
    detector_names,
    metric_names,
    names,
    option,
    switch,
    table_names,
)
from opencil.cli.guard import importing
from opencil.cli.screen import problems
from opencil.errors import BadInput, OpenCILError, check_known

if TYPE_CHECKING:  # imported where they are used, so that --help answers at once
    from opencil.report.figures.drawing import Figure
    from opencil.report.layout import Table
    from opencil.report.order import Top


def report(
    folders: list[Path] = RUNS,
    table: str | None = option(
        "A,B|all", "Tables: summary (the default), main, distance, dataset, ablation.", complete=table_names
    ),
    detector: str | None = option(
        "A,B", "Detectors to show: names, patterns or groups.", show_default="all", complete=detector_names
    ),
    cil: str | None = option("A,B", "CIL methods to show.", show_default="all", complete=cil_names),
    metric: str | None = option(
        "A,B", "Metrics of tables.", show_default="each table's own", complete=metric_names
    ),
    form: Literal["terminal", "markdown", "csv", "latex"] = option(
        None, "What to print the tables as.", "terminal", "--format"
    ),
    compare: Literal["paper", "survey"] | None = option(None, "Show ours beside published figures."),
    statistics: bool = switch("--statistics", "Detectors ranked, with intervals of their differences."),
    baseline: str | None = option(
        "NAME", "Detector that --statistics compares with.", show_default="the best", complete=detector_names
    ),
    extra: bool = switch("--extra", "Also FPR with OOD positive and AP with ID positive."),
    top: str | None = option(
        "N,A,B|all", "The best to show by mean AUC, and others: 10,vos,ewc; on a terminal 16 and 8, else all."
    ),
    out: Path | None = option("FOLDER", "Write all there is: tables in all forms, figures, page, rows."),
    html: Path | None = option("FILE", "Write one page to explore the results in; it needs no network."),
    figures: Path | None = option("FOLDER", "Write figures as PNG, PDF and SVG."),
    figure_detectors: str | None = option(
        "A,B", "Detectors in figures.", show_default="msp,energy,regmix,ber", complete=detector_names
    ),
    watch: bool = switch("--watch", "Write the page again and again until all runs are done, or Ctrl-C."),
    every: float = option("SECONDS", "Seconds between two pages of --watch.", 10, min=0.1),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Show the results of stored runs: tables, beside the paper's figures, with statistics.

    Everything is computed from rows; nothing is trained or evaluated again.
    """
    with importing():
        from opencil.plugins import describe_missing
        from opencil.report.figures.chosen import Choice
        from opencil.report.order import ALL_SHOWN, Top, select_names
        from opencil.report.tables import KINDS
        from opencil.report.writing import chosen_tables, watch_runs, write_page, write_report
        from opencil.runs.reading import read_study

    ranked = statistics or baseline is not None
    kinds: list[Any] = list(KINDS) if table == "all" else names("--table", table)
    check_known("table", kinds, KINDS)
    if not (kinds or compare or ranked):
        kinds = ["summary"]
    say = partial(typer.echo, err=form != "terminal")  # stdout may be the input of another program
    shown = _top(top)
    choice = Choice(tuple(names("--figure-detectors", figure_detectors)), top=shown or Top())
    if watch:
        page, html = html or folders[0] / "report.html", None
        study = watch_runs(lambda: read_study(*folders), page, choice, every, say)
        if study.rows.empty:
            return
    else:
        study = read_study(*folders)
    noted = {plugin: note for run in study.runs for plugin, note in run["config"].get("plugins", {}).items()}
    if hint := describe_missing(noted):
        problems.print(f"{hint}; tables differ without it", markup=False)
    if study.rows.empty:
        why = "".join(f"\n  {problem}" for problem in study.problems)
        raise BadInput(f"none of {len(study.runs)} runs has a finished step yet{why}")
    chosen = names("--detector", detector), names("--cil", cil), tuple(names("--metric", metric))
    detectors = select_names("detector", chosen[0], study.rows)
    study = study.select(select_names("cil", chosen[1], study.rows), detectors)
    if study.rows.empty:
        raise BadInput(f"--cil {cil} has no rows with --detector {detector}")
    if shown is None and (chosen[0] or chosen[1]):  # names that were asked for are all shown
        choice = replace(choice, top=Top(None if chosen[0] else 16, None if chosen[1] else 8))
    choice.top.check(study.rows)
    drawn: list[Figure] = []
    if html or figures or out:
        from opencil.report.figures.drawing import figures as draw

        drawn = list(draw(study, choice))
    limit = {"csv": ALL_SHOWN, "terminal": choice.top}.get(form, shown or ALL_SHOWN)
    made = chosen_tables(
        study,
        kinds,
        compare=compare,
        statistics=ranked,
        baseline=baseline,
        extra=extra,
        top=limit,
        metrics=chosen[2],
    )
    if form == "terminal":
        show(Console(), made)
    else:
        typer.echo("\n".join(getattr(table, form)() for table in made), nl=False)
    if figures:
        for figure in drawn:
            figure.save(figures)
        say(f"{len(drawn)} figures: {figures}")
    if html:
        write_page(study, html, drawn)
        say(f"report: {html}")
    if out:
        write_report(study, out, drawn, baseline, extra, shown or ALL_SHOWN, chosen[2])
        say(f"report: {out}")
    if study.problems:
        raise OpenCILError("\n  ".join(["damaged or lost, so left out of what is shown:", *study.problems]))


def _top(text: str | None) -> "Top | None":
    """Parse ``--top``: the number of methods shown, and the names shown besides."""
    from opencil.report.order import Top

    if not (words := names("--top", text)):
        return None
    numbers = [word for word in words if word == "all" or word.isdecimal()]
    if len(numbers) > 1 or "0" in numbers:
        raise BadInput(f"--top {text} is not understood: allowed are a number or all, and names")
    named = tuple(word for word in words if word not in numbers)
    if not numbers:
        return Top(named=named)
    number = None if "all" in numbers else int(numbers[0])
    return Top(number, number, named)


def show(screen: Console, tables: "list[Table]") -> None:
    """Print tables; cut a table into several if it is too wide for a terminal."""
    wide = Console(width=10_000)

    def fits(table: "Table") -> bool:  # a pipe or a file has no width to keep to
        return not screen.is_terminal or wide.measure(table.rich()).maximum <= screen.width

    for i, table in enumerate(tables):
        screen.print(Text("\n" * (i > 0) + table.title, style="bold"))
        for j, part in enumerate(table.fitting(fits)):
            drawn = part.rich()
            width = max(wide.measure(drawn).maximum, screen.width)
            Console(width=width).print(*[""] * (j > 0), drawn, sep="\n")
        screen.print("\n".join(table.remarks), highlight=False, markup=False)
