"""``opencil report``: tables of stored or published runs, from their rows alone."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from opencil.errors import BadInput

if TYPE_CHECKING:
    from opencil.report.tables import Summary


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, or of published rows; default: runs.", show_default=False),
    ] = None,
    extra: Annotated[
        bool, typer.Option("--extra", help="Also FPR with OOD positive and AP with ID positive.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the tables to a Markdown file too.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the rows and all that is made of them.", metavar="FOLDER")
    ] = None,
) -> None:
    """Show the tables of stored runs, from their rows alone."""
    from opencil.report.tables import summaries
    from opencil.runs.files import write_text
    from opencil.runs.study import read_study, write_study

    study = read_study(*(runs or [Path("runs")]))
    if study.rows.empty:
        raise BadInput(
            f"none of the {len(study.runs)} runs has a finished step yet: there is nothing to show"
        )
    tables = summaries(study.rows, extra)
    show(Console(), tables)
    if save:
        write_text(save, "\n".join(table.markdown() for table in tables))
        typer.echo(f"report: {save}")
    if out:
        write_study(study, out)
        typer.echo(f"report: {out}")


def show(screen: Console, tables: "list[Summary]") -> None:
    """Print tables; one that is too wide for a terminal is cut into several."""
    wide = Console(width=10_000)
    for table in tables:
        # A pipe or a file has no width to keep to.
        for part in table.fitting(
            lambda s: not screen.is_terminal or wide.measure(s.rich()).maximum <= screen.width
        ):
            drawn = part.rich()
            Console(width=max(wide.measure(drawn).maximum, screen.width)).print(drawn)
        screen.print("\n".join(table.notes), highlight=False)


def register(top: typer.Typer, guarded: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Add ``report`` to the command line, under the guard that all commands have."""
    top.command(epilog="Example: opencil report runs --save report.md")(guarded(report))
