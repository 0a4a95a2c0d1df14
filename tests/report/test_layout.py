"""One table in four formats: the same cells, nothing that is markup, commands or a path."""

import csv
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from opencil.report.layout import MARKS, Block, Cell, Column, Table, words

NASTY = r"a|b*c_d<e>&f%g$h#i{j}k~l^m\n[red]o`p"


def table() -> Table:
    columns = [Column("detector", label=True), Column("acc")]
    columns += [Column(name, group) for group in ("icarl", "wa") for name in ("AUC↑", "FPR↓")]
    first = [words("CIL"), Cell(), Cell(60.0, span=2), words(""), Cell(70.0, span=2), words("")]
    lines = [
        [
            words("msp"),
            Cell(1.0),
            Cell(67.771, 0.25, rank=1),
            Cell(88.0),
            Cell(70.0, flag="†"),
            Cell(-1, signed=True),
        ],
        [words("energy"), Cell(2.0), Cell(66.5, rank=2), Cell(), Cell(71.0, rank=3), Cell(2.5, signed=True)],
    ]
    average = [words("Average"), *[Cell(5.0)] * 5]
    return Table("t", "a title", columns, [Block([first]), Block(lines, "post-hoc", [average])], ["a note"])


def drawn(shown: Table, width: int = 200) -> list[str]:
    screen = Console(width=width, file=io.StringIO())
    screen.print(shown.rich())
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(), "–"),
        (words("msp"), "msp"),
        (Cell(67.776), "67.78"),
        (Cell(67.776, 0.254), "67.78 ± 0.25"),
        (Cell(1.5, signed=True), "+1.50"),
        (Cell(-1.5, signed=True), "-1.50"),
        (Cell(16, digits=0), "16"),
        (Cell(67.776, 0.254, flag="†"), "67.78 ± 0.25†"),
    ],
)
def test_a_cell_as_text(cell: Cell, text: str) -> None:
    assert cell.text == text


# --- terminal --------------------------------------------------------------------------------------


def test_the_terminal_shows_every_cell_and_names_a_group_once() -> None:
    lines = drawn(table())
    assert lines[0].split() == ["icarl", "wa"]
    assert lines[1].split() == ["detector", "acc", "AUC↑", "FPR↓", "AUC↑", "FPR↓"]
    cells = [line.split() for line in lines[3:] if line]
    assert cells == [
        ["CIL", "–", "60.00", "70.00"],
        ["post-hoc"],
        ["msp", "1.00", "67.77", "±", "0.25¹", "88.00", "70.00†", "-1.00"],
        ["energy", "2.00", "66.50²", "–", "71.00³", "+2.50"],
        ["Average", "5.00", "5.00", "5.00", "5.00", "5.00"],
    ]


def test_numbers_of_a_column_stand_under_each_other() -> None:
    """A rank behind a number does not push it out of line."""
    lines = [line for line in drawn(table()) if line.split()[:1] in (["energy"], ["Average"])]
    assert lines[0].index("66.50²") + 5 == lines[1].index("5.00", lines[1].index("5.00") + 1) + 4


def test_ranks_have_styles_on_a_terminal() -> None:
    screen = Console(
        width=200, file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False
    )
    screen.print(table().rich())
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    for number, style in (("67.77 ± 0.25", "1;4"), ("66.50", "1"), ("71.00", "4")):
        assert f"\x1b[{style}m{number}\x1b[0m" in text


def test_blocks_stand_apart() -> None:
    columns = [Column("CIL", label=True), Column("x")]
    blocks = [Block([[words(cil), Cell(1.0)], [words(cil), Cell(2.0)]]) for cil in ("icarl", "wa")]
    lines = drawn(Table("t", "t", columns, blocks, []))
    assert [line.split()[:1] for line in lines[2:]] == [["icarl"], ["icarl"], [], ["wa"], ["wa"]]


def test_styled_ranks_have_no_numbers() -> None:
    ranked = replace(table(), notes=[MARKS, "a note"]).styled()
    assert not set("¹²³") & set("".join(drawn(ranked)))
    assert len(drawn(ranked)[2]) == len(drawn(table())[2]) - 2, "two columns have ranks"
    assert ranked.notes == [
        "Bold and underlined: best in its column; bold: second; underlined: third.",
        "a note",
    ]


def test_a_table_that_fits_is_whole() -> None:
    assert table().fitting(lambda _: True) == [table()]


def test_a_table_that_does_not_fit_is_cut_between_groups() -> None:
    parts = table().fitting(lambda part: len(part.columns) <= 4)
    assert [[c.heading for c in part.columns] for part in parts] == [
        ["detector", "acc", "icarl AUC↑", "icarl FPR↓"],
        ["detector", "acc", "wa AUC↑", "wa FPR↓"],
    ]
    for i, line in enumerate(table().lines):
        assert parts[0].lines[i] + parts[1].lines[i][2:] == line
    assert [block.title for block in parts[1].blocks] == ["", "post-hoc"]


