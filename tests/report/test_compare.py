"""Ours beside the paper's: cells, agreement, and notes on the data."""

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
        assert (row["ours"], row["std"]) == (average.value, average.std)
        assert row["difference"] == row["ours"] - row["paper"]
    energy = ours[(ours["detector"] == "energy") & (ours["metric"] == "auc")].set_index("place")["paper"]
    assert energy["all"] == 70.35
    assert energy["near"] == 71.72
    assert energy["dataset mnist"] == 86.63


def cells(ours: list[float], paper: list[float], metric: str = "auc", flagged: int = 0) -> pd.DataFrame:
    table = pd.DataFrame({"ours": ours, "paper": paper, "metric": metric})
    table["difference"] = (table["ours"] - table["paper"]).where(np.arange(len(ours)) >= flagged)
    return table


@pytest.mark.parametrize("metric", ["auc", "fpr"])
def test_agreement(metric: str) -> None:
    draw = np.random.default_rng(3)
    ours, paper = draw.uniform(40, 90, 12), draw.uniform(40, 90, 12)
    found = agreement(cells(list(ours), list(paper), metric))
    assert found["cells"] == 12
    assert found["mean"] == pytest.approx(sum(abs(a - b) for a, b in zip(ours, paper, strict=True)) / 12)
    assert found["max"] == max(abs(a - b) for a, b in zip(ours, paper, strict=True))
    assert found["rank"] == pytest.approx(spearmanr(ours, paper).statistic)
    best = np.argmin if metric == "fpr" else np.argmax
    assert found["best"] == (best(ours) == best(paper))


def test_flagged_cells_do_not_count() -> None:
    whole = agreement(cells([60.0, 70.0, 80.0], [61.0, 72.0, 83.0]))
    assert agreement(cells([0.0, 60.0, 70.0, 80.0], [99.0, 61.0, 72.0, 83.0], flagged=1)) == whole


def test_ranks_are_those_of_the_values_shown() -> None:
    """The paper has two digits: 70.001 and 70.004 are one value there, and so here."""
    found = agreement(cells([70.001, 70.004, 60.0], [70.0, 69.0, 60.0]))
    assert found["best"] is True
    assert found["rank"] == pytest.approx(spearmanr([70.0, 70.0, 60.0], [70.0, 69.0, 60.0]).statistic)


def test_ranks_need_a_spread() -> None:
    assert np.isnan(agreement(cells([50.0], [60.0]))["rank"])
    assert np.isnan(agreement(cells([50.0], [60.0]))["best"])
    assert np.isnan(agreement(cells([50.0, 51.0], [60.0, 61.0]))["rank"]), "of two it would be 1 or −1"
    assert np.isnan(agreement(cells([50.0, 50.0, 50.0], [60.0, 61.0, 62.0]))["rank"])
    assert agreement(cells([50.0], [60.0], flagged=1))["cells"] == 0


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


def test_contradictory_cells_are_flagged_and_not_counted(cifar: Rows) -> None:
    table, agreed, listed = comparison_tables(Study(cifar(cil="bic", detectors=("msp", "regmix"))))
    assert lines(table)["regmix"][1:3] == ["71.43†", "–"]
    assert any(note.startswith("†") for note in table.notes)
    assert lines(agreed)["bic"][0] == "1"
    assert [[cell.text for cell in cells[:5]] for cells in listed.lines] == [
        ["bic", "regmix", "AUC↑", "71.43", f"{(2 * 72.97 + 4 * 69.91) / 6:.2f}"],
        ["bic", "regmix", "FPR↓", "82.23", f"{(2 * 82.70 + 4 * 83.49) / 6:.2f}"],
    ]


def test_other_benchmarks_have_nothing_to_compare_with(made_up: Rows) -> None:
    rows = made_up()
    assert comparison_tables(Study(rows)) == []
    error = incomparable(Study(rows), "paper")
    assert isinstance(error, BadInput)
    assert "b, 4 steps, k = 2" in str(error)
    assert "cifar100 with k = 5, 10, 20" in str(error)


def test_what_is_not_finished_is_not_said_to_be_missing_in_the_paper(cifar: Rows, record: Record) -> None:
    run = record(benchmark="cifar100", k=10, steps=10, detectors=dict.fromkeys(PLAIN, 2))
    assert comparison_tables(Study(cifar(seeds=(0,)), [run])) == []
    said = str(incomparable(Study(cifar(seeds=(0,)), [run]), "paper"))
    assert "has no figures" not in said
    assert "icarl seed 0, 2 of 10 steps (all detectors)" in said


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
