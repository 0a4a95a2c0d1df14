"""The tables: their cells and notes."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from opencil.report.averages import average_models, average_rows, average_tasks
from opencil.report.layout import Table
from opencil.report.tables import summaries, tables
from opencil.study.study import Study
from tests.report.common import deviation, mean

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
OOD = {"n1": "near", "f1": "far", "f2": "far", "f3": "far"}
METRICS = {"auc": "AUC↑", "fpr": "FPR↓", "ap": "AP↑"}
SPLITS = ("near", "far", "all")
DETECTORS = ("msp", "energy", "vos", "ber")


def detection(rows: pd.DataFrame, extra: bool = False) -> Table:
    """The second of the two tables of one benchmark and k."""
    _, table = summaries(Study(rows), extra)
    return table


def models(rows: pd.DataFrame) -> Table:
    """The first of them."""
    table, _ = summaries(Study(rows))
    return table


def headings(table: Table) -> list[str]:
    return [column.heading for column in table.columns]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in cells] for cells in table.lines]


def line(table: Table, *labels: str) -> dict[str, str]:
    """The texts of the one line with these labels, by column."""
    (found,) = [cells for cells in texts(table) if tuple(cells[: len(labels)]) == labels]
    return dict(zip(headings(table), found, strict=True))


def naive(rows: pd.DataFrame, cil: str, detector: str, metric: str, oods: tuple[str, ...]) -> str:
    """A cell by loops: over datasets, then steps, then seeds."""
    columns = ["cil", "detector", "metric", "task", "seed", "step", "ood", "value"]
    found = {tuple(row[:-1]): row[-1] for row in rows[columns].itertuples(index=False)}
    seeds = sorted(set(rows.loc[rows["cil"] == cil, "seed"]))
    steps = range(1, rows["step"].max() + 1)
    per_seed = [
        mean([mean([found[cil, detector, metric, 0, seed, t, ood] for ood in oods]) for t in steps])
        for seed in seeds
    ]
    text = f"{100 * mean(per_seed):.2f}"
    if len(seeds) > 1:
        text += f" ± {100 * deviation(per_seed):.2f}"
    return text


ALL = tuple(OOD)
FAR = ("f1", "f2", "f3")


@pytest.fixture
def rows(made_up: Rows) -> pd.DataFrame:
    parts = [made_up(cil=cil, entropy=i, detectors=DETECTORS) for i, cil in enumerate(("wa", "icarl"))]
    return pd.concat(parts, ignore_index=True)


def test_main(rows: pd.DataFrame) -> None:
    (table,) = tables("main", Study(rows))
    assert table.title == "b, 2 classes per step: main results"
    assert headings(table) == ["detector", "icarl AUC↑", "icarl FPR↓", "wa AUC↑", "wa FPR↓"]
    assert [(block.title, [cells[0].text for cells in block.lines]) for block in table.blocks] == [
        ("", ["CIL accuracy"]),
        ("post-hoc", ["msp", "energy"]),
        ("fine-tuning", ["vos", "ber"]),
        ("", ["Average (All)"]),
    ]
    for name in DETECTORS:
        expected = [naive(rows, c, name, m, ALL) for c in ("icarl", "wa") for m in ("auc", "fpr")]
        assert list(line(table, name).values())[1:] == expected
    accuracy = [naive(rows, cil, "", "accuracy", ("",)) for cil in ("icarl", "wa")]
    assert list(line(table, "CIL accuracy").values()) == ["CIL accuracy", accuracy[0], "", accuracy[1], ""]
    assert [cell.span for cell in table.lines[0]] == [1, 2, 0, 2, 0]


def test_averages_of_blocks(rows: pd.DataFrame) -> None:
    """The mean of a column's values; its deviation is that of the seeds' means."""
    (table,) = tables("main", Study(rows))
    auc = rows[(rows["metric"] == "auc") & (rows["cil"] == "icarl") & (rows["task"] == 0)]
    for block, names in (("post-hoc", DETECTORS[:2]), ("fine-tuning", DETECTORS[2:])):
        (foot,) = [b.foot[0] for b in table.blocks if b.title == block]
        of_seed = [
            mean(list(auc.loc[(auc["seed"] == s) & auc["detector"].isin(names), "value"])) for s in (0, 1, 2)
        ]
        assert foot[0].text == "Average"
        assert foot[1].text == f"{100 * mean(of_seed):.2f} ± {100 * deviation(of_seed):.2f}"
    every = mean([cells[1].value for cells in table.lines if cells[0].text in DETECTORS])
    assert table.lines[-1][1].value == pytest.approx(every)


def test_the_three_best_of_a_column_are_marked(made_up: Rows) -> None:
    rows = made_up(seeds=(0,), steps=1, detectors=("msp", "odin", "energy", "gen", "klm", "klm@best"))
    values = {"msp": 0.5, "odin": 0.7, "energy": 0.90001, "gen": 0.9, "klm": 0.8, "klm@best": 0.95}
    for name, value in values.items():
        rows.loc[(rows["detector"] == name) & rows["metric"].isin(["auc", "fpr"]), "value"] = value
    (table,) = tables("main", Study(rows))
    ranks = {cells[0].text: (cells[1].rank, cells[2].rank) for cells in table.lines}
    # 90.001 and 90.000 look the same, so they rank the same; a small FPR is a good one.
    assert ranks == {
        "CIL accuracy": (0, 0),
        "msp": (0, 1),
        "odin": (3, 2),
        "energy": (1, 0),
        "gen": (1, 0),
        "klm": (2, 3),
        "klm@best": (0, 0),
        "Average": (0, 0),
    }


VARIANTS = ("ber", "ber@oter", "energy", "ber@nter", "msp")


def test_ablation(made_up: Rows, record: Record) -> None:
    rows = made_up(detectors=VARIANTS)
    config = {"detector": {"ber": {"nter": True, "oter": True, "lr": 0.1}, "energy": {"temperature": 1.0}}}
    config["detector"]["ber@nter"] = {"nter": True, "oter": False, "lr": 0.1}
    config["detector"]["ber@oter"] = {"nter": False, "oter": True, "lr": 0.1}
    (table,) = tables("ablation", Study(rows, [record(config=config, detectors=dict.fromkeys(VARIANTS, 4))]))
    assert table.title == "b, 2 classes per step, icarl: ablation of ber"
    assert [cells[0] for cells in texts(table)] == ["energy", "ber@nter", "ber@oter", "ber"]
    for name in ("energy", "ber@nter"):
        expected = [naive(rows, "icarl", name, m, (ood,)) for ood in ALL for m in ("auc", "fpr")]
        assert list(line(table, name).values())[1:] == expected
    assert "ber@nter: nter = True, oter = False." in table.notes
    assert "ber: nter = True, oter = True." in table.notes
    assert not any("lr" in note or "temperature" in note for note in table.notes)


def test_what_is_planned_is_a_dash(made_up: Rows, record: Record) -> None:
    """Runs say what will be there: how many steps, which detectors, which CIL methods."""
    rows = made_up(seeds=(0,), steps=2)
    soon = record(cil="wa", trained=0, detectors={"msp": 0, "energy": 0, "gen": 0})
    (table,) = tables("main", Study(rows, [record(detectors={"msp": 2, "energy": 2, "gen": 0}), soon]))
    assert {cell for cells in texts(table) for cell in cells[1:]} == {"–", ""}
    assert [cells[0] for cells in texts(table)] == ["CIL accuracy", "msp", "energy", "gen", "Average"]
    assert headings(table)[3:] == ["wa AUC↑", "wa FPR↓"]
    (note,) = table.missing
    assert "icarl seed 0, 0 of 4 steps (gen)" in note
    assert "icarl seed 0, 2 of 4 steps (msp, energy)" in note
    assert "wa seed 0, 0 of 4 steps (all detectors)" in note


def test_a_run_with_one_more_dataset_leaves_the_others_finished(made_up: Rows) -> None:
    more = made_up(cil="wa", seeds=(0,), ood=OOD | {"zoo": "near"}, entropy=5)
    rows = pd.concat([made_up(), more])
    (table,), (without,) = tables("main", Study(rows)), tables("main", Study(rows[rows["ood"] != "zoo"]))
    assert texts(table) == texts(without), "averages are over what all have"
    assert not table.missing
    assert "(near: n1; far: f1, f2, f3)" in table.notes[0]
    assert table.notes[1] == (
        "OOD datasets that only some runs have, so not in near, far and all: zoo (wa seed 0)."
    )
    icarl, wa = tables("dataset", Study(rows))
    assert line(icarl, "msp")["near zoo AUC↑"] == "–"
    assert line(wa, "msp")["near zoo AUC↑"] == naive(more, "wa", "msp", "auc", ("zoo",))


def test_runs_that_differ_in_more_than_seeds_are_named(made_up: Rows, record: Record) -> None:
    def config(seed: int, epochs: int, **detectors: dict[str, Any]) -> dict[str, Any]:
        return {
            "cil": {"icarl": {"train": {"epochs": epochs}}},
            "seed": {"run": seed},
            "place": {"device": f"cuda:{seed}"},
            "detector": detectors,
        }

    def notes(*configs: dict[str, Any]) -> list[str]:
        runs = [record(seed=seed, config=values) for seed, values in enumerate(configs)]
        return [
            n for t in tables("main", Study(made_up(seeds=(0, 1)), runs)) for n in t.notes if "more than" in n
        ]

    assert notes(config(0, 5, msp={}), config(1, 5, msp={}, energy={"t": 1})) == []
    said = "Runs of one method that differ in more than their seeds: icarl (cil.icarl.train.epochs)."
    assert notes(config(0, 5), config(1, 6)) == [said]


def test_a_table_of_shifted_sets_has_what_detectors_reject_of_them(
    made_up: Rows, with_shifted: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    rows = with_shifted(made_up())
    _, _, table = summaries(Study(rows))
    assert headings(table)[:3] == ["CIL", "detector", "acc↑"]
    kept = rows[rows["metric"] == "fpr_shifted"]
    for detector in ("msp", "energy"):
        of_seeds = kept[kept["detector"] == detector].groupby("seed")["value"].mean()
        *_, found = line(table, "icarl", detector).values()
        assert found.startswith(f"{100 * of_seeds.mean():.2f}")


def test_a_table_of_later_classes_and_of_forgetting(
    made_up: Rows, with_future: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    rows = with_future(made_up())
    plain, (_, detection, continual) = summaries(Study(made_up())), summaries(Study(rows))
    assert texts(detection) == texts(plain[1]), "other tables stay the same"
    over = average_tasks(rows).set_index(["detector", "metric"])["mean"] * 100
    at = average_rows(rows).set_index(["place", "detector", "metric"])["mean"].loc["future"] * 100
    for detector in ("msp", "energy"):
        found = [cell.split(" ")[0] for cell in [*line(continual, "icarl", detector).values()][3:]]
        expected = [at[detector, "auc"], at[detector, "fpr"], at[detector, "ap"]]
        expected += [over[detector, "auc_average"], over[detector, "auc_forgetting"]]
        assert found == [f"{value:.2f}" for value in expected]


def test_cells_are_the_averages_in_percent(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    table = detection(rows)
    assert table.title == "b, 2 classes per step: OOD detection"
    labels = [f"{label} {split}" for label in METRICS.values() for split in SPLITS]
    assert headings(table) == ["CIL", "detector", "acc↑", *labels]
    found = [cells[:2] for cells in texts(table)]
    assert found == [["icarl", "msp"], ["icarl", "energy"], ["wa", "msp"], ["wa", "energy"]]
    averages = average_rows(rows).set_index(["cil", "detector", "metric", "place"])
    for cil, detector, *cells in texts(table):
        places = [(cil, "", "accuracy", "")]
        places += [(cil, detector, metric, split) for metric in METRICS for split in SPLITS]
        expected = [averages.loc[place, ["mean", "std"]] * 100 for place in places]
        assert cells == [f"{mean:.2f} ± {std:.2f}" for mean, std in expected]


CONTINUAL = ["average accuracy", "last accuracy", "forgetting", "backward transfer"]


def test_the_accuracy_table_has_a_line_for_each_method(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    table = models(rows)
    assert table.title == "b, 2 classes per step: accuracy"
    assert headings(table) == ["CIL", *CONTINUAL]
    assert [cells[0] for cells in texts(table)] == ["icarl", "wa"]
    averages = average_models(rows).set_index(["cil", "metric"])
    for cil, *cells in texts(table):
        expected = [averages.loc[(cil, metric), ["mean", "std"]] * 100 for metric in CONTINUAL]
        assert cells == [f"{mean:.2f} ± {std:.2f}" for mean, std in expected]
    for word in ("Average", "Forgetting", "Backward transfer"):
        assert word in table.notes[0]


FOUR = ("msp", "energy", "gen", "odin", "react")