def test_a_part_leaves_out_lines_that_are_empty_there() -> None:
    columns = [Column("n", label=True), Column("x", "g"), Column("x", "h")]
    blocks = [Block([[words("top"), Cell(1.0), words("")]]), Block([[words("a"), Cell(2.0), Cell()]], "b")]
    one, other = Table("t", "t", columns, blocks, []).fitting(lambda part: len(part.columns) < 3)
    assert [cells[0].text for cells in one.lines] == ["top", "a"]
    assert [cells[0].text for cells in other.lines] == ["a"], "a dash says something"


def test_as_many_groups_as_fit_stay_together() -> None:
    groups = [f"g{i}" for i in range(5)]
    wide = Table("t", "t", [Column("x", g) for g in groups], [Block([[Cell(1.0)] * 5])], [])
    parts = wide.fitting(lambda part: len(part.columns) <= 2)
    assert [[c.group for c in part.columns] for part in parts] == [["g0", "g1"], ["g2", "g3"], ["g4"]]


def test_one_column_is_not_cut() -> None:
    plain = Table("t", "t", [Column("a", label=True), Column("b")], [Block([[words("x"), Cell(1.0)]])], [])
    assert plain.fitting(lambda _: False) == [plain]


def test_without_groups_a_table_is_cut_between_columns() -> None:
    columns = [Column("n", label=True), *(Column(f"c{i}") for i in range(5))]
    plain = Table("t", "t", columns, [Block([[words("x"), *map(Cell, range(5))]])], [])
    parts = plain.fitting(lambda part: len(part.columns) <= 3)
    assert [[c.name for c in part.columns] for part in parts] == [
        ["n", "c0", "c1"],
        ["n", "c2", "c3"],
        ["n", "c4"],
    ]
    assert [cell.text for cell in parts[1].lines[0]] == ["x", "2.00", "3.00"]


def test_a_group_that_does_not_fit_alone_is_cut_too() -> None:
    parts = table().fitting(lambda part: len(part.columns) <= 3)
    assert [[c.heading for c in part.columns] for part in parts] == [
        ["detector", "acc", "icarl AUC↑"],
        ["detector", "acc", "icarl FPR↓"],
        ["detector", "acc", "wa AUC↑"],
        ["detector", "acc", "wa FPR↓"],
    ]


def test_a_number_of_no_group_makes_room_where_there_is_none() -> None:
    parts = table().fitting(lambda part: len(part.columns) <= 2)
    assert [[c.heading for c in part.columns] for part in parts] == [
        ["detector", name] for name in ("acc", "icarl AUC↑", "icarl FPR↓", "wa AUC↑", "wa FPR↓")
    ]


# --- Markdown --------------------------------------------------------------------------------------


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown() -> None:
    lines = table().markdown().splitlines()
    assert lines[:2] == ["## a title", ""]
    grid = [cells_of(line) for line in lines if line.startswith("|")]
    assert grid == [
        ["detector", "acc", "icarl AUC↑", "icarl FPR↓", "wa AUC↑", "wa FPR↓"],
        ["---", "---:", "---:", "---:", "---:", "---:"],
        ["CIL", "–", "60.00", "", "70.00", ""],
        ["***post-hoc***", "", "", "", "", ""],
        ["msp", "1.00", "**67.77 ± 0.25**¹", "88.00", "70.00†", "-1.00"],
        ["energy", "2.00", "*66.50*²", "–", "71.00³", "+2.50"],
        ["*Average*", "*5.00*", "*5.00*", "*5.00*", "*5.00*", "*5.00*"],
    ]
    assert lines[-1] == "- a note"


def test_names_are_not_markdown() -> None:
    shown = Table("t", NASTY, [Column(NASTY, label=True)], [Block([[words(NASTY)]], NASTY)], [NASTY])
    for line in shown.markdown().splitlines():
        text = line.removeprefix("## ").removeprefix("- ").strip("| ").removeprefix("***").removesuffix("***")
        if text and text != "---":
            assert re.findall(r"(?<!\\)[|*_$<>&~`\[\]]", text) == []
            assert re.sub(r"\\(.)", r"\1", text) == NASTY


# --- CSV -------------------------------------------------------------------------------------------


def test_csv_has_numbers_alone() -> None:
    header, *lines = csv.reader(io.StringIO(table().csv()))
    expected = [
        "block",
        "detector",
        "acc",
        "icarl AUC↑",
        "icarl AUC↑ std",
        "icarl FPR↓",
        "wa AUC↑",
        "wa FPR↓",
    ]
    assert header == expected
    assert lines == [
        ["", "CIL", "", "60", "", "", "70", ""],
        ["post-hoc", "msp", "1", "67.771", "0.25", "88", "70", "-1"],
        ["post-hoc", "energy", "2", "66.5", "", "", "71", "2.5"],
        ["post-hoc", "Average", "5", "5", "", "5", "5", "5"],
    ]


