"""What figures show: which there are, what is chosen for them, and what their captions say."""

from collections.abc import Callable

import pandas as pd
import pytest

from opencil import BadInput
from opencil.report.figures.chosen import About, Choice, Content, contents
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]


def chosen(rows: pd.DataFrame) -> dict[str, About]:
    return {content.about.name: content.about for content in contents(Study(rows))}


def drawn(content: Content) -> str:
    """All that a figure shows, without its words."""
    return repr([value for value in vars(content).values() if not isinstance(value, About)])


def test_every_figure_of_every_model(rows: pd.DataFrame) -> None:
    of_model = ("fig1a", "fig1b", "fig1c", "fig3b", "old-new")
    expected = {"b-k2-fig3a", "b-k2-accuracy-auc"}
    expected |= {f"b-k2-{figure}-{cil}" for figure in of_model for cil in ("icarl", "wa")}
    found = chosen(rows)
    assert set(found) == expected
    for figure in found.values():
        assert (figure.benchmark, figure.k) == ("b", 2)
        assert figure.cil == next((cil for cil in ("icarl", "wa") if figure.name.endswith(cil)), "")
        assert figure.title
        assert figure.caption.endswith(".")


def test_rows_without_detectors_have_no_figures(rows: pd.DataFrame) -> None:
    assert chosen(rows[rows["detector"] == ""]) == {}
    assert chosen(rows[:0]) == {}


def test_a_metric_that_is_missing_leaves_its_figures_out(rows: pd.DataFrame) -> None:
    found = chosen(rows[rows["metric"].isin(["auc", "accuracy"])])
    assert {name.split("-")[2] for name in found} == {"fig3a", "accuracy", "fig1a", "fig3b"}


def test_seeds_that_are_behind_are_in_no_curve(rows: pd.DataFrame) -> None:
    behind = (rows["seed"] == 2) & (rows["cil"] == "wa")
    some = {content.about.name: content for content in contents(Study(rows[~(behind & (rows["step"] > 2))]))}
    none = {content.about.name: content for content in contents(Study(rows[~behind]))}
    assert "Mean over 2 to 3 seeds" in some["b-k2-fig3a"].about.caption, "wa has fewer than the others"
    assert some.keys() == none.keys()
    for name, content in some.items():
        assert drawn(content) == drawn(none[name]), name


def test_a_model_that_is_not_finished_is_named(rows: pd.DataFrame) -> None:
    partial = rows[~((rows["cil"] == "wa") & (rows["step"] > 3))]
    of_all = chosen(partial)["b-k2-accuracy-auc"]
    assert "not comparable: wa seed 0, 3 of 4 steps (all detectors); wa seed 1" in of_all.missing
    assert of_all.caption.endswith(of_all.missing)
    assert chosen(partial)["b-k2-fig1a-wa"].missing == of_all.missing
    assert chosen(partial)["b-k2-fig1a-icarl"].missing == "", "nothing of it is missing"
    assert "not comparable" not in chosen(rows)["b-k2-accuracy-auc"].caption


def test_the_paper_s_detectors_come_first(made_up: Rows) -> None:
    names = ("ber", "aaa", "regmix", "energy", "bbb", "msp")
    completed = Choice().completed(made_up(detectors=names))
    assert completed == Choice(("msp", "energy", "regmix", "ber"), "regmix", "msp")
    assert Choice().completed(made_up(detectors=("bbb", "aaa"))) == Choice(("aaa", "bbb"), "aaa", "aaa")


@pytest.mark.parametrize("choice", [Choice(("enrgy",)), Choice(detector="enrgy"), Choice(confidence="enrgy")])
def test_a_detector_that_no_row_has_is_refused(rows: pd.DataFrame, choice: Choice) -> None:
    with pytest.raises(BadInput, match=r"'enrgy' is unknown.*did you mean 'energy'"):
        list(contents(Study(rows), choice))
