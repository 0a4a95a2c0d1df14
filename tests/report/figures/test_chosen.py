"""The selection of figures and of their detectors."""

from collections.abc import Callable

import pandas as pd
import pytest

from opencil import BadInput
from opencil.report.figures.chosen import Choice, Group
from opencil.report.figures.drawing import figures
from opencil.report.results import results
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]


def test_every_figure_of_every_model(rows: pd.DataFrame) -> None:
    of_model = ("fig1a", "fig1b", "fig1c", "fig3b", "old-new")
    expected = {"b-k2-accuracy", "b-k2-fig3a", "b-k2-accuracy-auc"}
    expected |= {f"b-k2-{figure}-{cil}" for figure in of_model for cil in ("icarl", "wa")}
    found = {figure.about.name: figure.about for figure in figures(Study(rows))}
    assert set(found) == expected
    for figure in found.values():
        assert (figure.benchmark, figure.k) == ("b", 2)
        assert figure.cil == next((cil for cil in ("icarl", "wa") if figure.name.endswith(cil)), "")
        assert figure.title
        assert figure.caption.endswith(".")


@pytest.mark.parametrize(
    ("names", "drawn", "one", "scorer"),
    [
        (("ber", "aaa", "regmix", "energy", "msp"), ["msp", "energy", "regmix", "ber"], "regmix", "msp"),
        (("bbb", "aaa"), ["aaa", "bbb"], "aaa", "aaa"),
    ],
)
def test_the_papers_detectors_come_first(
    made_up: Rows, names: tuple[str, ...], drawn: list[str], one: str, scorer: str
) -> None:
    rows = made_up(detectors=names)
    (outcome,) = results(Study(rows))
    group = Group(outcome, rows, Choice())
    assert (group.detectors, group.detector, group.scorer) == (drawn, one, scorer)
    assert Group(outcome, rows, Choice(("aaa",))).detectors == [*{"aaa"}.intersection(names)]


def test_a_detector_that_no_row_has_is_refused(rows: pd.DataFrame) -> None:
    with pytest.raises(BadInput, match=r"'enrgy' is unknown.*did you mean 'energy'"):
        list(figures(Study(rows), Choice(("enrgy",))))
