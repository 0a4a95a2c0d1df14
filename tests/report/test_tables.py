"""The tables: what stands in their cells, and what they say about themselves."""

from collections.abc import Callable
from io import StringIO

import pandas as pd
from rich.console import Console

from opencil.report.averages import continual, over_seeds
from opencil.report.tables import Summary, summaries

Rows = Callable[..., pd.DataFrame]
METRICS = {"auc": "AUC↑", "fpr": "FPR↓", "ap": "AP↑"}
SPLITS = ("near", "far", "all")


def detection(rows: pd.DataFrame, extra: bool = False) -> Summary:
    """The second of the two tables of one benchmark and k."""
    _, summary = summaries(rows, extra)
    return summary


def models(rows: pd.DataFrame) -> Summary:
    """The first of them."""
    summary, _ = summaries(rows)
    return summary


# --- OOD detection ---------------------------------------------------------------------------------


def test_cells_are_the_averages_in_percent(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    summary = detection(rows)
    assert summary.title == "b, 2 classes per step: OOD detection"
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
    summary = detection(made_up(seeds=(0,)))
    assert all("±" not in cell for line in summary.lines for cell in line)
    assert "then over 4 steps, then over 1 seed." in summary.notes[0]


def test_flipped_conventions_are_extra(made_up: Rows) -> None:
    plain, extra = detection(made_up()), detection(made_up(), extra=True)
    assert extra.columns[: len(plain.columns)] == plain.columns
    assert extra.columns[len(plain.columns) :] == [
        f"{label} {split}" for label in ("FPR(OOD+)↓", "AP(ID+)↑") for split in SPLITS
    ]
    assert [line[: len(plain.columns)] for line in extra.lines] == plain.lines
    assert all(len(line) == len(extra.columns) for line in extra.lines)
    assert len(extra.notes) == len(plain.notes) + 2, "every column is defined"


def test_rows_of_one_task_and_metrics_that_begin_later_have_no_say(made_up: Rows) -> None:
    rows = made_up()
    plain = rows[(rows["task"] == 0) & (rows["metric"] != "auc_old")]
    assert len(plain) < len(rows)
    assert detection(rows) == detection(plain)


def test_two_tables_for_each_benchmark_and_step_size(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(k=10), made_up(benchmark="c", k=5)])
    assert [summary.title for summary in summaries(rows)] == [
        f"{part}: {about}"
        for part in ("b, 2 classes per step", "b, 10 classes per step", "c, 5 classes per step")
        for about in ("accuracy", "OOD detection")
    ]


def test_a_split_without_datasets_is_a_dash(made_up: Rows) -> None:
    rows = made_up(seeds=(0,))
    summary = detection(rows[rows["distance"] != "near"])
    for line in summary.lines:
        cells = dict(zip(summary.columns, line, strict=True))
        assert [name for name, cell in cells.items() if cell == "–"] == ["AUC↑ near", "FPR↓ near", "AP↑ near"]
        assert cells["AUC↑ far"] == cells["AUC↑ all"]


def test_finished_methods_are_not_called_unfinished(made_up: Rows) -> None:
    summary = detection(pd.concat([made_up(), made_up(cil="wa")]))
    assert "Unfinished" not in summary.notes[0]
    assert "4 steps" in summary.notes[0]
    assert "3 seeds (± standard deviation)" in summary.notes[0]


def test_unfinished_methods_are_named(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(cil="wa", steps=2), made_up(cil="bic", seeds=(0, 1))])
    summary = detection(rows)
    assert "then over 4 steps, then over 3 seeds" in summary.notes[0]
    for name in ("wa msp (2 steps, 3 seeds)", "wa energy (2 steps", "bic msp (4 steps, 2 seeds)"):
        assert name in summary.notes[0]
    assert "icarl" not in summary.notes[0]


def test_one_seed_that_is_behind_makes_a_method_unfinished(made_up: Rows) -> None:
    rows = made_up()
    late = rows[~((rows["seed"] == 2) & (rows["step"] > 1) & (rows["detector"] == "msp"))]
    summary = detection(late)
    assert "Unfinished, so not comparable: icarl msp (1 steps, 3 seeds)." in summary.notes[0]


def test_markdown_has_a_line_for_each_method(made_up: Rows) -> None:
    summary = detection(pd.concat([made_up(), made_up(cil="wa")]))
    lines = summary.markdown().splitlines()
    assert lines[0] == "## b, 2 classes per step: OOD detection"
    table = [line for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[0] == summary.columns
    assert set("".join(cells[1])) == {"-", ":"}
    assert cells[2:] == summary.lines
    assert [line[2:] for line in lines if line.startswith("- ")] == summary.notes


def test_a_table_that_does_not_fit_is_cut_by_metric(made_up: Rows) -> None:
    summary = detection(made_up(), extra=True)
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
    summary = detection(made_up())
    screen = StringIO()
    Console(width=300, file=screen).print(summary.rich())
    text = screen.getvalue()
    assert summary.title in text
    for line in summary.lines:
        (shown,) = [drawn for drawn in text.splitlines() if line[1] in drawn.split()]
        assert shown.split() == " ".join(line).split()


# --- accuracy --------------------------------------------------------------------------------------

CONTINUAL = ["average accuracy", "last accuracy", "forgetting", "backward transfer"]


def test_the_accuracy_table_has_a_line_for_each_method(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    summary = models(rows)
    assert summary.title == "b, 2 classes per step: accuracy"
    assert summary.columns == ["CIL", *CONTINUAL]
    assert [line[0] for line in summary.lines] == ["icarl", "wa"]
    averages = continual(rows).set_index(["cil", "metric"])
    for cil, *cells in summary.lines:
        expected = [averages.loc[(cil, metric), ["mean", "std"]] * 100 for metric in CONTINUAL]
        assert cells == [f"{mean:.2f} ± {std:.2f}" for mean, std in expected]
    for word in ("Average", "Forgetting", "Backward transfer"):
        assert word in summary.notes[0]


def test_an_accuracy_that_one_method_has_is_a_dash_for_the_others(made_up: Rows) -> None:
    rows = pd.concat([made_up(others=("accuracy_nearest_mean",)), made_up(cil="wa")])
    summary = models(rows)
    assert summary.columns == ["CIL", *CONTINUAL, "average nearest mean"]
    own, other = summary.lines
    mean, std = continual(rows).set_index("metric").loc["average accuracy_nearest_mean", ["mean", "std"]]
    assert own[-1] == f"{100 * mean:.2f} ± {100 * std:.2f}"
    assert other[-1] == "–"
    assert "–" not in own + other[:-1]


def test_a_single_step_has_no_column_of_forgetting(made_up: Rows) -> None:
    summary = models(made_up(steps=1, seeds=(0,)))
    assert summary.columns == ["CIL", "average accuracy", "last accuracy"]
    assert "±" not in "".join(summary.lines[0])


def test_the_accuracy_table_is_not_cut(made_up: Rows) -> None:
    summary = models(made_up())
    assert summary.fitting(lambda _: False) == [summary]


def test_the_accuracy_table_in_markdown(made_up: Rows) -> None:
    summary = models(made_up(seeds=(0,)))
    lines = summary.markdown().splitlines()
    assert lines[0] == "## b, 2 classes per step: accuracy"
    assert lines[3].split("|")[1:3] == [" --- ", " ---: "], "one column of names"
    assert [cell.strip() for cell in lines[4].strip("|").split("|")] == summary.lines[0]
