"""A table as text: the same cells for a terminal, as Markdown, as CSV and as LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from opencil.atomic_files import file_name

Format = Literal["markdown", "csv", "latex"]
#: What the files of each format end in.
ENDINGS: dict[Format, str] = {"markdown": "md", "csv": "csv", "latex": "tex"}

#: How the best, the second and the third of a column are marked, as the paper does it; all have a number too,
#: since a pipe shows no bold type.
_NUMBERS = ("", "¹", "²", "³")
_STYLES = ("", "bold underline", "bold", "underline")
MARKS = "¹ best, ² second, ³ third in its column."
MARKS_IN_BLOCK = "¹ best, ² second, ³ third of its CIL model."
#: The same where type is bold or underlined and numbers have no place: in LaTeX, on a narrow terminal.
_STYLED_MARKS = {
    MARKS: "Bold and underlined: best in its column; bold: second; underlined: third.",
    MARKS_IN_BLOCK: "Bold and underlined: best of its CIL model; bold: second; underlined: third.",
}
_NUMBER = r"[+-]?\d+(\.\d*)?"  # words that are one: no formula, whatever it begins with
_PAGE = 8  # columns of numbers with deviations that a page's width holds


@dataclass(frozen=True)
class Cell:
    """A number with its deviation, or words; ``rank`` 1 to 3 marks the best of a column."""

    value: float | None = None
    std: float | None = None
    words: str = "–"  #: where there is no number
    rank: int = 0
    digits: int = 2
    signed: bool = False
    bounded: bool = False  #: less than its digits can tell is "< 0.0001", not 0: a p
    flag: str = ""  #: set behind the number; the notes say what it means
    span: int = 1  #: columns it stands over; the cells after it are empty

    @property
    def text(self) -> str:
        """The cell without its rank."""
        if self.value is None:
            return self.words
        if self.bounded and self.value < 10**-self.digits:
            return f"< {10**-self.digits:.{self.digits}f}"
        number = f"{self.value:{'+' if self.signed else ''}.{self.digits}f}"
        deviation = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{number}{deviation}{self.flag}"


def words(text: str) -> Cell:
    """A cell of words."""
    return Cell(words=text)


@dataclass(frozen=True)
class Column:
    """A column; those of a ``group`` stay together where a table is cut, those of none are in every part."""

    name: str
    group: str = ""
    label: bool = False  #: it names the line

    @property
    def heading(self) -> str:
        """Group and name."""
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Block:
    """Lines under a title; those of ``foot`` sum them up."""

    lines: list[list[Cell]]
    title: str = ""
    foot: list[list[Cell]] = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """Cells in blocks of lines, under a title and over notes; ``name`` tells it from others.

    ``missing`` are sentences on what its numbers lack: runs that are not finished, damaged or lost. They
    stand before the notes, and in a column of their own where there are no notes, as in CSV.
    """

    name: str
    title: str
    columns: list[Column]
    blocks: list[Block]
    notes: list[str]
    missing: list[str] = field(default_factory=list)
    numbered: bool = True  #: on a terminal, ranks are numbers behind the values, not type alone
    cil: str = ""  #: the CIL method that all of it is of, if it is of one

    @property
    def lines(self) -> list[list[Cell]]:
        """All lines, those of averages too."""
        return [line for block in self.blocks for line in [*block.lines, *block.foot]]

    @property
    def remarks(self) -> list[str]:
        """All that is said below it: what is missing, then the notes."""
        return [*self.missing, *self.notes]

    @property
    def file(self) -> str:
        """Its name as that of a file, without an ending."""
        return file_name(self.name)

    def text(self, kind: Format) -> str:
        """The table in a format for files."""
        return {"markdown": self.markdown, "csv": self.csv, "latex": self.latex}[kind]()

    def without(self, hidden: Mapping[str, Collection[str]], note: str) -> "Table":
        """The table without some lines and groups of columns, by what heads them, and with a note on that.

        Sums below a block stay, also where no line of it does.
        """
        places = {i: hidden[c.name] for i, c in enumerate(self.columns) if c.label and c.name in hidden}
        groups = {name for names in hidden.values() for name in names}
        kept = [i for i, column in enumerate(self.columns) if column.group not in groups]

        def only(lines: list[list[Cell]]) -> list[list[Cell]]:
            shown = [line for line in lines if not any(line[i].text in names for i, names in places.items())]
            return [[line[i] for i in kept] for line in shown]

        blocks = [replace(block, lines=only(block.lines), foot=only(block.foot)) for block in self.blocks]
        blocks = [block for block in blocks if block.lines or block.foot]
        short = replace(self, columns=[self.columns[i] for i in kept], blocks=blocks)
        same = len(kept) == len(self.columns) and len(short.lines) == len(self.lines)
        return self if same else replace(short, notes=[note, *self.notes])

    # --- terminal ----------------------------------------------------------------------------------

    def styled(self) -> "Table":
        """The table for where bold and underlined type show its ranks: notes say that, and no numbers do."""
        return replace(self, numbered=False, notes=[_STYLED_MARKS.get(note, note) for note in self.notes])

    def rich(self) -> Drawn:
        """The table for a terminal, without its title, which may be wider; a gap parts its blocks."""
        drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
        by_line: list[list[Text]] = [[] for _ in self.lines]
        before = ""
        for i, column in enumerate(self.columns):
            leads, before = column.group not in ("", before), column.group
            heading, texts = _drawn_column(column, leads, [cells[i] for cells in self.lines], self.numbered)
            drawn.add_column(heading, no_wrap=True, vertical="bottom")
            for line, text in zip(by_line, texts, strict=True):
                line.append(text)
        lines = iter(by_line)
        for block in self.blocks:
            if block.title:
                drawn.add_row(Text(block.title, style="bold italic"))
            for part in (block.lines, block.foot):
                for i in range(len(part)):
                    drawn.add_row(*next(lines), end_section=i == len(part) - 1)
        return drawn

    def fitting(self, fits: Callable[["Table"], bool]) -> "list[Table]":
        """The table, or where that does not fit, several with as many groups of columns each as do.

        A group that does not even fit alone is cut into its columns. Columns of no group are in every part,
        unless one that is not a label leaves no room for others.
        """
        if fits(self):
            return [self]
        groups: dict[str, list[int]] = {}
        for i, column in enumerate(self.columns):
            groups.setdefault(column.group, []).append(i)
        common = groups.pop("", [])
        if not groups or not all(fits(self._only([*common, i])) for group in groups.values() for i in group):
            groups = {"": [i for i in common if not self.columns[i].label], **groups}
            common = [i for i in common if self.columns[i].label]
        parts: list[list[int]] = []
        for group in groups.values():
            whole = fits(self._only([*common, *group]))
            for piece in [group] if whole else [[i] for i in group]:
                if parts and fits(self._only([*common, *parts[-1], *piece])):
                    parts[-1] += piece
                else:
                    parts.append(list(piece))
        return [self._only([*common, *part]) for part in parts if part] or [self]

    def _only(self, kept: list[int]) -> "Table":
        """The table with some of its columns."""
        kept = sorted(kept)
        columns = [self.columns[i] for i in kept]
        numbers = [i for i in kept if not self.columns[i].label]

        def only(lines: list[list[Cell]]) -> list[list[Cell]]:  # those that have something to say
            return [[cells[i] for i in kept] for cells in lines if any(cells[i].text for i in numbers)]

        blocks = [replace(block, lines=only(block.lines), foot=only(block.foot)) for block in self.blocks]
        return replace(self, columns=columns, blocks=[block for block in blocks if block.lines])

    def __str__(self) -> str:
        """The table as a terminal without colours shows it, under its title and over its notes."""
        page = Console(width=10_000, file=io.StringIO(), color_system=None)
        with page.capture() as drawn:
            page.print(self.rich())
        lines = [line.rstrip() for line in drawn.get().rstrip().splitlines()]
        return "\n".join([self.title, *lines, *self.remarks])

    # --- HTML --------------------------------------------------------------------------------------

    def html(self) -> str:
        """The table as HTML, for a notebook."""
        groups = [(group, len(list(part))) for group, part in groupby(self.columns, key=lambda c: c.group)]
        lines = [f"<table><caption>{escape(self.title)}</caption><thead>"]
        if any(group for group, _ in groups):
            heads = (f'<th colspan="{wide}">{escape(group)}</th>' for group, wide in groups)
            lines.append(f"<tr>{''.join(heads)}</tr>")
        lines.append(f"<tr>{''.join(f'<th>{escape(c.name)}</th>' for c in self.columns)}</tr></thead>")
        for block in self.blocks:
            lines.append("<tbody>")
            if block.title:
                lines.append(f'<tr><th colspan="{len(self.columns)}">{escape(block.title)}</th></tr>')
            for cells in [*block.lines, *block.foot]:
                shown = (_html_cell(cell, c.label) for cell, c in zip(cells, self.columns, strict=True))
                lines.append(f"<tr>{''.join(shown)}</tr>")
            lines.append("</tbody>")
        notes = "<br>".join(map(escape, self.remarks))
        return "\n".join([*lines, "</table>", f"<p><small>{notes}</small></p>"])

    _repr_html_ = html

    # --- Markdown ----------------------------------------------------------------------------------

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [[_markdown(column.heading) for column in self.columns]]
        lines.append(["---" if column.label else "---:" for column in self.columns])
        for block in self.blocks:
            if block.title:
                lines.append([f"***{_markdown(block.title)}***", *[""] * (len(self.columns) - 1)])
            lines += [[_markdown_cell(cell) for cell in cells] for cells in block.lines]
            lines += [[f"*{text}*" if text else "" for text in map(_markdown_cell, c)] for c in block.foot]
        drawn = ["| " + " | ".join(cells) + " |" for cells in lines]
        notes = [f"- {_markdown(note)}" for note in self.remarks]
        return "\n".join([f"## {_markdown(self.title)}", "", *drawn, "", *notes, ""])

    # --- CSV ---------------------------------------------------------------------------------------

    def csv(self) -> str:
        """The table as CSV for other programs: numbers alone, deviations in columns of their own.

        A name that a spreadsheet would take for a formula has an apostrophe in front, as they have it.
        """
        deviates = [any(cells[i].std is not None for cells in self.lines) for i in range(len(self.columns))]
        titled = any(block.title for block in self.blocks)
        header = ["block"] if titled else []
        for column, std in zip(self.columns, deviates, strict=True):
            heading = _csv(column.heading)
            header += [heading, f"{heading} std"] if std else [heading]
        header += ["missing"] if self.missing else []
        rows = [header]
        for block in self.blocks:
            for cells in [*block.lines, *block.foot]:
                row = [_csv(block.title)] if titled else []
                for cell, std in zip(cells, deviates, strict=True):
                    row.append(_csv_cell(cell))
                    row += ["" if cell.std is None else f"{cell.std:.6g}"] if std else []
                # On every line, so that whoever takes some of them takes it too.
                rows.append([*row, _csv(" ".join(self.missing))] if self.missing else row)
        file = io.StringIO()
        # A name with a carriage return is quoted only where lines end with one.
        csv.writer(file, lineterminator="\r\n").writerows(rows)
        return file.getvalue().replace("\r\n", "\n")

    # --- LaTeX -------------------------------------------------------------------------------------

    def latex(self) -> str:
        """The table as LaTeX floats that need no package; one that is too wide for a page is several."""
        parts = self.fitting(lambda part: sum(not column.label for column in part.columns) <= _PAGE)
        floats = []
        for i, part in enumerate(parts):
            title = self.title + (f" ({i + 1} of {len(parts)})" if len(parts) > 1 else "")
            lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(title)}}}"]
            lines += [r"\scriptsize\setlength{\tabcolsep}{2pt}", *part._tabular()]
            if part is parts[-1]:
                notes = " ".join(map(_latex, self.styled().remarks))
                lines += [r"\par\smallskip", rf"{{\footnotesize\raggedright {notes}\par}}"]
            floats.append("\n".join([*lines, r"\end{table}", ""]))
        return "\n".join(floats)

    def _tabular(self) -> list[str]:
        groups = [(group, list(part)) for group, part in groupby(self.columns, key=lambda c: c.group)]
        # "l|rr|rr": a rule before each group.
        kinds = ["".join("l" if column.label else "r" for column in part) for _, part in groups]
        lines = [rf"\begin{{tabular}}{{{'|'.join(kinds)}}}", r"\hline"]
        if any(group for group, _ in groups):
            spans = [
                rf"\multicolumn{{{len(part)}}}{{{'c' if part is groups[-1][1] else 'c|'}}}{{{_latex(group)}}}"
                for group, part in groups
            ]
            lines.append(" & ".join(spans) + r" \\")
        lines += [" & ".join(_latex(column.name) for column in self.columns) + r" \\", r"\hline"]
        for block in self.blocks:
            if block.title:
                bold = rf"\textbf{{\textit{{{_latex(block.title)}}}}}"
                lines.append(rf"\multicolumn{{{len(self.columns)}}}{{l}}{{{bold}}} \\")
            lines += [_latex_line(cells) for cells in block.lines]
            if block.foot:
                lines += [r"\hline", *(_latex_line(cells) for cells in block.foot)]
            lines.append(r"\hline")
        return [*lines, r"\end{tabular}"]


def _drawn_column(column: Column, leads: bool, cells: list[Cell], numbered: bool) -> tuple[Text, list[Text]]:
    """Heading and cells for a terminal; ``leads`` says that the column is the first of its group.

    Numbers end at the same place, whether or not a rank follows them: so they are set by hand. A group is
    named once, and set apart by a blank.
    """
    ranked = numbered and any(cell.rank for cell in cells)
    texts = [
        Text().append(cell.text, style=_STYLES[cell.rank]).append(ranked * (_NUMBERS[cell.rank] or " "))
        for cell in cells
    ]
    if column.group:
        group = column.group.split(" ")
        head = [*(group if leads else [""] * len(group)), column.name]
    else:
        head = column.name.split(" ", 1)
    heading = [Text(line + " " * (ranked and not column.label)) for line in head]
    if not column.label:
        width = max(text.cell_len for text in [*heading, *texts]) + leads
        for text in [*heading, *texts]:
            text.pad_left(width - text.cell_len)
    return Text("\n").join(heading), texts


def _html_cell(cell: Cell, label: bool) -> str:
    """A cell of a line; the best three of a column have their number behind them."""
    marked = ("{}", "<b><u>{}</u></b>", "<b>{}</b>", "<u>{}</u>")[cell.rank]
    side = "left" if label else "right"
    return f'<td style="text-align: {side}">{marked.format(escape(cell.text))}{_NUMBERS[cell.rank]}</td>'


def _csv(text: str) -> str:
    """Text that a spreadsheet shows and does not compute."""
    return f"'{text}" if re.match(r"[=+@\t\r-]", text) and not re.fullmatch(_NUMBER, text) else text


def _csv_cell(cell: Cell) -> str:
    if cell.value is not None:
        return f"{cell.value:.6g}"
    return "" if cell.words == Cell().words else _csv(cell.words)


def _markdown(text: str) -> str:
    """Text in which nothing is markup."""
    return re.sub(r"([\\`*_$\[\]<>|&~])", r"\\\1", text)


def _markdown_cell(cell: Cell) -> str:
    text = _markdown(cell.text)
    styled = ("{}", "**{}**¹", "*{}*²", "{}³")[cell.rank]
    return styled.format(text)


#: How LaTeX writes what would be a command to it, or what it has no letter for.
LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "−": "$-$",
    "†": r"$\dagger$",
    "ρ": r"$\rho$",
    "Δ": r"$\Delta$",
    "≥": r"$\geq$",
    "…": r"\ldots{}",
    "²": "$^2$",
    "χ": r"$\chi$",
    "[": "{[}",  # behind the end of a line it would be an argument
    "¹": "$^1$",
    "³": "$^3$",
}


def _latex(text: str) -> str:
    """Text in which nothing is a command."""
    return "".join(LATEX.get(character, character) for character in text)


def _latex_line(cells: list[Cell]) -> str:
    parts, i = [], 0
    while i < len(cells):
        cell = cells[i]
        text = _latex(cell.text if cell.value is None else cell.text.replace("-", "−"))
        styled = ("{}", r"\underline{{\textbf{{{}}}}}", r"\textbf{{{}}}", r"\underline{{{}}}")[cell.rank]
        shown = styled.format(text)
        if cell.span > 1:
            last = i + cell.span == len(cells)
            shown = rf"\multicolumn{{{cell.span}}}{{{'c' if last else 'c|'}}}{{{shown}}}"
        parts.append(shown)
        i += cell.span
    return " & ".join(parts) + r" \\"
