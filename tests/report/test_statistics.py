"""Statistics against published tables, simulation and loops."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencil.report.statistics import (
    bootstrap,
    cell_matrix,
    holm,
    nemenyi,
    rank_detectors,
    select_best,
    signed_rank,
    statistics_tables,
)
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]


def random_cells(count: int, detectors: int, seed: int = 0, digits: int = 6) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    values = draw.random((count, detectors)) + np.linspace(0, 0.3, detectors)
    return pd.DataFrame(values.round(digits), columns=[f"d{i}" for i in range(detectors)])


def naive_ranks(row: list[float], lower: bool) -> list[float]:
    """1 for the best; ties share the mean of their places."""
    better = [sum((b < a) if lower else (b > a) for b in row) for a in row]
    same = [row.count(a) for a in row]
    return [b + (s + 1) / 2 for b, s in zip(better, same, strict=True)]


@pytest.mark.parametrize("digits", [6, 1])
@pytest.mark.parametrize("lower", [True, False])
def test_friedman(digits: int, lower: bool) -> None:
    """With one digit there are many ties."""
    cells = random_cells(40, 5, digits=digits)
    found = rank_detectors(cells, lower)
    ranks = [naive_ranks(list(row), lower) for row in cells.to_numpy()]
    naive = np.array(ranks).mean(axis=0)
    # Between detectors' mean ranks, over the spread within cells; χ² with 4 degrees of freedom.
    within = sum((rank - 3) ** 2 for row in ranks for rank in row) / (40 * 4)
    statistic = 40 * sum((rank - 3) ** 2 for rank in naive) / within
    p = math.exp(-statistic / 2) * (1 + statistic / 2)
    assert found.friedman == pytest.approx((statistic, p))
    assert dict(zip(found.detectors, found.ranks, strict=True)) == pytest.approx(
        dict(zip(cells, naive, strict=True))
    )
    assert list(found.ranks) == sorted(found.ranks)


#: q of Demšar (2006), Table 5a: the two-tailed Nemenyi test at 5 %, for 2 to 10 classifiers.
DEMSAR = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164)


@pytest.mark.parametrize(("detectors", "q"), list(enumerate(DEMSAR, start=2)))
def test_the_critical_difference_has_the_published_quantiles(detectors: int, q: float) -> None:
    cells = 30
    expected = q * (detectors * (detectors + 1) / (6 * cells)) ** 0.5
    assert nemenyi(detectors, cells) == pytest.approx(expected, rel=4e-4)


@given(st.integers(2, 9), st.integers(2, 60), st.integers(0, 99))
def test_groups_are_the_largest_that_are_not_told_apart(detectors: int, count: int, seed: int) -> None:
    found = rank_detectors(random_cells(count, detectors, seed))
    together = {frozenset(group) for group in found.groups}
    for i in range(detectors):
        for j in range(i, detectors):
            near = found.ranks[j] - found.ranks[i] < found.critical
            assert near == any({i, j} <= group for group in together)
    assert not any(a < b for a in together for b in together)


def test_the_bootstrap_against_a_loop() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1, (25, 3))
    drawn = np.random.default_rng(0).integers(0, 25, size=(1200, 25))
    means = [[sum(differences[i, pair] for i in chosen) / 25 for pair in range(3)] for chosen in drawn]
    for pair, (mean, low, high) in enumerate(bootstrap(differences, 1200)):
        column = [of_pairs[pair] for of_pairs in means]
        assert mean == pytest.approx(differences[:, pair].mean())
        assert (low, high) == pytest.approx(tuple(np.quantile(column, [0.025, 0.975])))


def naive_signed_rank(differences: list[float]) -> float:
    """Wilcoxon's p, two-sided: of all signs, those whose sum of ranks is as far from the middle."""
    order = sorted(differences, key=abs)
    ranks = [order.index(value) + 1 for value in differences]
    middle = sum(ranks) / 2

    def far(signs: tuple[bool, ...]) -> float:
        return abs(sum(rank for rank, up in zip(ranks, signs, strict=True) if up) - middle)

    own = far(tuple(value > 0 for value in differences))
    every = [far(signs) >= own for signs in product((False, True), repeat=len(ranks))]
    return sum(every) / len(every)


