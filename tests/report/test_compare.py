"""Ours beside the paper's: what is compared, what counts, and what is said about the data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from opencil import BadInput
from opencil.published import OOD, published_ablation, published_results
from opencil.report.compare import agreement, compare, comparison_tables, data_notes, incomparable
from opencil.report.layout import Table
from opencil.report.results import results
from opencil.report.tables import Kind, tables
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
CIFAR = {name: distance for distance, names in OOD["cifar100"].items() for name in names}
PLAIN = ("msp", "odin", "energy", "gen", "klm")


@pytest.fixture
def cifar(made_up: Rows) -> Rows:
    """Rows as of the paper's CIFAR-100 track at k = 10; detectors are random."""

    def make(cil: str = "icarl", detectors: tuple[str, ...] = PLAIN, **values: Any) -> pd.DataFrame:
        place: dict[str, Any] = {"benchmark": "cifar100", "k": 10, "steps": 2, "ood": CIFAR}
        return made_up(cil=cil, detectors=detectors, **place | values)

    return make


def of(rows: pd.DataFrame) -> pd.DataFrame:
    (found,) = results(Study(rows))
    return compare(found)


def test_cells_are_ours_the_papers_and_the_difference(cifar: Rows) -> None:
    rows = cifar()
    (found,) = results(Study(rows))
    cells = compare(found)
    published = published_results()
    here = published[(published["benchmark"] == "cifar100") & (published["k"] == 10)]
    assert len(cells) == len(here) + len(published_ablation())
    ours = cells[cells["ours"].notna()]
    assert len(ours) == 1 + len(PLAIN) * (3 + 3 + 2) + 12, "accuracy; AUC, FPR, AP; Energy per dataset"
    for row in ours.to_dict("records"):
        average = found.of(row["cil"], row["detector"], row["metric"], row["place"])
        assert average is not None
        assert (row["ours"], row["std"]) == (average.mean, average.std)
        assert row["difference"] == row["ours"] - row["paper"]
    energy = ours[(ours["detector"] == "energy") & (ours["metric"] == "auc")].set_index("place")["paper"]
    assert energy["all"] == 70.35
    assert energy["near"] == 71.72
    assert energy["dataset mnist"] == 86.63


def test_published_ablation_is_whole() -> None:
    """The mean over six datasets of each line is the printed one, where the main table has that line."""
    table, main = published_ablation(), published_results()
    assert table.groupby(["detector", "metric"]).size().to_dict() == {
        (name, metric): 6 for name in ("energy", "ber@nter", "ber@oter", "ber") for metric in ("auc", "fpr")
    }
    means = table.groupby(["detector", "metric"])["value"].mean()
    here = main[(main["k"] == 10) & (main["cil"] == "icarl") & (main["distance"] == "all")]
    printed = here.set_index(["detector", "metric"])["value"]
    for key in [(name, metric) for name in ("energy", "ber") for metric in ("auc", "fpr")]:
        assert means[key] == pytest.approx(printed[key], abs=0.0001)


# --- agreement -------------------------------------------------------------------------------------


def cells(ours: list[float], paper: list[float], metric: str = "auc", flagged: int = 0) -> pd.DataFrame:
    table = pd.DataFrame({"ours": ours, "paper": paper, "metric": metric})
    table["difference"] = (table["ours"] - table["paper"]).where(np.arange(len(ours)) >= flagged)
    return table


@pytest.mark.parametrize("metric", ["auc", "fpr"])
def test_agreement(metric: str) -> None:
    draw = np.random.default_rng(3)
    ours, paper = draw.uniform(40, 90, 12), draw.uniform(40, 90, 12)
    found = agreement(cells(list(ours), list(paper), metric))
    assert found.cells == 12
    assert found.mean == pytest.approx(sum(abs(a - b) for a, b in zip(ours, paper, strict=True)) / 12)
    assert found.largest == max(abs(a - b) for a, b in zip(ours, paper, strict=True))
    assert found.correlation == pytest.approx(spearmanr(ours, paper).statistic)
    best = np.argmin if metric == "fpr" else np.argmax
    assert found.same_best == (best(ours) == best(paper))


def test_the_best_depends_on_the_metric() -> None:
    ours, paper = [1.0, 2.0, 9.0], [1.0, 9.0, 2.0]
    assert agreement(cells(ours, paper, "fpr")).same_best is True
    assert agreement(cells(ours, paper, "auc")).same_best is False


