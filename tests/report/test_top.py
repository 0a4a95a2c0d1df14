"""Of many methods people are shown the best; what is computed, and what CSV has, is of all."""

from pathlib import Path

import pandas as pd
import pytest

from opencil import BadInput
from opencil.report.figures.chosen import Choice, Curves, Points, contents
from opencil.report.order import method
from opencil.report.tables import tables
from opencil.report.top import ALL, Top, shortened
from opencil.report.writing import chosen_tables, write_report
from opencil.study.study import Study


def naive(rows: pd.DataFrame, kind: str) -> list[str]:
    """Names without labels from the best to the worst, by their mean AUC."""
    found = rows[(rows["metric"] == "auc") & ~rows[kind].str.contains("@")]
    means = {name: part["value"].mean() for name, part in found.groupby(kind)}
    return sorted(means, key=lambda name: -means[name])


def test_the_best_are_kept(many: pd.DataFrame) -> None:
    assert Top(5, 3).kept(many, "cil") == set(naive(many, "cil")[:3]) == {"c18", "c17", "c16"}
    assert Top(5, 3).kept(many, "detector") == set(naive(many, "detector")[:5])
    assert ALL.kept(many, "cil") == Top(41, 19).kept(many, "cil") == set(many["cil"])
    assert ALL.kept(many, "detector") == Top(41, 19).kept(many, "detector") == set(many["detector"]) - {""}


def test_those_that_are_named_are_kept_too(many: pd.DataFrame) -> None:
    top = Top(2, 2, ("c00", "ash"))
    assert top.kept(many, "cil") == {"c18", "c17", "c00"}
    assert top.kept(many, "detector") == {"z", "y", "ash"}
    assert top.told(many) == "3 of 41 detectors and 3 of 19 CIL methods"


def test_a_name_with_a_label_goes_with_its_method(many: pd.DataFrame) -> None:
    assert not {"ber", "ber@nter"} & Top(2, 2).kept(many, "detector")
    for name in ("ber", "ber@nter"):
        assert {"ber", "ber@nter"} <= Top(2, 2, (name,)).kept(many, "detector")
    alone = many[many["detector"] != "ber"]  # then the variant stands for it
    assert Top(3, 2).kept(alone, "detector") == {"z", "y", "ber@nter"}


def test_what_is_not_finished_gains_nothing_by_it(many: pd.DataFrame) -> None:
    """Early steps are the easy ones, and some models are easy."""
    worst = naive(many, "detector")[-1]
    easy = (many["detector"] != worst) | ((many["step"] == 1) & (many["cil"] == "c18"))
    assert naive(many[easy], "detector")[0] == worst
    assert worst not in Top(40, None).kept(many[easy], "detector")
    early = many[(many["cil"] != "c00") | (many["step"] == 1)]
    assert "c00" not in Top(None, 18).kept(early, "cil")


def test_rows_without_auc_are_shown_whole(many: pd.DataFrame) -> None:
    assert Top(2, 2).kept(many[many["metric"] == "fpr"], "detector") == set(many["detector"]) - {""}


def test_a_name_that_no_row_has_is_refused(many: pd.DataFrame) -> None:
    Top(named=("ber@nter", "c00")).check(many)
    with pytest.raises(BadInput, match=r"'enrgy' is unknown.*did you mean 'energy'"):
        Top(named=("enrgy",)).check(many)


@pytest.mark.parametrize("kind", ["main", "distance"])
def test_lines_and_columns_are_those_of_the_whole_table(many: pd.DataFrame, kind: str) -> None:
    whole = tables(kind, Study(many))[0]  # type: ignore[arg-type]
    (short,) = shortened([whole], many, Top(4, 2))
    names = {line[0].text: line for line in whole.lines}
    kept = [i for i, column in enumerate(whole.columns) if column.group in ("", "c17", "c18")]
    assert [column.heading for column in short.columns] == [whole.columns[i].heading for i in kept]
    shown = [line[0].text for line in short.lines]
    assert {name for name in shown if name in set(many["detector"])} == set(naive(many, "detector")[:4])
    assert {"CIL accuracy", "Average", "Average (All)"} < set(shown), "which are of all"
    for line in short.lines:
        if line[0].text != "Average":  # there are several
            assert line == [names[line[0].text][i] for i in kept]
    assert "4 of 41 detectors and 2 of 19 CIL methods" in short.notes[0]
    assert short.notes[1:] == whole.notes


def test_a_table_of_cil_methods_alone_stays(many: pd.DataFrame) -> None:
    accuracy, summary = chosen_tables(Study(many), ["summary"], top=Top(4, 2))
    assert len(accuracy.lines) == 19
    assert {line[0].text for line in summary.lines} == {"c17", "c18"}
    assert len(summary.lines) == 8
    assert max(cell.rank for line in summary.lines for cell in line) == 3


def test_tables_of_one_method_are_those_of_the_best(many: pd.DataFrame) -> None:
    made = chosen_tables(Study(many), ["dataset"], top=Top(4, 2))
    assert [table.cil for table in made] == ["c17", "c18"]


def test_statistics_are_shortened_and_ablations_are_not(many: pd.DataFrame) -> None:
    *ablations, auc, fpr = chosen_tables(Study(many), ["ablation"], statistics=True, top=Top(4, 2))
    assert {line[0].text for line in auc.lines} == {line[0].text for line in fpr.lines}
    assert len(auc.lines) == 4
    assert len(ablations) == 19
    assert "ber@nter" in {line[0].text for line in ablations[0].lines}


def test_nothing_is_said_where_all_is_shown(many: pd.DataFrame) -> None:
    few = many[many["cil"].isin(["c01", "c02"]) & many["detector"].isin(["", "ash", "ber"])]
    whole = tables("main", Study(few))
    assert shortened(whole, few, Top()) == whole


def test_csv_has_all_whatever_is_shown(many: pd.DataFrame, tmp_path: Path) -> None:
    some = many[(many["seed"] == 0) & (many["cil"] > "c15")]  # every one has tables of its own
    write_report(Study(some), tmp_path, [], top=Top(4, 2))
    whole = (tmp_path / "tables" / "main-b-k2.csv").read_text()
    assert whole == tables("main", Study(some))[0].csv()
    for name in ("main-b-k2.md", "main-b-k2.tex", "../tables.md"):
        text = (tmp_path / "tables" / name).read_text()
        assert "4 of 41 detectors" in text
        assert "gradnorm" not in text


def test_figures_are_of_few_cil_methods(many: pd.DataFrame) -> None:
    made = list(contents(Study(many), Choice(top=Top(4, 2, ("c00",)))))
    lines, points = (next(one for one in made if isinstance(one, kind)) for kind in (Curves, Points))
    assert list(lines.lines) == list(points.accuracy) == ["c00", "c17", "c18"]
    for one in (lines, points):
        assert one.about.caption.endswith("The best by mean AUC, 3 of 19 CIL methods; all: --top all.")
    assert {one.about.cil for one in made} == {"", "c00", "c17", "c18"}
    by_default = next(iter(contents(Study(many))))
    assert isinstance(by_default, Curves)
    assert len(by_default.lines) == 8


def test_the_reference_is_drawn_whatever_its_place(many: pd.DataFrame) -> None:
    renamed = many.replace({"cil": {"c00": "joint"}})
    first = next(iter(contents(Study(renamed), Choice(top=Top(4, 2)))))
    assert isinstance(first, Curves)
    assert list(first.lines) == ["c17", "c18", "joint"]
    assert method("joint") == first.reference
