"""Statistics against published tables, simulation and loops."""

import math
from collections.abc import Callable
from dataclasses import astuple
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from opencil import BadInput
from opencil.report import statistics
from opencil.report.statistics import (
    bootstrap,
    cell_matrix,
    holm,
    nemenyi,
    rank_detectors,
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


# --- ranks -----------------------------------------------------------------------------------------


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


def test_two_detectors_have_no_friedman_test(made_up: Rows) -> None:
    assert rank_detectors(random_cells(40, 2)).friedman is None
    assert not any("Friedman" in note for note in statistics_tables(Study(made_up()))[0].notes)


def test_detectors_that_are_all_the_same_are_not_told_apart() -> None:
    found = rank_detectors(pd.DataFrame(np.ones((5, 3)), columns=["a", "b", "c"]))
    assert found.friedman == (0.0, 1.0)
    assert found.groups == [range(3)]


#: q of Demšar (2006), Table 5a: the two-tailed Nemenyi test at 5 %, for 2 to 10 classifiers.
DEMSAR = (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164)


@pytest.mark.parametrize(("detectors", "q"), list(enumerate(DEMSAR, start=2)))
def test_the_critical_difference_has_the_published_quantiles(detectors: int, q: float) -> None:
    cells = 30
    expected = q * (detectors * (detectors + 1) / (6 * cells)) ** 0.5
    assert nemenyi(detectors, cells) == pytest.approx(expected, rel=4e-4)


@pytest.mark.parametrize(("detectors", "alpha"), [(2, 0.05), (16, 0.05), (100, 0.01)])
def test_the_critical_difference_is_a_quantile_of_the_range(detectors: int, alpha: float) -> None:
    """P(range <= q) = K ∫ φ(z) (Φ(z) - Φ(z - q))^(K - 1) dz, z the largest of K standard normal values."""
    cells = 30
    q = nemenyi(detectors, cells, alpha) * (2 * 6 * cells / (detectors * (detectors + 1))) ** 0.5
    z, step = np.linspace(-9, 9, 1801, retstep=True)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    within = detectors * step * density @ (ndtr(z) - ndtr(z - q)) ** (detectors - 1)
    assert within == pytest.approx(1 - alpha, rel=1e-9)


@given(st.integers(2, 9), st.integers(2, 60), st.integers(0, 99))
def test_groups_are_the_largest_that_are_not_told_apart(detectors: int, count: int, seed: int) -> None:
    found = rank_detectors(random_cells(count, detectors, seed))
    together = {frozenset(group) for group in found.groups}
    for i in range(detectors):
        for j in range(i, detectors):
            near = found.ranks[j] - found.ranks[i] < found.critical
            assert near == any({i, j} <= group for group in together)
    assert not any(a < b for a in together for b in together)


def test_a_difference_that_is_critical_tells_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "nemenyi", lambda *_: 1.0)
    cells = pd.DataFrame([[3.0, 2.0, 1.0]] * 4, columns=["a", "b", "c"])
    assert rank_detectors(cells).groups == [range(1), range(1, 2), range(2, 3)]


@pytest.mark.parametrize("count", [26, 30])
def test_groups_have_names_however_many_there_are(
    made_up: Rows, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(statistics, "nemenyi", lambda *_: 1.5)  # each is told apart but from its neighbours
    rows = made_up(detectors=tuple(f"d{i:02d}" for i in range(count + 1)), seeds=(0,), steps=1)
    rows["value"] = rows["detector"].str[1:].where(rows["detector"] != "", "0").astype(float)
    names = [cells[2].text for cells in statistics_tables(Study(rows))[0].lines]
    if count == 26:
        assert names[:3] == ["a", "ab", "bc"]
        assert names[-2:] == ["yz", "z"]
    else:
        assert names[:3] == ["1", "1 2", "2 3"]
        assert names[-2:] == ["29 30", "30"]


@pytest.mark.parametrize("shape", [(1, 3), (5, 1), (0, 2)])
def test_too_little_to_rank(shape: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="at least 2 of each"):
        rank_detectors(pd.DataFrame(np.zeros(shape)))


# --- bootstrap -------------------------------------------------------------------------------------


def test_the_bootstrap_against_a_loop() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1, (25, 3))
    drawn = np.random.default_rng(7)
    means = []
    for size in (500, 500, 200):
        for chosen in drawn.integers(0, 25, size=(size, 25)):
            means.append([sum(differences[i, pair] for i in chosen) / 25 for pair in range(3)])
    for pair, found in enumerate(bootstrap(differences, 1200, 0.9, seed=7)):
        column = [mean[pair] for mean in means]
        assert found.mean == pytest.approx(differences[:, pair].mean())
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(column, [0.05, 0.95])))


def test_the_interval_is_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(0).normal(0, 1, (400, 1))
    (found,) = bootstrap(values)
    error = values.std() / 400**0.5
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).normal(0, 1, (30, 2))
    assert bootstrap(values, 100) == bootstrap(values, 100)
    assert bootstrap(values, 100) != bootstrap(values, 100, seed=1)


def test_a_difference_without_spread_has_no_width() -> None:
    (found,) = bootstrap(np.full((10, 1), 2.5), 50)
    assert (found.mean, found.low, found.high) == (2.5, 2.5, 2.5)


