"""``opencil report``: what stored or published runs have come to, from their rows alone."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from opencil.cli import page as cli_page
from opencil.cli.guard import guarded
from opencil.errors import BadInput, unknown

if TYPE_CHECKING:  # imported where they are used, so that --help answers at once
    from opencil.report.layout import Table
    from opencil.report.tables import Kind
    from opencil.study.study import Study


_EVERY = 10.0  # seconds between two pages of --watch
_WHY = {"ablation": "it is of detectors with labels, as ber@nter, and these runs have none"}
_NOTHING = "no detector has been evaluated yet"


@guarded
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, or of published rows; default: runs.", show_default=False),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="Tables of the paper's: main, distance (near and far), dataset, ablation; or summary.",
            show_default="summary",
            metavar="A,B|all",
        ),
    ] = None,
    form: Annotated[
        Literal["terminal", "markdown", "csv", "latex"],
        typer.Option("--format", help="What to print the tables as."),
    ] = "terminal",
    compare: Annotated[
        Literal["paper"] | None,
        typer.Option(help="Ours beside the published figures (main and distance tables, ablation)."),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Detectors ranked, with intervals of their differences.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(help="Detector that --statistics compares with; default: the best.", metavar="NAME"),
    ] = None,
    extra: Annotated[
        bool, typer.Option("--extra", help="Also FPR with OOD positive and AP with ID positive.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the tables shown to a Markdown file too.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write all there is: tables as Markdown, CSV and LaTeX, figures, the page, the rows.",
            metavar="FOLDER",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one page to explore the results in; it needs no network.", metavar="FILE"),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write the paper's figures as PNG and SVG.", metavar="FOLDER")
    ] = None,
    figure_detectors: Annotated[
        str | None,
        typer.Option(help="Detectors in figures; default: four that stand for the others.", metavar="A,B"),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Write the page again and again until all runs are done, or Ctrl-C."),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            help="Seconds between two pages of --watch.", min=0.1, show_default="10", metavar="SECONDS"
        ),
    ] = None,
) -> None:
    """Show what stored runs have come to: tables, beside the paper's figures, with statistics.

    Everything is computed from rows; nothing is trained or evaluated again.
    """
    from opencil.atomic_files import write_text
    from opencil.report.tables import tables
    from opencil.runs.reading import read_study

    folders = runs or [Path("runs")]
    if figure_detectors is not None and not (watch or html or figures or out):
        raise BadInput("--figure-detectors has no use without --html, --figures, --out or --watch")
    if every is not None and not watch:
        raise BadInput("--every has no use without --watch")
    ranked = statistics or baseline is not None
    kinds = _kinds(table) or ([] if compare or ranked else ["summary"])
    if extra and not (out or "summary" in kinds):
        raise BadInput("--extra has no use without the summary: add --table summary, or --out")
    say = partial(typer.echo, err=form != "terminal")  # not among figures that go to another program
    if watch:
        page, choice = html or folders[0] / "report.html", cli_page.choice_of(figure_detectors)
        study = cli_page.watch(lambda: read_study(*folders), page, choice, every or _EVERY, say)
        if study.rows.empty:
            return
    else:
        study = read_study(*folders)
    if study.rows.empty:
        one = len(study.runs) == 1
        raise BadInput(
            f"{'the run has no' if one else f'none of the {len(study.runs)} runs has a'} finished step yet: "
            "there is nothing to show"
        )
    drawn = cli_page.draw(study, figure_detectors) if (html and not watch) or figures or out else []
    tables_of = cache(
        lambda kind: tables(kind, study.rows, study.runs, extra)
    )  # shown and written: made once
    made = _chosen(study, tables_of, kinds, compare is not None, ranked, baseline)
    if form == "terminal":
        show(Console(), made)
    else:
        typer.echo("\n".join(one.text(form) for one in made), nl=False)
    if save:
        write_text(save, "\n".join(one.markdown() for one in made))
        say(f"report: {save}")
    for folder in filter(None, (figures, out and out / "figures")):
        for figure in drawn:
            figure.save(folder)
    if figures:
        say(f"{len(drawn)} figures: {figures}")
    if html and not watch:
        cli_page.write_page(study, html, drawn)
        say(f"report: {html}")
    if out:
        write(study, out, tables_of, baseline)
        cli_page.write_page(study, out / "index.html", drawn)
        say(f"report: {out}")


def _kinds(text: str | None) -> "list[Kind]":
    """The kinds of tables that a flag names."""
    from opencil.report.tables import KINDS

    known = {str(kind): kind for kind in KINDS}
    names = list(KINDS) if text == "all" else (text or "").replace(",", " ").split()
    if text is not None and not names:
        raise BadInput(f"--table {text!r} names nothing: allowed are {', '.join(KINDS)}, or all")
    for name in names:
        if name not in known:
            raise unknown("table", name, known)
    return [known[name] for name in dict.fromkeys(names)]


def _chosen(
    study: "Study",
    tables_of: "Callable[[Kind], list[Table]]",
    kinds: "list[Kind]",
    paper: bool,
    statistics: bool,
    baseline: str | None,
) -> "list[Table]":
    """The tables that flags ask for."""
    from opencil.report.compare import COMPARED, comparison_tables, incomparable
    from opencil.report.statistics import statistics_tables
    from opencil.report.tables import KINDS

    made: list[Table] = []
    every = set(kinds) == set(KINDS)  # that is: as far as there are any
    for kind in kinds:
        of_kind = tables_of(kind)
        if not of_kind and not every:
            raise BadInput(f"there is no table {kind!r} to show: {_WHY.get(kind, _NOTHING)}")
        made += of_kind
    if paper:
        compared: list[Kind] = [kind for kind in kinds if kind in COMPARED] or ["main"]
        beside = comparison_tables(study.rows, study.runs, compared)
        if not beside:
            raise incomparable(study.rows, study.runs)
        made += beside
    if statistics:
        ranked = statistics_tables(study.rows, study.runs, baseline)
        if not ranked:
            raise BadInput(
                "there is nothing to compare by statistics: at least two detectors that are finished on the "
                "same runs, steps and OOD datasets are needed"
            )
        made += ranked
    return made


def write(
    study: "Study", folder: Path, tables_of: "Callable[[Kind], list[Table]]", baseline: str | None = None
) -> None:
    """Write a study and every table that can be made of it into a folder."""
    from opencil.atomic_files import write_text
    from opencil.report.compare import COMPARED, comparison_tables
    from opencil.report.layout import ENDINGS
    from opencil.report.statistics import statistics_tables
    from opencil.report.tables import KINDS
    from opencil.study.study import write_study

    write_study(study, folder)
    made = [table for kind in KINDS for table in tables_of(kind)]
    made += comparison_tables(study.rows, study.runs, list(COMPARED))
    made += statistics_tables(study.rows, study.runs, baseline)
    for table in made:
        for kind, ending in ENDINGS.items():
            write_text(folder / "tables" / f"{table.file}.{ending}", table.text(kind))
    write_text(folder / "tables.md", "\n".join(table.markdown() for table in made))


def show(screen: Console, tables: "list[Table]") -> None:
    """Print tables; one that is too wide for a terminal is cut into several."""
    wide = Console(width=10_000)

    def fits(table: "Table") -> bool:  # a pipe or a file has no width to keep to
        return not screen.is_terminal or wide.measure(table.rich()).maximum <= screen.width

    for i, table in enumerate(tables):
        screen.print(Text("\n" * (i > 0) + table.title, style="bold"))
        for j, part in enumerate(table.fitting(fits)):
            drawn = part.rich()
            width = max(wide.measure(drawn).maximum, screen.width)
            Console(width=width).print(*[""] * (j > 0), drawn, sep="\n")
        screen.print("\n".join(table.notes), highlight=False, markup=False)
