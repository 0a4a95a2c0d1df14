"""One table in four formats: the same cells, nothing that is markup, commands or a path."""

import csv
import io
import re
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from opencil.report.layout import Block, Cell, Column, Table, words

NASTY = r"a|b*c_d<e>&f%g$h#i{j}k~l^m\n[red]o`p"


def table() -> Table:
    columns = [Column("detector", label=True), Column("acc")]
    columns += [Column(name, group) for group in ("icarl", "wa") for name in ("AUC↑", "FPR↓")]
    covered = Cell(words="", span=0)
    first = [words("CIL"), Cell(), Cell(60.0, span=2), covered, Cell(70.0, span=2), covered]
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


def test_a_table_that_does_not_fit_is_cut_between_groups() -> None:
    parts = table().fitting(lambda part: len(part.columns) <= 4)
    assert [[c.heading for c in part.columns] for part in parts] == [
        ["detector", "acc", "icarl AUC↑", "icarl FPR↓"],
        ["detector", "acc", "wa AUC↑", "wa FPR↓"],
    ]
    for i, line in enumerate(table().lines):
        assert parts[0].lines[i] + parts[1].lines[i][2:] == line
    assert [block.title for block in parts[1].blocks] == ["", "post-hoc"]


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


def test_csv_has_numbers_alone() -> None:
    header, *lines = csv.reader(io.StringIO(table().csv()))
    assert header == [
        "block",
        "detector",
        "acc",
        "icarl AUC↑",
        "icarl AUC↑ std",
        "icarl FPR↓",
        "wa AUC↑",
        "wa FPR↓",
    ]
    assert lines == [
        ["", "CIL", "", "60", "", "", "70", ""],
        ["post-hoc", "msp", "1", "67.771", "0.25", "88", "70", "-1"],
        ["post-hoc", "energy", "2", "66.5", "", "", "71", "2.5"],
        ["post-hoc", "Average", "5", "5", "", "5", "5", "5"],
    ]


@pytest.mark.parametrize("name", ["=1+1", "+SUM(A1)", "-2+3", "@cmd", "\t=1", '=HYPERLINK("x", "y")'])
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


def check_latex(text: str) -> None:
    """Check environments, braces and special characters, as a compiler would."""
    comment, _, text = text.partition("\n")
    assert comment.startswith("% ")
    opened = list[str]()
    for word, name in re.findall(r"\\(begin|end){(.*?)}", text):
        assert word == "begin" or opened.pop() == name
        opened += [name] * (word == "begin")
    assert not opened
    without = re.sub(r"\\[&%$#_{}]", "", text.replace("\\\\", "\n"))
    assert without.count("$") % 2 == 0
    assert not re.search(r"[%#~]|(?<!\$)[_^]", without)
    depths = list(accumulate({"{": 1, "}": -1}.get(character, 0) for character in without))
    assert min(depths) == depths[-1] == 0
    assert not re.search(r"\\\\\n\s*\[", text), "it would be an argument of the line's end"


def test_latex() -> None:
    text = replace(table(), name="main of-k2").latex()
    check_latex(text)
    (label,) = re.findall(r"\\label{tab:(.*?)}", text)
    assert re.fullmatch("main-of-k2-[0-9a-f]+", label)
    assert r"\begin{tabular}{@{}lrrrrr@{}}" in text
    assert r" &  & \multicolumn{2}{c}{iCaRL} & \multicolumn{2}{c}{WA} \\" in text
    assert r"\cmidrule(lr){3-4}\cmidrule(lr){5-6}" in text
    assert text.index(r"\toprule") < text.index(r"\cmidrule") < text.index(r"\bottomrule")
    assert not set("|") & set(text)
    assert r"CIL & -- & \multicolumn{2}{c}{60.00} & \multicolumn{2}{c}{70.00} \\" in text
    msp = r"MSP & 1.00 & \underline{\textbf{67.77 $\pm$ 0.25}} & 88.00 & 70.00$\dagger$ & $-$1.00 \\"
    assert msp in text
    assert r"Energy & 2.00 & \textbf{66.50} & -- & \underline{71.00} & +2.50 \\" in text
    assert text.index("Energy") < text.index("Average")
    assert r"\caption{a title}" in text
    assert "a note" in text


def test_no_table_of_latex_is_wider_than_the_text() -> None:
    """Many columns are cut, and each tabular stands in a box that is at most as wide as a line."""
    columns = [Column("detector", label=True), *(Column(str(i), "icarl") for i in range(30))]
    lines = [[words("msp"), *[Cell(12.34, 5.67)] * 30]]
    text = Table("t", "t", columns, [Block(lines)], []).latex()
    check_latex(text)
    kinds = re.findall(r"\\begin{tabular}{@{}l(r+)@{}}", text)
    assert sum(map(len, kinds)) == 30
    assert max(map(len, kinds)) <= 8
    box = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}"
    assert text.count(box) == text.count("end{tabular}}") == len(kinds)
    labels = re.findall(r"\\label{(.*?)}", text)
    assert len(set(labels)) == len(kinds)


@pytest.mark.parametrize(("name", "printed"), [("icarl", "iCaRL"), ("wa@mine", "WA@mine"), ("foo", "foo")])
def test_latex_has_the_names_of_papers(name: str, printed: str) -> None:
    """Notes, CSV and other formats keep the names that commands take."""
    columns = [Column("detector", label=True), Column("AUC↑", name)]
    made = Table("t", f"b, {name}: x", columns, [Block([[words("fdbd@a"), Cell(1.0)]])], [], cil=name)
    assert f"b, {printed}: x" in made.latex()
    assert rf"\multicolumn{{1}}{{c}}{{{printed}}}" in made.latex()
    assert "fDBD@a & 1.00" in made.latex()
    assert name in made.csv()
    assert "fdbd@a" in made.csv()


def test_csv_has_the_number_of_seeds_of_each_line() -> None:
    lines = [
        [words("msp"), Cell(1.0, 0.1, seeds=3), Cell(2.0, seeds=3)],
        [words("ash"), Cell(1.0, seeds=1), Cell(2.0, 0.1, seeds=3)],
        [words("none"), Cell(), Cell()],
    ]
    columns = [Column("detector", label=True), Column("a"), Column("b")]
    head, *saved = csv.reader(io.StringIO(Table("t", "t", columns, [Block(lines)], [], seeds=3).csv()))
    assert head[-1] == "seeds"
    assert [line[-1] for line in saved] == ["3 of 3", "1 to 3 of 3", ""]


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1))
def test_any_name_in_latex(name: str) -> None:
    check_latex(Table("t", name, [Column(name, label=True)], [Block([[words(name)]], name)], [name]).latex())


@given(st.text(min_size=1))
def test_no_name_leads_out_of_a_folder(name: str) -> None:
    file = replace(table(), name=name).file
    assert not set("/\\:\0\n.") & set(file)
    assert 0 < len(file.encode()) < 240  # with an ending, and one while it is written, below 255