@pytest.mark.parametrize("lower", [False, True])
def test_the_best_and_those_not_told_apart_from_it(lower: bool) -> None:
    none = math.nan
    values = pd.DataFrame(
        {
            "best": (80.0, 78.0, 79.0),
            "once above": (78.0, 78.5, 70.0),
            "near": (79.5, 77.5, 78.5),  # below on every seed, but by half a point
            "worse": (78.5, 76.5, 77.0),
            "one seed": (77.5, none, none),
            "one above": (90.0, none, none),
            "one far": (76.5, none, none),
        }
    )
    found = select_best(100 - values if lower else values, lower, noise=3)
    assert found == ["best", "one above", "near", "one seed", "once above"]


@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.4, 2.0])
def test_the_signed_rank_test_against_all_signs(shift: float) -> None:
    values = np.random.default_rng(3).normal(shift, 1, 8)
    assert signed_rank(values) == pytest.approx(naive_signed_rank(list(values)))
    assert signed_rank(np.r_[values, 0.0, 0.0]) == signed_rank(values), "where there is no difference"
    assert signed_rank(np.zeros(8)) == 1


def test_several_tests_are_adjusted_by_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_steps_that_one_detector_lacks_are_left_out(made_up: Rows) -> None:
    """Later steps are harder: a detector without them would look better."""
    rows = made_up(seeds=(0,))
    late = (rows["detector"] == "msp") & (rows["step"] > 2)
    early = rows[rows["step"] <= 2]
    pd.testing.assert_frame_equal(cell_matrix(rows[~late], "auc"), cell_matrix(early, "auc"))


def test_only_what_is_finished_counts(made_up: Rows, record: Record) -> None:
    rows = made_up(detectors=("msp", "energy", "gen"))
    late = rows[(rows["seed"] < 2) | (rows["step"] < 3)]
    late = late[(late["detector"] != "gen") | (late["step"] < 2)]
    for runs in ([], [record(seed=2, steps=4, detectors={"msp": 2, "energy": 2, "gen": 1})]):
        table, *_ = statistics_tables(Study(late, runs))
        plain, *_ = statistics_tables(Study(rows[(rows["seed"] < 2) & (rows["detector"] != "gen")]))
        assert table.blocks == plain.blocks
        (note,) = table.missing
        assert "icarl seed 0, 1 of 4 steps (gen)" in note
        assert "icarl seed 2, 2 of 4 steps (msp, energy)" in note
    assert statistics_tables(Study(rows, [record(steps=9)])) == []
    table, *_ = statistics_tables(Study(late), baseline="gen")
    assert any(note.startswith("gen is not finished here") for note in table.notes)


def test_a_table_for_each_metric(made_up: Rows) -> None:
    rows = made_up(detectors=("msp", "energy", "gen"))
    rows.loc[(rows["detector"] == "gen") & (rows["metric"] == "auc"), "value"] += 1
    auc, fpr = statistics_tables(Study(rows))
    assert auc.title == "b, 2 classes per step: detectors ranked by AUC↑"
    assert fpr.title.endswith("FPR↓")
    best, second, _ = auc.lines
    assert [cell.text for cell in best[:3]] == ["gen", "1.00", "a"]
    assert [cell.text for cell in best[4:]] == ["", "", "", ""], "no difference from itself"
    cells = 100 * cell_matrix(rows, "auc")
    assert best[3].value == pytest.approx(cells["gen"].mean())
    name = second[0].text
    difference, low, high, p = (cell.value for cell in second[4:])
    assert difference == pytest.approx((cells[name] - cells["gen"]).mean())
    assert low < difference < high < 0
    assert p == pytest.approx(2 * 2 / 2**12), "all twelve cells have one sign; of two detectors"
