"""Draw a table for a terminal, and as Markdown, CSV, LaTeX and HTML."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from opencil.files import file_name
from opencil.report.order import print_cil, print_detector

#: The ending of the files of each format, which is a method of ``Table``.
ENDINGS = {"markdown": "md", "csv": "csv", "latex": "tex"}

#: Marks of the best, the second and the third of a column: the paper's types, and numbers for plain text.
_NUMBERS = ("", "¹", "²", "³")
_STYLES = ("", "bold underline", "bold", "underline")
_MARKS = "¹ best, ² second, ³ third (.*)[.]"  #: a note, and below for LaTeX, where types alone mark them
_STYLED_MARKS = r"Bold and underlined: best \1; bold: second; underlined: third."
_NUMBER = r"[+-]?\d+(\.\d*)?"  # a text of this form is no formula
_PAGE = 8  # columns of numbers with deviations in the width of a page
_COLUMN = 5  # columns in the width of a column of two
_PACKAGES = r"In the preamble: \usepackage{booktabs,graphicx}"
#: The width of what follows, or that of the text if this is less, so that no table is overfull.
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"


@dataclass(frozen=True)
class Cell:
    """A number with its deviation, or words; NaN is no number, as None."""

    value: float | None = None
    std: float | None = None
    words: str = "–"  #: where there is no number
    rank: int = 0  #: 1 to 3 marks the best of a column
    digits: int = 2
    signed: bool = False
    bounded: bool = False  #: write a p below the last digit as "< 0.0001", not as 0
    flag: str = ""  #: set behind the number; explained in the notes
    span: int = 1  #: number of covered columns; 0 for a cell that another one covers
    seeds: int = 0  #: number of seeds that it is a mean over; 0 if it is none

    def __post_init__(self) -> None:
        for name in ("value", "std"):
            if pd.isna(getattr(self, name)):
                object.__setattr__(self, name, None)

    @property
    def text(self) -> str:
        """Return the cell without its rank."""
        if self.value is None:
            return self.words
        if self.bounded and self.value < 10**-self.digits:
            return f"< {10**-self.digits:.{self.digits}f}"
        number = f"{self.value:{'+' if self.signed else ''}.{self.digits}f}"
        deviation = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{number}{deviation}{self.flag}"


def words(text: str) -> Cell:
    """Return a cell of words."""
    return Cell(words=text)


def list_note(label: str, parts: Iterable[str], separator: str = ", ") -> list[str]:
    """Return the note ``label: a, b.``, or none if there are no parts."""
    text = separator.join(parts)
    return [f"{label}: {text}."] if text else []


@dataclass(frozen=True)
class Column:
    """A column; where a table is cut, a group stays together, and columns without one are in every part."""

    name: str
    group: str = ""
    label: bool = False  #: its cells are names

    @property
    def heading(self) -> str:
        """Return group and name."""
        return f"{self.group} {self.name}".strip()


CIL, DETECTOR = Column("CIL", label=True), Column("detector", label=True)


@dataclass(frozen=True)
class Block:
    """Lines under a title, with their averages in ``foot``."""

    lines: list[list[Cell]]
    title: str = ""
    foot: list[list[Cell]] = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """Cells in blocks of lines, under a title and over notes, with a ``name`` for files."""

    name: str
    title: str
    columns: list[Column]
    blocks: list[Block]
    notes: list[str]
    missing: list[str] = field(default_factory=list)  #: sentences on unfinished, damaged or lost runs
    cil: str = ""  #: the CIL method of all its lines, if there is only one
    seeds: int = 0  #: number of seeds that were planned; 0 if its cells are no means over seeds

    @property
    def lines(self) -> list[list[Cell]]:
        """Return all lines, averages included."""
        return [line for block in self.blocks for line in [*block.lines, *block.foot]]

    @property
    def remarks(self) -> list[str]:
        """Return all sentences below it: missing runs, then notes."""
        return [*self.missing, *self.notes]

    @property
    def file(self) -> str:
        """Return its name as the name of a file, without an ending."""
        return file_name(self.name)

    def without(self, hidden: Mapping[str, Collection[str]], note: str) -> "Table":
        """Return the table with a note, and without lines and groups that ``hidden`` has by label column."""
        places = {i: hidden[c.name] for i, c in enumerate(self.columns) if c.label and c.name in hidden}
        groups = {name for names in hidden.values() for name in names}
        kept = [i for i, column in enumerate(self.columns) if column.group not in groups]
        short = self._select(kept, lambda line: all(line[i].text not in names for i, names in places.items()))
        same = len(kept) == len(self.columns) and len(short.lines) == len(self.lines)
        return self if same else replace(short, notes=[note, *self.notes])

    def _select(self, columns: list[int], shows: Callable[[list[Cell]], bool]) -> "Table":
        """Return the table with some of its columns, and with the lines of which ``shows`` is true."""

        def cut(lines: list[list[Cell]]) -> list[list[Cell]]:
            return [[line[i] for i in columns] for line in lines if shows(line)]

        blocks = [Block(cut(block.lines), block.title, cut(block.foot)) for block in self.blocks]
        blocks = [block for block in blocks if block.lines or block.foot]
        return replace(self, columns=[self.columns[i] for i in columns], blocks=blocks)

    def rich(self) -> Drawn:
        """Return the table for a terminal, without its title, which may be wider."""
        drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
        texts, group = [], ""
        for i, column in enumerate(self.columns):
            cells = [line[i] for line in self.lines]
            heading, shown = _draw_column(column, column.group not in ("", group), cells)
            drawn.add_column(heading, no_wrap=True, vertical="bottom")
            texts.append(shown)
            group = column.group
        lines = zip(*texts, strict=True)
        for block in self.blocks:
            if block.title:
                drawn.add_row(Text(block.title, style="bold italic"))
            for part in (block.lines, block.foot):
                for i, _ in enumerate(part, start=1):
                    drawn.add_row(*next(lines), end_section=i == len(part))
        return drawn

    def fitting(self, fits: Callable[["Table"], bool]) -> "list[Table]":
        """Return the table, or parts with as many groups of columns as fit, and the columns of no group."""
        if fits(self):
            return [self]

        def cut(columns: list[int]) -> "Table":  # lines without a value in these columns are left out
            numbers = [i for i in columns if not self.columns[i].label]
            return self._select(sorted(columns), lambda line: any(line[i].text for i in numbers))

        groups: dict[str, list[int]] = {}
        for i, column in enumerate(self.columns):
            groups.setdefault(column.group, []).append(i)
        common = groups.pop("", [])
        if not groups or not all(fits(cut([*common, i])) for group in groups.values() for i in group):
            groups = {"": [i for i in common if not self.columns[i].label], **groups}
            common = [i for i in common if self.columns[i].label]
        parts: list[list[int]] = []
        for group in groups.values():
            for piece in [group] if fits(cut([*common, *group])) else [[i] for i in group]:
                if parts and fits(cut([*common, *parts[-1], *piece])):
                    parts[-1] += piece
                else:
                    parts.append(list(piece))
        return [cut([*common, *part]) for part in parts if part] or [self]

    def __str__(self) -> str:
        """Return the table as a terminal without colours shows it, with title and notes."""
        page = Console(width=10_000, file=io.StringIO(), color_system=None)
        with page.capture() as drawn:
            page.print(self.rich())
        lines = map(str.rstrip, drawn.get().rstrip().splitlines())
        return "\n".join([self.title, *lines, *self.remarks])

    def html(self) -> str:
        """Return the table as HTML, for a notebook."""
        lines = [[f"{cell.text}{_NUMBERS[cell.rank]}" for cell in line] for line in self.lines]
        columns = pd.MultiIndex.from_tuples([(column.group, column.name) for column in self.columns])
        table = pd.DataFrame(lines, columns=columns).to_html(index=False, border=0)
        notes = "<br>".join(map(escape, self.remarks))
        return f"<p>{escape(self.title)}</p>\n{table}\n<p><small>{notes}</small></p>"

    _repr_html_ = html

    def markdown(self) -> str:
        """Return the table as Markdown."""
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

    def csv(self) -> str:
        """Return the table as CSV: plain numbers, with deviations in columns of their own."""
        blocks = [_csv(block.title) for block in self.blocks for _ in [*block.lines, *block.foot]]
        columns = [["block", *blocks]] if any(blocks) else []
        for i, column in enumerate(self.columns):
            cells, heading = [line[i] for line in self.lines], _csv(column.heading)
            columns.append([heading, *map(_csv_cell, cells)])
            deviations = ["" if cell.std is None else f"{cell.std:.6g}" for cell in cells]
            if any(deviations):
                columns.append([f"{heading} std", *deviations])
        if self.seeds and any(cell.seeds for line in self.lines for cell in line):
            columns.append(["seeds", *map(self._describe_seeds, self.lines)])
        if self.missing:  # on every line, so that a selection of lines carries it too
            columns.append(["missing", *[_csv(" ".join(self.missing))] * len(self.lines)])
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()

    def _describe_seeds(self, line: list[Cell]) -> str:
        """Return the number of seeds of a line's cells: ``1 of 3``, or ``1 to 3 of 3`` where they differ."""
        counts = sorted({cell.seeds for cell in line if cell.seeds})
        return f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))} of {self.seeds}" if counts else ""

    def _print_names(self) -> "Table":
        """Return the table with names of methods as papers write them; notes keep those of commands."""
        printers = {CIL: print_cil, DETECTOR: print_detector}
        of = {i: printers[column] for i, column in enumerate(self.columns) if column in printers}

        def written(lines: list[list[Cell]]) -> list[list[Cell]]:
            return [
                [replace(c, words=of[i](c.words)) if i in of else c for i, c in enumerate(line)]
                for line in lines
            ]

        blocks = [replace(b, lines=written(b.lines), foot=written(b.foot)) for b in self.blocks]
        columns = [replace(column, group=print_cil(column.group)) for column in self.columns]
        title = self.title.replace(f", {self.cil}:", f", {print_cil(self.cil)}:") if self.cil else self.title
        return replace(self, title=title, columns=columns, blocks=blocks)

    def latex(self) -> str:
        """Return the table as LaTeX floats, for the packages booktabs and graphicx.

        A table of too many columns is cut, and what is still wider than the text is scaled down to it.
        """
        whole = self._print_names()
        parts = whole.fitting(lambda part: sum(not column.label for column in part.columns) <= _PAGE)
        label, floats = re.sub("[^a-zA-Z0-9.@+-]+", "-", self.file), [f"% {_PACKAGES}"]
        for i, part in enumerate(parts, start=1):
            title = _latex(whole.title + f" ({i} of {len(parts)})" * (len(parts) > 1))
            name = "table*" if len(part.columns) > _COLUMN else "table"
            floats += [rf"\begin{{{name}}}[t]", r"\centering", rf"\caption{{{title}}}"]
            floats += [rf"\label{{tab:{label}{f'-{i}' * (i > 1)}}}", r"\small"]
            floats += [_FIT + "{" + "\n".join(part._tabular()) + "}"]
            if i == len(parts):
                notes = " ".join(_latex(re.sub(_MARKS, _STYLED_MARKS, note)) for note in self.remarks)
                floats += [r"\par\smallskip", rf"{{\footnotesize\raggedright {notes}\par}}"]
            floats += [rf"\end{{{name}}}", ""]
        return "\n".join(floats)

    def _tabular(self) -> list[str]:
        kinds = "".join("l" if column.label else "r" for column in self.columns)
        lines = [rf"\begin{{tabular}}{{@{{}}{kinds}@{{}}}}", r"\toprule"]
        if any(column.group for column in self.columns):
            heads, rules, at = list[str](), list[str](), 1
            for group, part in groupby(self.columns, key=lambda column: column.group):
                size = len(list(part))
                heads += [_latex_span(_latex(group), size)] if group else [""] * size
                rules += [rf"\cmidrule(lr){{{at}-{at + size - 1}}}"] * bool(group)
                at += size
            lines += [" & ".join(heads) + r" \\", "".join(rules)]
        lines.append(" & ".join(_latex(column.name) for column in self.columns) + r" \\")
        for block in self.blocks:
            lines.append(r"\midrule")
            if block.title:
                bold = rf"\textbf{{\textit{{{_latex(block.title)}}}}}"
                lines.append(rf"\multicolumn{{{len(self.columns)}}}{{l}}{{{bold}}} \\")
            lines += [_latex_line(cells) for cells in block.lines]
            lines += [r"\midrule"] * bool(block.lines and block.foot)
            lines += [_latex_line(cells) for cells in block.foot]
        return [*lines, r"\bottomrule", r"\end{tabular}"]


