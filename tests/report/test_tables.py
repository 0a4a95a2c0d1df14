"""The summary table: what stands in its cells, and what it says about itself."""

from collections.abc import Callable
from io import StringIO

import pandas as pd
from rich.console import Console

from opencil.report.averages import over_seeds
from opencil.report.tables import summaries

Rows = Callable[..., pd.DataFrame]
METRICS = {"auc": "AUC↑", "fpr": "FPR↓", "ap": "AP↑"}
SPLITS = ("near", "far", "all")


def test_cells_are_the_averages_in_percent(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    (summary,) = summaries(rows)
    assert summary.title == "b, 2 classes per step"
    assert summary.columns == [
        "CIL",
        "detector",
        "acc↑",
        *(f"{label} {split}" for label in METRICS.values() for split in SPLITS),
    ]
    assert [line[:2] for line in summary.lines] == [
        ["icarl", "energy"],
        ["icarl", "msp"],
        ["wa", "energy"],
        ["wa", "msp"],
    ]
    averages = over_seeds(rows).set_index(["cil", "detector", "metric", "split"])
    for cil, detector, *cells in summary.lines:
        places = [(cil, "", "accuracy", "")]
        places += [(cil, detector, metric, split) for metric in METRICS for split in SPLITS]
        expected = [averages.loc[place, ["mean", "std"]] * 100 for place in places]
        assert cells == [f"{mean:.2f} ± {std:.2f}" for mean, std in expected]


def test_one_seed_has_no_deviation_to_show(made_up: Rows) -> None:
    (summary,) = summaries(made_up(seeds=(0,)))
    assert all("±" not in cell for line in summary.lines for cell in line)
    assert "then over 4 steps, then over 1 seed." in summary.notes[0]


def test_flipped_conventions_are_extra(made_up: Rows) -> None:
    (plain,), (extra,) = summaries(made_up()), summaries(made_up(), extra=True)
    assert extra.columns[: len(plain.columns)] == plain.columns
    assert extra.columns[len(plain.columns) :] == [
        f"{label} {split}" for label in ("FPR(OOD+)↓", "AP(ID+)↑") for split in SPLITS
    ]
    assert [line[: len(plain.columns)] for line in extra.lines] == plain.lines
    assert all(len(line) == len(extra.columns) for line in extra.lines)
    assert len(extra.notes) == len(plain.notes) + 2, "every column is defined"


def test_a_summary_for_each_benchmark_and_step_size(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(k=10), made_up(benchmark="c", k=5)])
    assert [summary.title for summary in summaries(rows)] == [
        "b, 2 classes per step",
        "b, 10 classes per step",
        "c, 5 classes per step",
    ]


def test_a_split_without_datasets_is_a_dash(made_up: Rows) -> None:
    rows = made_up(seeds=(0,))
    (summary,) = summaries(rows[rows["distance"] != "near"])
    for line in summary.lines:
        cells = dict(zip(summary.columns, line, strict=True))
        assert [name for name, cell in cells.items() if cell == "–"] == ["AUC↑ near", "FPR↓ near", "AP↑ near"]
        assert cells["AUC↑ far"] == cells["AUC↑ all"]


def test_finished_methods_are_not_called_unfinished(made_up: Rows) -> None:
    (summary,) = summaries(pd.concat([made_up(), made_up(cil="wa")]))
    assert "Unfinished" not in summary.notes[0]
    assert "4 steps" in summary.notes[0]
    assert "3 seeds (± standard deviation)" in summary.notes[0]


def test_unfinished_methods_are_named(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(cil="wa", steps=2), made_up(cil="bic", seeds=(0, 1))])
    (summary,) = summaries(rows)
    assert "then over 4 steps, then over 3 seeds" in summary.notes[0]
    for name in ("wa msp (2 steps, 3 seeds)", "wa energy (2 steps", "bic msp (4 steps, 2 seeds)"):
        assert name in summary.notes[0]
    assert "icarl" not in summary.notes[0]


def test_one_seed_that_is_behind_makes_a_method_unfinished(made_up: Rows) -> None:
    rows = made_up()
    late = rows[~((rows["seed"] == 2) & (rows["step"] > 1) & (rows["detector"] == "msp"))]
    (summary,) = summaries(late)
    assert "Unfinished, so not comparable: icarl msp (1 steps, 3 seeds)." in summary.notes[0]


def test_markdown_has_a_line_for_each_method(made_up: Rows) -> None:
    (summary,) = summaries(pd.concat([made_up(), made_up(cil="wa")]))
    lines = summary.markdown().splitlines()
    assert lines[0] == "## b, 2 classes per step"
    table = [line for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[0] == summary.columns
    assert set("".join(cells[1])) == {"-", ":"}
    assert cells[2:] == summary.lines
    assert [line[2:] for line in lines if line.startswith("- ")] == summary.notes


def test_a_table_that_does_not_fit_is_cut_by_metric(made_up: Rows) -> None:
    (summary,) = summaries(made_up(), extra=True)
    assert summary.fitting(lambda _: True) == [summary]
    parts = summary.fitting(lambda s: len(s.columns) <= 6)
    labels = [*METRICS.values(), "FPR(OOD+)↓", "AP(ID+)↑"]
    assert [part.columns for part in parts] == [
        ["CIL", "detector", "acc↑", *(f"{label} {split}" for split in SPLITS)] for label in labels
    ]
    assert [part.title for part in parts] == [summary.title, "", "", "", ""]
    for i, line in enumerate(summary.lines):
        joined = parts[0].lines[i] + [cell for part in parts[1:] for cell in part.lines[i][3:]]
        assert joined == line


def test_the_terminal_table_shows_every_cell(made_up: Rows) -> None:
    (summary,) = summaries(made_up())
    screen = StringIO()
    Console(width=300, file=screen).print(summary.rich())
    text = screen.getvalue()
    assert summary.title in text
    for line in summary.lines:
        (shown,) = [drawn for drawn in text.splitlines() if line[1] in drawn.split()]
        assert shown.split() == " ".join(line).split()