@pytest.mark.parametrize("name", ["=1+1", "+SUM(A1)", "-2+3", "@cmd", "\t=1", "\r=1", '=HYPERLINK("x", "y")'])
def test_csv_has_no_formulas(name: str) -> None:
    """Names, headings and titles alike; numbers stay, and so does every other format."""
    lines = [[words(name), Cell(-1.5, 0.1)], [words("-1.5"), Cell()]]
    made = Table("t", "t", [Column(name, label=True), Column("n", name.strip())], [Block(lines, name)], [])
    saved = list(csv.reader(io.StringIO(made.csv(), newline="")))
    assert saved == [
        [
            "block",
            *(f"'{heading}" for heading in (name.strip(), f"{name.strip()} n", f"{name.strip()} n std")),
        ],
        [f"'{name}", f"'{name}", "-1.5", "0.1"],
        [f"'{name}", "-1.5", "", ""],
    ]
    assert "'" not in made.markdown() + made.latex() + str(made)


def test_csv_keeps_any_name() -> None:
    name = 'a,b "c"\nd'
    plain = Table("t", "t", [Column("n", label=True)], [Block([[words(name)]])], [])
    assert list(csv.reader(io.StringIO(plain.csv()))) == [["n"], [name]]


# --- LaTeX -----------------------------------------------------------------------------------------

COMMANDS = {"begin", "end", "centering", "caption", "hline", "multicolumn", "textbf", "textit", "underline"}
COMMANDS |= {"footnotesize", "par", "smallskip", "pm", "uparrow", "downarrow", "dagger", "textbackslash"}
COMMANDS |= {
    "scriptsize",
    "setlength",
    "tabcolsep",
    "raggedright",
    "textasciitilde",
    "textasciicircum",
    "textless",
    "textgreater",
    "textbar",
}


def check_latex(text: str) -> None:
    """What a compiler would stumble over: braces, maths, unknown commands, special characters, columns."""
    bare = text.replace("\\\\", "\n")
    assert set(re.findall(r"\\([A-Za-z]+)", bare)) <= COMMANDS
    without = re.sub(r"\\[&%$#_{}]", "", bare)
    assert without.count("$") % 2 == 0
    assert not re.search(r"[%#~]|(?<!\$)[_^]", without)
    depth = 0
    for character in without:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    for part in text.split(r"\begin{table}")[1:]:
        check_tabular(part)


def check_tabular(text: str) -> None:
    kinds = re.search(r"\\begin\{tabular\}\{([lr|]+)\}", text)
    assert kinds
    width = len(kinds[1].replace("|", ""))
    body = text[kinds.end() : text.index(r"\end{tabular}")]
    rows = [row.replace(r"\hline", "").strip() for row in re.split(r"(?<!\\)\\\\", body)]
    for row in filter(None, rows):
        spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans) == width
        assert not row.startswith("["), "it would be an argument of the line's end"


def test_latex() -> None:
    text = table().latex()
    check_latex(text)
    assert r"\begin{tabular}{lr|rr|rr}" in text
    assert r"\multicolumn{2}{c|}{} & \multicolumn{2}{c|}{icarl} & \multicolumn{2}{c}{wa} \\" in text
    assert r"CIL & -- & \multicolumn{2}{c|}{60.00} & \multicolumn{2}{c}{70.00} \\" in text
    msp = r"msp & 1.00 & \underline{\textbf{67.77 $\pm$ 0.25}} & 88.00 & 70.00$\dagger$ & $-$1.00 \\"
    assert msp in text
    assert r"energy & 2.00 & \textbf{66.50} & -- & \underline{71.00} & +2.50 \\" in text
    assert text.index("energy") < text.index("Average")
    assert r"\caption{a title}" in text
    assert "a note" in text


def test_a_table_too_wide_for_a_page_is_several_floats() -> None:
    columns = [
        Column("n", label=True),
        *(Column(name, f"g{i}") for i in range(4) for name in ("a", "b", "c")),
    ]
    line = [words("x"), *(Cell(float(i)) for i in range(12))]
    text = Table("t", "wide", columns, [Block([line])], [MARKS]).latex()
    check_latex(text)
    assert re.findall(r"wide \((\d of \d)\)", text) == ["1 of 2", "2 of 2"]
    assert text.count("best in its column") == 1
    assert "¹" not in text, "LaTeX marks by type alone"
    assert [f"{i}.00" for i in range(12)] == re.findall(r"\d+\.00", text)


def test_names_are_not_commands() -> None:
    lines = [[words(NASTY), Cell(1.0)], [words("[x"), Cell(1.0)]]
    check_latex(
        Table("t", NASTY, [Column(NASTY, label=True), Column("x", NASTY)], [Block(lines)], [NASTY]).latex()
    )


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1))
def test_any_name_in_latex(name: str) -> None:
    check_latex(Table("t", name, [Column(name, label=True)], [Block([[words(name)]], name)], [name]).latex())


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["main-cifar100-k10", "ablation-ber-icarl@x-b_c-k2"])
def test_plain_names_are_those_of_files(name: str) -> None:
    assert replace(table(), name=name).file == name


@given(st.text(min_size=1))
def test_no_name_leads_out_of_a_folder(name: str) -> None:
    file = replace(table(), name=name).file
    assert not set("/\\:\0\n.") & set(file)
    assert 0 < len(file.encode()) < 240  # with an ending, and one while it is written, below 255