def _draw_column(column: Column, leads: bool, cells: list[Cell]) -> tuple[Text, list[Text]]:
    """Return heading and cells for a terminal; the column that ``leads`` a group names it, after a blank."""
    ranked, head = any(cell.rank for cell in cells), column.name.split(" ", 1)
    texts = [
        Text().append(cell.text, style=_STYLES[cell.rank]).append(ranked * (_NUMBERS[cell.rank] or " "))
        for cell in cells
    ]
    if column.group:
        head = [*(part if leads else "" for part in column.group.split(" ")), column.name]
    heading = [Text(line + " " * (ranked and not column.label)) for line in head]
    if not column.label:
        width = max(text.cell_len for text in [*heading, *texts]) + leads
        for text in [*heading, *texts]:
            text.pad_left(width - text.cell_len)
    return Text("\n").join(heading), texts


def _csv(text: str) -> str:
    """Return text with an apostrophe in front where a spreadsheet would compute it as a formula."""
    return f"'{text}" if re.match(r"[=+@\t\r-]", text) and not re.fullmatch(_NUMBER, text) else text


def _csv_cell(cell: Cell) -> str:
    if cell.value is not None:
        return f"{cell.value:.6g}"
    return "" if cell.words == Cell.words else _csv(cell.words)


def _markdown(text: str) -> str:
    """Return text with Markdown escaped."""
    return re.sub(r"([\\`*_$\[\]<>|&~])", r"\\\1", text)