def test_flagged_cells_do_not_count() -> None:
    whole = agreement(cells([60.0, 70.0, 80.0], [61.0, 72.0, 83.0]))
    assert agreement(cells([0.0, 60.0, 70.0, 80.0], [99.0, 61.0, 72.0, 83.0], flagged=1)) == whole


def test_ranks_are_those_of_the_values_shown() -> None:
    """The paper has two digits: 70.001 and 70.004 are one value there, and so here."""
    found = agreement(cells([70.001, 70.004, 60.0], [70.0, 69.0, 60.0]))
    assert found.same_best is True
    assert found.correlation == pytest.approx(spearmanr([70.0, 70.0, 60.0], [70.0, 69.0, 60.0]).statistic)


def test_ranks_need_a_spread() -> None:
    assert agreement(cells([50.0], [60.0])).correlation is None
    assert agreement(cells([50.0], [60.0])).same_best is None
    assert agreement(cells([50.0, 51.0], [60.0, 61.0])).correlation is None, "of two it would be 1 or −1"
    assert agreement(cells([50.0, 50.0, 50.0], [60.0, 61.0, 62.0])).correlation is None
    assert agreement(cells([50.0], [60.0], flagged=1)).cells == 0


# --- tables ----------------------------------------------------------------------------------------


def lines(table: Table) -> dict[str, list[str]]:
    return {cells[0].text: [cell.text for cell in cells[1:]] for cells in table.lines}


def test_three_columns_side_by_side(cifar: Rows) -> None:
    rows = pd.concat([cifar(), cifar(cil="wa")])
    table, agreed, *_ = comparison_tables(Study(rows))
    assert table.title == "cifar100, 10 classes per step: ours beside the paper's"
    groups = [f"{cil} {metric}" for cil in ("icarl", "wa") for metric in ("AUC↑", "FPR↓")]
    assert [c.heading for c in table.columns[1:]] == [
        f"{group} {what}" for group in groups for what in ("ours", "paper", "Δ")
    ]
    where = of(rows).set_index(["cil", "detector", "metric", "place"]).loc["icarl", "energy", "auc", "all"]
    ours, paper, difference = lines(table)["energy"][:3]
    assert ours == f"{where['ours']:.2f} ± {where['std']:.2f}"
    assert paper == "70.35"
    assert difference == f"{where['ours'] - 70.35:+.2f}"
    assert lines(table)["CIL accuracy"][1] == "60.08"
    assert lines(table)["CIL accuracy"][3:6] == ["", "", ""]
    assert [cells[0].text for cells in agreed.lines] == ["icarl", "wa", "all"]
    assert lines(agreed)["icarl"][0] == "5"
    assert lines(agreed)["all"][0] == "10"
    assert any("Not in these runs: maxlogit, react" in note for note in table.notes)


def test_averages_are_over_the_detectors_that_count(cifar: Rows) -> None:
    table, *_ = comparison_tables(Study(cifar(detectors=("msp", "energy", "mine"))))
    assert "mine" not in lines(table), "the paper does not have it"
    assert lines(table)["Average"][1] == f"{(67.77 + 70.35) / 2:.2f}"
    ours, paper, difference = (float(text.partition(" ±")[0]) for text in lines(table)["Average"][:3])
    assert difference == pytest.approx(ours - paper, abs=0.011)


def test_averages_have_deviations_and_there_is_one_over_all(cifar: Rows) -> None:
    names = ("msp", "energy", "vos", "ber")
    rows = cifar(detectors=names)
    table, *_ = comparison_tables(Study(rows))
    (main,) = tables("main", Study(rows))
    assert [cells[0].text for cells in table.lines if cells[0].text.startswith("Average")] == [
        *["Average"] * 2,
        "Average (All)",
    ]
    for ours, plain in zip(table.blocks[1:], main.blocks[1:], strict=True):
        mine, theirs = (block.foot or block.lines for block in (ours, plain))
        assert mine[0][1].text == theirs[0][1].text
        assert "±" in mine[0][1].text
    line = lines(table)["Average (All)"]
    paper = [lines(table)[name][1] for name in names]
    assert float(line[1]) == pytest.approx(sum(map(float, paper)) / 4, abs=0.006)
    one, *_ = comparison_tables(Study(cifar()))
    assert "Average (All)" not in lines(one)


