"""Print notes, errors, lines with a mark, and tables."""

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from opencil.errors import printable

screen = Console(soft_wrap=True, highlight=False)
#: Errors and notes go here.
problems = Console(stderr=True, soft_wrap=True, highlight=False)
_MARKS = {"good": ("✓ ", "green"), "note": ("! ", "yellow"), "bad": ("✗ ", "red")}


def print_note(text: str) -> None:
    """Print a sentence beside a command's results: whole words on a terminal, one line elsewhere."""
    problems.print(printable(text), markup=False, soft_wrap=not problems.is_terminal)


def print_error(error: object) -> None:
    """Print an error's sentence."""
    problems.print(f"[red]error:[/] {escape(printable(str(error)))}", soft_wrap=not problems.is_terminal)


def print_line(text: str, mark: str = "", indent: int = 0, style: str = "") -> None:
    """Print a line unchanged, with a mark if one is named: good, note or bad."""
    screen.print(Text.assemble(" " * indent, _MARKS.get(mark, ""), (printable(text), style)))


def borderless_table(*headings: str) -> Table:
    """Return an empty table of columns side by side; they wrap at the end of the screen."""
    columns = [Column(heading, overflow="fold") for heading in headings]
    return Table(*columns, box=None, padding=(0, 2, 0, 0))


def print_table(table: Table) -> None:
    """Print a table; a pipe or a file has no width to keep to."""
    console = Console()
    (console if console.is_terminal else Console(width=10_000)).print(table)