def _markdown_cell(cell: Cell) -> str:
    return ("{}", "**{}**¹", "*{}*²", "{}³")[cell.rank].format(_markdown(cell.text))


#: Characters that LaTeX would read as commands or has no letter for, as LaTeX writes them.
LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
LATEX |= {"^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
LATEX |= {"–": "--", "−": "$-$", "†": r"$\dagger$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "≥": r"$\geq$"}
LATEX |= {"…": r"\ldots{}", "χ": r"$\chi$", "¹": "$^1$", "²": "$^2$", "³": "$^3$"}
LATEX |= {"[": "{[}"}  # after the end of a line it would be an argument
_LATEX_STYLES = ("{}", r"\underline{{\textbf{{{}}}}}", r"\textbf{{{}}}", r"\underline{{{}}}")


def _latex(text: str) -> str:
    """Return text with LaTeX escaped."""
    return "".join(LATEX.get(character, character) for character in text)


def _latex_line(cells: list[Cell]) -> str:
    parts = []
    for cell in (cell for cell in cells if cell.span):
        text = _latex(cell.text if cell.value is None else cell.text.replace("-", "−"))
        text = _LATEX_STYLES[cell.rank].format(text)
        parts.append(_latex_span(text, cell.span) if cell.span > 1 else text)
    return " & ".join(parts) + r" \\"


def _latex_span(text: str, columns: int) -> str:
    """Return text over several columns."""
    return rf"\multicolumn{{{columns}}}{{c}}{{{text}}}"