def test_averages_over_other_datasets_do_not_count(cifar: Rows) -> None:
    ood = {name: d for name, d in CIFAR.items() if name != "tin"}
    rows = cifar(ood=ood)
    cells = of(rows)
    counted = cells[cells["difference"].notna() & (cells["detector"] != "")]
    assert set(counted["place"]) == {"far", *(f"dataset {name}" for name in ood)}
    table, agreed, *_ = comparison_tables(Study(rows))
    assert lines(table)["energy"][1:3] == ["70.35", "–"]
    assert lines(agreed)["icarl"][0] == "0"
    said = "Ours is over other OOD datasets than the paper's, so it does not count: all."
    assert said in table.notes
    assert said in agreed.notes
    far, *_ = comparison_tables(Study(rows), ["distance"])
    assert any(note.endswith("so it does not count: near.") for note in far.notes)
    assert not any("does not count" in note for note in comparison_tables(Study(cifar()))[0].notes)
    extra = pd.concat([cifar(), cifar(cil="wa", ood=CIFAR | {"zoo": "far"})])
    agreed = comparison_tables(Study(extra))[1]
    assert lines(agreed)["wa"][0] == "5", "the averages are over what all have, which is the paper's"


def test_flags_are_explained_where_there_are_some(cifar: Rows) -> None:
    """The paper contradicts itself in BiC's RegMix, over all datasets."""
    rows = pd.concat([cifar(cil=cil, detectors=("msp", "regmix")) for cil in ("icarl", "bic")])

    def explained(rows: pd.DataFrame, kind: Kind) -> list[bool]:
        shown = [t for t in comparison_tables(Study(rows), [kind]) if t.file.startswith("compare")]
        flagged = [any("†" in cell.text for cells in t.lines for cell in cells) for t in shown]
        assert [any(n.startswith("†") for n in t.notes) for t in shown] == flagged
        return flagged

    assert explained(rows, "main") == [True]
    assert explained(rows[rows["cil"] == "icarl"], "main") == [False]
    assert explained(rows, "distance") == [False] * 3


def test_contradictory_cells_are_flagged_and_not_counted(cifar: Rows) -> None:
    table, agreed, listed = comparison_tables(Study(cifar(cil="bic", detectors=("msp", "regmix"))))
    assert lines(table)["regmix"][1:3] == ["71.43†", "–"]
    assert any(note.startswith("†") for note in table.notes)
    assert lines(agreed)["bic"][0] == "1"
    assert [[cell.text for cell in cells[:5]] for cells in listed.lines] == [
        ["bic", "regmix", "AUC↑", "71.43", f"{(2 * 72.97 + 4 * 69.91) / 6:.2f}"],
        ["bic", "regmix", "FPR↓", "82.23", f"{(2 * 82.70 + 4 * 83.49) / 6:.2f}"],
    ]


def test_near_and_far(cifar: Rows) -> None:
    made = comparison_tables(Study(cifar()), ["distance"])
    assert [t.file for t in made[:4]] == [
        *(f"compare-distance-{metric}-cifar100-k10" for metric in ("auc", "ap", "fpr")),
        "agreement-distance-cifar100-k10",
    ]
    assert [c.group for c in made[0].columns[1::3]] == ["icarl near AUC↑", "icarl far AUC↑"]
    assert lines(made[0])["energy"][1::3] == ["71.72", "69.67"]
    assert [[cell.text for cell in cells[:2]] for cells in made[3].lines] == [
        ["icarl", "near"],
        ["icarl", "far"],
        ["all", ""],
    ]


def test_the_ablation_beside_the_papers(cifar: Rows) -> None:
    table, *_ = comparison_tables(Study(cifar(detectors=("ber", "ber@nter", "energy", "msp"))), ["ablation"])
    assert list(lines(table)) == ["CIL accuracy", "energy", "ber@nter", "ber"], "as in the paper"
    assert lines(table)["ber@nter"][1] == "71.31"
    assert any("Not in this table of the paper's: msp." in note for note in table.notes)
    assert [c.group for c in table.columns[1::3]][:2] == ["icarl cifar10 AUC↑", "icarl cifar10 FPR↓"]


def test_an_unfinished_cell_is_not_compared(cifar: Rows) -> None:
    rows = cifar(seeds=(0,))
    rows = rows[(rows["detector"] != "gen") | (rows["step"] < 2)]
    table, agreed, *_ = comparison_tables(Study(rows))
    assert lines(table)["gen"][:3] == ["–", "70.86", "–"]
    assert lines(agreed)["icarl"][0] == "4"


def test_before_a_detector_has_been_evaluated_nothing_is_compared(cifar: Rows) -> None:
    assert comparison_tables(Study(cifar(detectors=()))) == []