def test_pairs_are_drawn_together() -> None:
    """The difference of two differences has the interval of the third pair."""
    values = np.random.default_rng(0).normal(0, 1, (30, 2))
    both = np.c_[values, values[:, 0] - values[:, 1]]
    assert astuple(bootstrap(both, 300)[2]) == pytest.approx(astuple(bootstrap(both[:, [2]], 300)[0]))


# --- paired tests ----------------------------------------------------------------------------------


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


# --- rows ------------------------------------------------------------------------------------------


def test_cells_of_rows(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    cells = cell_matrix(rows, "auc")
    assert cells.shape == (2 * 3 * 4, 2)
    chosen = rows[(rows["metric"] == "auc") & (rows["detector"] == "msp")].to_dict("records")
    for cil, seed, ood in cells.index:
        steps = [r["value"] for r in chosen if (r["cil"], r["seed"], r["ood"]) == (cil, seed, ood)]
        assert len(steps) == 4
        assert cells.loc[(cil, seed, ood), "msp"] == pytest.approx(sum(steps) / 4)


def test_steps_that_one_detector_lacks_are_left_out(made_up: Rows) -> None:
    """Later steps are harder: a detector without them would look better."""
    rows = made_up(seeds=(0,))
    late = (rows["detector"] == "msp") & (rows["step"] > 2)
    early = rows[rows["step"] <= 2]
    pd.testing.assert_frame_equal(cell_matrix(rows[~late], "auc"), cell_matrix(early, "auc"))


def test_cells_that_one_detector_lacks_are_left_out(made_up: Rows) -> None:
    rows = made_up()
    rows = rows[~((rows["detector"] == "msp") & (rows["seed"] > 1))]
    assert set(cell_matrix(rows, "auc").index.get_level_values("seed")) == {0, 1}
    notes = statistics_tables(Study(rows))[0].notes
    counted = "Over 8 cells (CIL method × seed × OOD dataset, mean over steps) of 12"
    assert notes[0] == f"{counted}: those that all detectors have."


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


def test_variants_are_not_ranked(made_up: Rows) -> None:
    rows = made_up(detectors=("msp", "energy", "gen"))
    variant = rows[(rows["detector"] == "gen") & (rows["seed"] == 0)].assign(detector="gen@cold")
    table, *_ = statistics_tables(Study(pd.concat([rows, variant])))
    plain, *_ = statistics_tables(Study(rows))
    assert table.blocks == plain.blocks
    assert "Variants of a method are not ranked: gen@cold." in table.notes
    with pytest.raises(BadInput, match="'gen@cold' is unknown"):
        statistics_tables(Study(pd.concat([rows, variant])), baseline="gen@cold")


def test_variants_of_a_cil_model_are_not_counted_beside_it(made_up: Rows) -> None:
    rows = made_up(cil="icarl")
    variant = made_up(cil="icarl@short").assign(value=0.5)
    both, alone = (statistics_tables(Study(r)) for r in (pd.concat([rows, variant]), rows))
    assert [table.blocks for table in both] == [table.blocks for table in alone]
    assert all("Variants of a CIL model are not counted beside it: icarl@short." in t.notes for t in both)
    (table, _) = statistics_tables(Study(variant))
    assert not any("Variants of a CIL model" in note for note in table.notes), "it is there alone"


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


def test_a_small_p_is_not_shown_as_none(made_up: Rows) -> None:
    rows = pd.concat([made_up(cil=cil) for cil in ("icarl", "wa", "bic")])
    rows.loc[(rows["detector"] == "msp") & (rows["metric"] == "auc"), "value"] += 1
    auc, _ = statistics_tables(Study(rows))
    p = auc.lines[1][-1]
    assert p.value
    assert p.text == "< 0.0001"
    assert "| < 0.0001 |" in auc.markdown().replace("\\<", "<")
    assert r"\textless{} 0.0001 \\" in auc.latex()
    assert auc.csv().splitlines()[2].split(",")[-1] == f"{p.value:.6g}", "a file for computing has all of it"


def test_the_best_has_a_small_fpr(made_up: Rows) -> None:
    rows = made_up()
    rows.loc[(rows["detector"] == "msp") & (rows["metric"] == "fpr"), "value"] -= 1
    assert statistics_tables(Study(rows))[1].lines[0][0].text == "msp"


def test_a_baseline_of_ones_own(made_up: Rows) -> None:
    auc, _ = statistics_tables(Study(made_up(detectors=("msp", "energy", "gen"))), baseline="energy")
    for line in auc.lines:
        assert (line[4].text == "") == (line[0].text == "energy")
    assert any("Difference from energy" in note for note in auc.notes)
    with pytest.raises(BadInput, match="did you mean 'energy'"):
        statistics_tables(Study(made_up()), baseline="enrgy")


def test_one_detector_cannot_be_compared(made_up: Rows) -> None:
    assert statistics_tables(Study(made_up(detectors=("msp",)))) == []


def test_the_unit_and_its_limits_are_stated(made_up: Rows) -> None:
    notes = "\n".join(statistics_tables(Study(made_up()))[0].notes)
    for words in (
        "12 cells (CIL method × seed × OOD dataset, mean over steps)",
        "paired bootstrap",
        "Wilcoxon's signed-rank test",
        "by Holm",
        "seed 0",
        "depend on",
    ):
        assert words in notes
