"""The order of methods, and the best of many that are shown."""

import pandas as pd
import pytest

from opencil.cil.replay import Replay
from opencil.detectors.posthoc.energy import Energy
from opencil.published import published_results
from opencil.registry import LEARNERS, register_detector, register_learner
from opencil.report.order import (
    ALL_SHOWN,
    Top,
    group_families,
    is_upper_bound,
    sort_detectors,
)
from opencil.report.tables import tables
from opencil.report.writing import shorten_tables
from opencil.study.study import Study


def test_an_upper_bound_keeps_all_images() -> None:
    @register_learner("hoarder")
    class Hoarder(Replay):
        remembers = False

    known = [name for name in LEARNERS.names() if is_upper_bound(name)]
    assert known == ["hoarder", "joint"]
    assert [name for name in ("joint@short", "icarl@short", "zzz") if is_upper_bound(name)] == ["joint@short"]


def test_the_papers_detectors_stand_as_in_the_paper() -> None:
    paper = [name for name in published_results()["detector"].unique() if name]
    assert sort_detectors(sorted(paper)) == paper
    assert len(paper) == 16


def test_families_in_blocks() -> None:
    @register_detector("aaa")
    class Tuned(Energy):
        family = "fine-tuning"

    found = group_families(["aaa", "ber", "zzz", "msp", "ber@nter", "vos", "odin", "msp@warm"])
    assert found == [
        ("post-hoc", ["msp", "msp@warm", "odin"]),
        ("fine-tuning", ["vos", "ber", "ber@nter", "aaa"]),
        ("others", ["zzz"]),
    ]


def naive(rows: pd.DataFrame, kind: str) -> list[str]:
    """Names without labels from the best to the worst, by their mean AUC."""
    found = rows[(rows["metric"] == "auc") & ~rows[kind].str.contains("@")]
    means = {name: part["value"].mean() for name, part in found.groupby(kind)}
    return sorted(means, key=lambda name: -means[name])


def test_the_best_are_kept(many: pd.DataFrame) -> None:
    assert Top(5, 3).select(many, "cil") == set(naive(many, "cil")[:3]) == {"c18", "c17", "c16"}
    assert Top(5, 3).select(many, "detector") == set(naive(many, "detector")[:5])
    assert ALL_SHOWN.select(many, "cil") == Top(41, 19).select(many, "cil") == set(many["cil"])
    assert (
        ALL_SHOWN.select(many, "detector")
        == Top(41, 19).select(many, "detector")
        == set(many["detector"]) - {""}
    )


def test_those_that_are_named_are_kept_too(many: pd.DataFrame) -> None:
    top = Top(2, 2, ("c00", "ash"))
    assert top.select(many, "cil") == {"c18", "c17", "c00"}
    assert top.select(many, "detector") == {"z", "y", "ash"}
    assert top.describe(many) == "3 of 41 detectors and 3 of 19 CIL methods"


def test_a_name_with_a_label_goes_with_its_method(many: pd.DataFrame) -> None:
    assert not {"ber", "ber@nter"} & Top(2, 2).select(many, "detector")
    for name in ("ber", "ber@nter"):
        assert {"ber", "ber@nter"} <= Top(2, 2, (name,)).select(many, "detector")
    alone = many[many["detector"] != "ber"]  # then the variant stands for it
    assert Top(3, 2).select(alone, "detector") == {"z", "y", "ber@nter"}


def test_what_is_not_finished_gains_nothing_by_it(many: pd.DataFrame) -> None:
    """Early steps are the easy ones, and some models are easy."""
    worst = naive(many, "detector")[-1]
    easy = (many["detector"] != worst) | ((many["step"] == 1) & (many["cil"] == "c18"))
    assert naive(many[easy], "detector")[0] == worst
    assert worst not in Top(40, None).select(many[easy], "detector")
    early = many[(many["cil"] != "c00") | (many["step"] == 1)]
    assert "c00" not in Top(None, 18).select(early, "cil")


@pytest.mark.parametrize("kind", ["main", "distance"])
def test_lines_and_columns_are_those_of_the_whole_table(many: pd.DataFrame, kind: str) -> None:
    whole = tables(kind, Study(many))[0]  # type: ignore[arg-type]
    (short,) = shorten_tables([whole], Study(many), Top(4, 2))
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