def test_other_benchmarks_have_nothing_to_compare_with(made_up: Rows) -> None:
    rows = made_up()
    assert comparison_tables(Study(rows)) == []
    error = incomparable(Study(rows))
    assert isinstance(error, BadInput)
    assert "b with k = 2" in str(error)
    assert "cifar100 with k = 5, 10, 20" in str(error)


def test_what_is_not_finished_is_not_said_to_be_missing_in_the_paper(cifar: Rows, record: Record) -> None:
    run = record(benchmark="cifar100", k=10, steps=10, detectors=dict.fromkeys(PLAIN, 2))
    assert comparison_tables(Study(cifar(seeds=(0,)), [run])) == []
    said = str(incomparable(Study(cifar(seeds=(0,)), [run])))
    assert "has no figures" not in said
    assert "icarl seed 0, 2 of 10 steps (all detectors)" in said


def test_what_the_paper_does_not_have_is_said_exactly(cifar: Rows) -> None:
    said = str(incomparable(Study(cifar(detectors=("mine", "yours")))))
    assert "the paper has none of the detectors mine, yours: it has msp, odin, energy" in said
    assert "CIL" not in said
    said = str(incomparable(Study(cifar(cil="joint"))))
    assert "the paper has none of the CIL methods joint: it has icarl, bic, wa, foster" in said
    assert "detector" not in said
    rows = pd.concat([cifar(cil="joint"), cifar(detectors=("mine",))])
    assert "none of these detectors on these CIL methods" in str(incomparable(Study(rows)))


def test_cil_methods_that_the_paper_does_not_have_are_named_beside_those_it_has(cifar: Rows) -> None:
    both = pd.concat([cifar(), cifar(cil="joint"), cifar(cil="replay"), cifar(cil="icarl@short")])
    for table in comparison_tables(Study(both), ["main"])[:2]:
        assert "CIL methods that the paper does not have: icarl@short, joint, replay." in table.notes
        assert not any("@" in (column.group or "") for column in table.columns)
    (first, *_) = comparison_tables(Study(cifar()), ["main"])
    assert not any("does not have: " in note and "CIL" in note for note in first.notes)


# --- data ------------------------------------------------------------------------------------------


def data(name: str, images: int, paper: int | None, files: str = "", split: str = "test") -> dict[str, Any]:
    return {"name": name, "role": "far", "split": split, "images": images, "paper": paper, "files": files}


def notes(rows: pd.DataFrame, *runs: dict[str, Any]) -> str:
    (found,) = results(Study(rows, list(runs)))
    return "\n".join(data_notes(found))


def test_data_that_differ_are_named(cifar: Rows, record: Record) -> None:
    run = record(benchmark="cifar100", k=10)
    run["data"] = [
        data("places365", 10_000, 33_773),
        data("svhn", 26_032, 26_032, "differs"),
        data("mnist", 10_000, 10_000, "canonical"),
        data("texture", 5_640, 5_640),
        data("tin", 9_000, 10_000, "differs"),
    ]
    text = notes(cifar(), run)
    assert "places365 has 10,000 test images, the paper's 33,773." in text
    assert "which may be a matter of packing alone: svhn (test)." in text, "not TIN: it is not packing alone"
    assert "tin has 9,000 test images, the paper's 10,000." in text
    assert "mnist" not in text
    assert "texture" not in text


def test_the_same_data_are_said_to_be(cifar: Rows, record: Record) -> None:
    run = record(benchmark="cifar100", k=10, data=[data("mnist", 10_000, 10_000, "canonical")])
    assert notes(cifar(), run) == "Data: every dataset has as many images as the paper's."


def test_runs_of_another_k_have_no_say(cifar: Rows, record: Record) -> None:
    run = record(benchmark="cifar100", k=5, data=[data("places365", 10_000, 33_773)])
    assert notes(cifar(), run) == "Data: these runs did not note which images they read."


def test_other_datasets_are_named(cifar: Rows) -> None:
    ood = {name: d for name, d in CIFAR.items() if name != "tin"} | {"zoo": "near"}
    text = notes(cifar(ood=ood))
    assert "that these runs lack: tin." in text
    assert "that the paper does not have: zoo." in text


def test_notes_stand_under_the_comparison(cifar: Rows, record: Record) -> None:
    run = record(benchmark="cifar100", k=10, steps=2, data=[data("places365", 10_000, 33_773)])
    for table in comparison_tables(Study(cifar(), [run]))[:2]:
        assert any("places365" in note for note in table.notes)
