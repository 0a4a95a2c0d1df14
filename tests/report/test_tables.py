"""The tables: what stands in their cells, and what they say about themselves."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import opencil
from opencil.evaluation.metric import metric_of
from opencil.report.averages import continual, over_seeds
from opencil.report.figures.drawing import figures
from opencil.report.layout import Table
from opencil.report.statistics import statistics_tables
from opencil.report.tables import KINDS, summaries, tables
from opencil.study.study import Study

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


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


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
        middle = mean(per_seed)
        std = math.sqrt(math.fsum((v - middle) ** 2 for v in per_seed) / (len(seeds) - 1))
        text += f" ± {100 * std:.2f}"
    return text


ALL = tuple(OOD)
FAR = ("f1", "f2", "f3")


# --- the paper's -----------------------------------------------------------------------------------


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
    assert [cell.span for cell in table.lines[0]] == [1, 2, 1, 2, 1]


def test_distance(rows: pd.DataFrame) -> None:
    made = tables("distance", Study(rows))
    assert [t.title.partition(": ")[2] for t in made] == [
        f"near and far OOD, {METRICS[m]}" for m in ("auc", "ap", "fpr")
    ]
    for table, metric in zip(made, ("auc", "ap", "fpr"), strict=True):
        assert headings(table) == ["detector", "icarl near", "icarl far", "wa near", "wa far"]
        for name in DETECTORS:
            expected = [
                naive(rows, c, name, metric, oods) for c in ("icarl", "wa") for oods in (("n1",), FAR)
            ]
            assert list(line(table, name).values())[1:] == expected


def test_per_dataset(rows: pd.DataFrame) -> None:
    made = tables("dataset", Study(rows))
    assert [t.title for t in made] == [
        f"b, 2 classes per step, {cil}: OOD detection per dataset" for cil in ("icarl", "wa")
    ]
    for table, cil in zip(made, ("icarl", "wa"), strict=True):
        names = [f"{OOD[ood]} {ood} {METRICS[m]}" for ood in ALL for m in ("auc", "fpr")]
        assert headings(table) == ["detector", *names]
        for name in DETECTORS:
            expected = [naive(rows, cil, name, m, (ood,)) for ood in ALL for m in ("auc", "fpr")]
            assert list(line(table, name).values())[1:] == expected
        assert f"Average accuracy of {cil}: {naive(rows, cil, '', 'accuracy', ('',))}." in table.notes


def test_averages_of_blocks(rows: pd.DataFrame) -> None:
    """The mean of a column's values; its deviation is that of the seeds' means."""
    (table,) = tables("main", Study(rows))
    auc = rows[(rows["metric"] == "auc") & (rows["cil"] == "icarl") & (rows["task"] == 0)]
    for block, names in (("post-hoc", DETECTORS[:2]), ("fine-tuning", DETECTORS[2:])):
        (foot,) = [b.foot[0] for b in table.blocks if b.title == block]
        of_seed = [
            mean(list(auc.loc[(auc["seed"] == s) & auc["detector"].isin(names), "value"])) for s in (0, 1, 2)
        ]
        std = math.sqrt(math.fsum((v - mean(of_seed)) ** 2 for v in of_seed) / 2)
        assert foot[0].text == "Average"
        assert foot[1].text == f"{100 * mean(of_seed):.2f} ± {100 * std:.2f}"
    every = mean([cells[1].value for cells in table.lines if cells[0].text in DETECTORS])
    assert table.lines[-1][1].value == pytest.approx(every)


def test_one_family_needs_no_average_over_all(made_up: Rows) -> None:
    (table,) = tables("main", Study(made_up()))
    assert [cells[0].text for cells in table.lines] == ["CIL accuracy", "msp", "energy", "Average"]


def test_the_three_best_of_a_column_are_marked(made_up: Rows) -> None:
    rows = made_up(seeds=(0,), steps=1, detectors=("msp", "odin", "energy", "gen", "klm"))
    values = {"msp": 0.5, "odin": 0.7, "energy": 0.90001, "gen": 0.9, "klm": 0.8}
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
        "Average": (0, 0),
    }


def test_every_table_defines_its_metrics(rows: pd.DataFrame) -> None:
    wanted = {"main": ("Accuracy:", "AUC:", "FPR:"), "dataset": ("AUC:", "FPR:"), "summary": ("AUC:", "AP:")}
    for kind, definitions in wanted.items():
        for table in tables(kind, Study(rows)):
            notes = "\n".join(table.notes)
            if "accuracy" not in table.title:
                assert all(definition in notes for definition in definitions)
    for table, metric in zip(tables("distance", Study(rows)), ("AUC:", "AP:", "FPR:"), strict=True):
        assert metric in "\n".join(table.notes)


def test_a_table_for_each_benchmark_and_step_size(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(k=10), made_up(benchmark="c", k=5)])
    parts = ["b, 2 classes per step", "b, 10 classes per step", "c, 5 classes per step"]
    assert [t.title.partition(":")[0] for t in tables("main", Study(rows))] == parts
    assert len(
        {t.file for kind in ("main", "distance", "dataset") for t in tables(kind, Study(rows))}
    ) == 3 * (1 + 3 + 1)


# --- ablation --------------------------------------------------------------------------------------

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


def test_an_ablation_is_of_the_cil_models_that_have_it(made_up: Rows, record: Record) -> None:
    rows = pd.concat([made_up(detectors=("ber", "ber@slow")), made_up(cil="wa", detectors=("ber",))])
    schedule = {"lr": 0.1, "epochs": 10}
    config = {"detector": {"ber": {"schedule": schedule}, "ber@slow": {"schedule": schedule | {"lr": 0.01}}}}
    (table,) = tables("ablation", Study(rows, [record(config=config)]))
    assert "icarl" in table.title
    assert "ber@slow: schedule.lr = 0.01." in table.notes
    assert "ber: schedule.lr = 0.1." in table.notes


def test_an_ablation_of_a_post_hoc_detector_has_no_untuned_line(made_up: Rows) -> None:
    (table,) = tables("ablation", Study(made_up(detectors=("odin@cold", "energy", "odin"))))
    assert [cells[0] for cells in texts(table)] == ["odin@cold", "odin"]


def test_without_labels_there_is_no_ablation(made_up: Rows) -> None:
    assert tables("ablation", Study(made_up())) == []


def test_variants_are_lines_of_the_main_table_and_not_in_its_averages(made_up: Rows) -> None:
    rows = made_up(detectors=VARIANTS)
    plain = rows[~rows["detector"].str.contains("@")]
    (table,), (without,) = tables("main", Study(rows)), tables("main", Study(plain))
    assert [cells[0].text for cells in table.blocks[2].lines] == ["ber", "ber@nter", "ber@oter"]
    assert table.blocks[2].foot == without.blocks[2].foot
    assert table.blocks[-1] == without.blocks[-1]
    assert any("@" in note for note in table.notes)
    assert not any("@" in note for note in without.notes)


def test_variants_take_no_marks_from_methods(made_up: Rows) -> None:
    rows = made_up(detectors=VARIANTS)
    rows.loc[rows["detector"].str.contains("@") & (rows["metric"] == "auc"), "value"] += 1
    for kind in ("main", "distance", "dataset"):
        plain = tables(kind, Study(rows[~rows["detector"].str.contains("@")]))
        for table, without in zip(tables(kind, Study(rows)), plain, strict=True):
            ranks, expected = (
                {cells[0].text: [cell.rank for cell in cells] for cells in t.lines} for t in (table, without)
            )
            assert ranks == expected | {name: [0] * len(table.columns) for name in ranks.keys() - expected}
    (ablation,) = tables("ablation", Study(rows))
    best = [cells[0].text for cells in ablation.lines if cells[1].rank == 1]
    assert "@" in best[0], "there they are what is compared"


# --- what is not finished --------------------------------------------------------------------------


def test_unfinished_cells_are_dashes_and_named(made_up: Rows) -> None:
    late = made_up(cil="wa", seeds=(0,))
    late = late[(late["detector"] != "msp") | (late["step"] < 3)]
    (table,) = tables("main", Study(pd.concat([made_up(seeds=(0,)), late])))
    assert line(table, "msp")["wa AUC↑"] == line(table, "msp")["wa FPR↓"] == "–"
    assert line(table, "energy")["wa AUC↑"] != "–"
    assert line(table, "Average")["wa AUC↑"] == "–", "over fewer detectors it would not compare"
    assert line(table, "Average")["icarl AUC↑"] != "–"
    assert "Not finished, so not counted: wa seed 0, 2 of 4 steps (msp)." in table.missing


def test_an_unfinished_seed_does_not_count(made_up: Rows) -> None:
    rows = made_up()
    late = rows[(rows["seed"] < 2) | (rows["step"] < 2)]
    (table,), (without,) = tables("main", Study(late)), tables("main", Study(rows[rows["seed"] < 2]))
    assert texts(table) == texts(without)
    assert any("icarl seed 2, 1 of 4 steps (all detectors)" in note for note in table.missing)


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


def test_one_step_is_one_step(made_up: Rows, record: Record) -> None:
    runs = [record(steps=1, detectors={"msp": 1, "energy": 1, "gen": 0})]
    (table,) = tables("main", Study(made_up(seeds=(0,), steps=1), runs))
    assert "Not finished, so not counted: icarl seed 0, 0 of 1 step (gen)." in table.missing


def test_a_step_without_one_of_the_datasets_is_not_finished(made_up: Rows) -> None:
    rows = made_up(seeds=(0,))
    (table,) = tables(
        "main", Study(rows[~((rows["ood"] == "f1") & (rows["step"] == 3) & (rows["detector"] == "msp"))])
    )
    assert line(table, "msp")["icarl AUC↑"] == "–"
    assert any("3 of 4 steps (msp)" in note for note in table.missing)


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


def test_runs_without_a_common_dataset_have_no_averages(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(cil="wa", ood={"zoo": "near"})])
    (table,) = tables("main", Study(rows))
    assert {cell for cells in texts(table)[1:] for cell in cells[1:]} == {"–"}
    assert table.notes[0].startswith("Percent: mean over OOD datasets (none)")
    assert "zoo (wa seed 0, wa seed 1, wa seed 2)" in table.notes[1]


def test_a_run_that_is_not_finished_does_not_take_datasets_from_others(made_up: Rows) -> None:
    late = made_up(cil="wa", seeds=(0,), steps=2, ood={"n1": "near"})
    (table,) = tables("main", Study(pd.concat([made_up(), late])))
    assert "(near: n1; far: f1, f2, f3)" in table.notes[0]
    assert not any("only some runs" in note for note in table.notes)


def test_an_average_of_detectors_is_that_of_the_values_shown(made_up: Rows) -> None:
    """Where a detector has fewer seeds, the mean is over its own; the deviation over the common ones."""
    rows = made_up(seeds=(0, 1, 2))
    rows = rows[(rows["detector"] != "msp") | (rows["seed"] < 2)]
    (table,) = tables("main", Study(rows))
    values = {cells[0].text: cells[1].value for cells in table.lines}
    assert values["Average"] == pytest.approx((values["msp"] + values["energy"]) / 2)
    (common,) = tables("main", Study(rows[rows["seed"] < 2]))
    assert [c[1].std for c in table.lines if c[0].text == "Average"] == [
        c[1].std for c in common.lines if c[0].text == "Average"
    ]


def test_runs_that_differ_in_more_than_seeds_are_named(made_up: Rows, record: Record) -> None:
    def config(seed: int, epochs: int, **detectors: dict[str, Any]) -> dict[str, Any]:
        return {
            "cil": {"icarl": {"train": {"epochs": epochs}}},
            "seed": {"run": seed},
            "place": {"device": f"cuda:{seed}"},
            "detector": detectors,
        }

    def notes(*configs: dict[str, Any], kind: str = "main") -> list[str]:
        runs = [record(seed=seed, config=values) for seed, values in enumerate(configs)]
        return [
            n for t in tables(kind, Study(made_up(seeds=(0, 1)), runs)) for n in t.notes if "more than" in n
        ]

    assert notes(config(0, 5, msp={}), config(1, 5, msp={}, energy={"t": 1})) == []
    said = "Runs of one method that differ in more than their seeds: icarl (cil.icarl.train.epochs)."
    assert notes(config(0, 5), config(1, 6)) == [said]
    assert notes(config(0, 5), config(1, 6), kind="summary") == [said, said]
    assert "(detector.energy.t)" in notes(config(0, 5, energy={"t": 1}), config(1, 5, energy={"t": 2}))[0]
    many = [config(seed, 5, energy={f"v{i}": seed for i in range(9)}) for seed in (0, 1)]
    assert notes(*many)[0].endswith("detector.energy.v4 and 4 more).")
    other = config(1, 6) | {"cil": {"wa": {"train": {"epochs": 9}}}}
    runs = [record(config=config(0, 5)), record(cil="wa", config=other)]
    both = pd.concat([made_up(seeds=(0,)), made_up(cil="wa", seeds=(0,))])
    assert not any("more than" in n for n in tables("main", Study(both, runs))[0].notes), (
        "other methods may differ"
    )


def test_rows_of_several_makers_are_noted(made_up: Rows, record: Record) -> None:
    def notes(*made: tuple[str, str]) -> list[str]:
        parts = [
            {"source": source, "device": device, "precision": "fp32", "steps": {}} for source, device in made
        ]
        study = Study(made_up(seeds=(0,)), [record(made=parts)])
        return [note for note in tables("main", study)[0].notes if "made by" in note]

    assert notes() == notes(("a", "cpu"), ("a", "cpu")) == []
    assert notes(("b", "cpu"), ("a", "cpu")) == ["Rows were made by several versions of the source: a, b."]
    assert notes(("a", "cpu"), ("a", "H200")) == [
        "Rows were made by several devices: H200 (fp32), cpu (fp32)."
    ]


def test_fewer_seeds_are_named(made_up: Rows) -> None:
    (table,) = tables("main", Study(pd.concat([made_up(), made_up(cil="wa", seeds=(0,))])))
    assert "±" in line(table, "msp")["icarl AUC↑"]
    assert "±" not in line(table, "msp")["wa AUC↑"]
    assert "Over fewer seeds, so with care: wa, 1 of 3 (all detectors)." in table.notes


def test_finished_runs_have_nothing_to_say(rows: pd.DataFrame) -> None:
    (table,) = tables("main", Study(rows))
    assert not [note for note in table.notes if "finished" in note or "fewer" in note]
    assert table.notes[0] == (
        "Percent: mean over OOD datasets (near: n1; far: f1, f2, f3), then over 4 steps, then over 3 seeds "
        "(± standard deviation)."
    )


def test_before_a_detector_has_been_evaluated_there_is_accuracy_alone(made_up: Rows, record: Record) -> None:
    rows = made_up(detectors=(), seeds=(0,), steps=2)
    runs = [record(detectors={"msp": 0})]
    assert [table.title for table in tables("summary", Study(rows, runs))] == [
        "b, 2 classes per step: accuracy"
    ]
    for kind in ("main", "distance", "dataset", "ablation"):
        assert tables(kind, Study(rows, runs)) == []


# --- summary of OOD detection ----------------------------------------------------------------------


def test_cells_are_the_averages_in_percent(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    table = detection(rows)
    assert table.title == "b, 2 classes per step: OOD detection"
    labels = [f"{label} {split}" for label in METRICS.values() for split in SPLITS]
    assert headings(table) == ["CIL", "detector", "acc↑", *labels]
    found = [cells[:2] for cells in texts(table)]
    assert found == [["icarl", "msp"], ["icarl", "energy"], ["wa", "msp"], ["wa", "energy"]]
    averages = over_seeds(rows).set_index(["cil", "detector", "metric", "split"])
    for cil, detector, *cells in texts(table):
        places = [(cil, "", "accuracy", "")]
        places += [(cil, detector, metric, split) for metric in METRICS for split in SPLITS]
        expected = [averages.loc[place, ["mean", "std"]] * 100 for place in places]
        assert cells == [f"{mean:.2f} ± {std:.2f}" for mean, std in expected]


def test_one_seed_has_no_deviation_to_show(made_up: Rows) -> None:
    table = detection(made_up(seeds=(0,)))
    assert all("±" not in cell for cells in texts(table) for cell in cells)
    assert "then over 4 steps, then over 1 seed." in table.notes[0]


def test_flipped_conventions_are_extra(made_up: Rows) -> None:
    plain, extra = detection(made_up()), detection(made_up(), extra=True)
    width = len(plain.columns)
    assert extra.columns[:width] == plain.columns
    labels = [f"{label} {split}" for label in ("FPR(OOD+)↓", "AP(ID+)↑") for split in SPLITS]
    assert headings(extra)[width:] == labels
    assert [cells[:width] for cells in texts(extra)] == texts(plain)
    assert len(extra.notes) == len(plain.notes) + 2, "every column is defined"


def test_rows_of_one_task_and_metrics_that_begin_later_have_no_say(made_up: Rows) -> None:
    rows = made_up()
    plain = rows[(rows["task"] == 0) & (rows["metric"] != "auc_old")]
    assert len(plain) < len(rows)
    assert detection(rows) == detection(plain)
    assert tables("main", Study(rows)) == tables("main", Study(plain))


def test_two_tables_for_each_benchmark_and_step_size(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(k=10), made_up(benchmark="c", k=5)])
    assert [table.title for table in summaries(Study(rows))] == [
        f"{part}: {about}"
        for part in ("b, 2 classes per step", "b, 10 classes per step", "c, 5 classes per step")
        for about in ("accuracy", "OOD detection")
    ]


def test_a_split_without_datasets_is_a_dash(made_up: Rows) -> None:
    rows = made_up(seeds=(0,))
    table = detection(rows[rows["distance"] != "near"])
    for name in ("msp", "energy"):
        cells = line(table, "icarl", name)
        assert [key for key, cell in cells.items() if cell == "–"] == ["AUC↑ near", "FPR↓ near", "AP↑ near"]
        assert cells["AUC↑ far"] == cells["AUC↑ all"]


def test_a_summary_over_uneven_datasets_says_so(made_up: Rows) -> None:
    rows = pd.concat([made_up(seeds=(0,)), made_up(cil="wa", seeds=(0,), ood={"n1": "near"})])
    assert (
        detection(rows)
        .notes[1]
        .endswith("do not compare: f1 (icarl seed 0); f2 (icarl seed 0); f3 (icarl seed 0).")
    )
    assert not any("compare" in note for note in detection(made_up()).notes)


def test_finished_methods_are_not_called_unfinished(made_up: Rows) -> None:
    table = detection(pd.concat([made_up(), made_up(cil="wa")]))
    assert not table.missing
    assert "4 steps" in table.notes[0]
    assert "3 seeds (± standard deviation)" in table.notes[0]


def test_unfinished_methods_are_named(made_up: Rows) -> None:
    rows = pd.concat([made_up(), made_up(cil="wa", steps=2), made_up(cil="bic", seeds=(0, 1))])
    table = detection(rows)
    assert "then over 4 steps, then over 3 seeds" in table.notes[0]
    assert table.notes[0].endswith("Over fewer seeds, so with care: bic energy (2 of 3), bic msp (2 of 3).")
    behind = "; ".join(f"wa seed {seed}, 2 of 4 steps (all detectors)" for seed in range(3))
    assert table.missing == [f"Unfinished, so not comparable: {behind}."]


def test_one_seed_that_is_behind_makes_a_method_unfinished(made_up: Rows) -> None:
    rows = made_up()
    late = rows[~((rows["seed"] == 2) & (rows["step"] > 1) & (rows["detector"] == "msp"))]
    assert detection(late).missing == ["Unfinished, so not comparable: icarl seed 2, 1 of 4 steps (msp)."]


def test_a_summary_that_does_not_fit_is_cut_by_metric(made_up: Rows) -> None:
    parts = detection(made_up(), extra=True).fitting(lambda t: len(t.columns) <= 6)
    labels = [*METRICS.values(), "FPR(OOD+)↓", "AP(ID+)↑"]
    assert [headings(part) for part in parts] == [
        ["CIL", "detector", "acc↑", *(f"{label} {split}" for split in SPLITS)] for label in labels
    ]


# --- accuracy --------------------------------------------------------------------------------------

CONTINUAL = ["average accuracy", "last accuracy", "forgetting", "backward transfer"]


def test_the_accuracy_table_has_a_line_for_each_method(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2)])
    table = models(rows)
    assert table.title == "b, 2 classes per step: accuracy"
    assert headings(table) == ["CIL", *CONTINUAL]
    assert [cells[0] for cells in texts(table)] == ["icarl", "wa"]
    averages = continual(rows).set_index(["cil", "metric"])
    for cil, *cells in texts(table):
        expected = [averages.loc[(cil, metric), ["mean", "std"]] * 100 for metric in CONTINUAL]
        assert cells == [f"{mean:.2f} ± {std:.2f}" for mean, std in expected]
    for word in ("Average", "Forgetting", "Backward transfer"):
        assert word in table.notes[0]


def test_bytes_have_no_say_in_what_is_in_percent(made_up: Rows, record: Record, keeping: Rows) -> None:
    plain = made_up(seeds=(0, 1), steps=2, detectors=("msp", "ber", "ber@nter"))
    more = [keeping((10**t, 7), (10**t, 9), seed=seed) for t, seed in ((6, 0), (8, 1))]
    detectors = dict.fromkeys(("msp", "ber", "ber@nter"), 2)
    runs = [record(seed=seed, steps=2, trained=2, detectors=detectors) for seed in (0, 1)]
    studies = [Study(rows, runs) for rows in (plain, pd.concat([plain, *more]))]  # type: ignore[arg-type]
    without, found = ([table for kind in KINDS for table in tables(kind, study)] for study in studies)
    names = [table.file for table in without]
    assert [table.file for table in found] == names
    for before, after in zip(without, found, strict=True):
        extra = 2 if before.file.startswith("accuracy") else 0
        assert headings(after) == [*headings(before), *["model MB", "memory MB"][:extra]]
        lines = [cells for cells in texts(after) if not cells[0].endswith(" MB")]
        assert [cells[: len(cells) - extra] for cells in lines] == texts(before)
    ranked, again = (statistics_tables(study) for study in studies)
    assert ranked
    assert again == ranked
    drawn, redrawn = ([figure.svg for figure in figures(study)] for study in studies)
    assert drawn
    assert redrawn == drawn


def test_what_a_method_keeps_stands_beside_its_accuracy(made_up: Rows, record: Record, keeping: Rows) -> None:
    """Of runs that are finished, after the last step, mean over seeds; a dash for those that noted none."""
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2), made_up(cil="bic", entropy=3)])
    grown = [(1_000_000 * t, 3_072 * t) for t in (1, 2, 3, 4)]
    more = [keeping(*grown), keeping(*[(5_000_000, 12_288)] * 4, seed=1), keeping(*grown[:2], cil="wa")]
    runs = [record(), record(seed=1), record(cil="wa", trained=2), record(cil="bic")]
    study = Study(pd.concat([rows, *more]), runs)  # type: ignore[arg-type]
    table = summaries(study)[0]
    assert headings(table)[-2:] == ["model MB", "memory MB"]
    assert {cells[0]: cells[-2:] for cells in texts(table)} == {
        "icarl": ["4.50", "0.01"],
        "wa": ["–", "–"],
        "bic": ["–", "–"],
    }
    assert any(note.startswith("MB: millions of bytes") for note in table.notes)
    (main,) = tables("main", study)
    assert texts(main)[1:3] == [
        ["model MB", "4.50", "", "–", "", "–", ""],
        ["memory MB", "0.01", "", "–", "", "–", ""],
    ]
    (before,) = tables("main", Study(rows, [record()]))  # type: ignore[list-item]
    assert not any("MB" in text for cells in texts(before) for text in cells)


def test_an_accuracy_that_one_method_has_is_a_dash_for_the_others(made_up: Rows) -> None:
    rows = pd.concat([made_up(others=("accuracy_nearest_mean",)), made_up(cil="wa")])
    table = models(rows)
    assert headings(table) == ["CIL", *CONTINUAL, "average nearest mean"]
    own, other = texts(table)
    mean, std = continual(rows).set_index("metric").loc["average accuracy_nearest_mean", ["mean", "std"]]
    assert own[-1] == f"{100 * mean:.2f} ± {100 * std:.2f}"
    assert other[-1] == "–"
    assert "–" not in own + other[:-1]


def test_metrics_of_the_model_have_their_label_and_definition(made_up: Rows) -> None:
    @opencil.register_metric("nll", label="NLL", definition="mean loss.", lower_is_better=True)
    def nll(id_logits: Any, labels: Any) -> float:
        return 0.0

    table = models(made_up(others=("nll", "accuracy_shifted")))
    assert headings(table)[-2:] == ["average shifted", "average NLL↓"]
    assert table.notes[-2:] == [metric_of("accuracy_shifted").sentence, "NLL: mean loss."]


def test_a_single_step_has_no_column_of_forgetting(made_up: Rows) -> None:
    table = models(made_up(steps=1, seeds=(0,)))
    assert headings(table) == ["CIL", "average accuracy", "last accuracy"]
    assert "±" not in "".join(texts(table)[0])


def test_an_unfinished_method_is_named_below_the_accuracy_table(made_up: Rows) -> None:
    table = models(pd.concat([made_up(), made_up(cil="wa", steps=2, seeds=(0, 1))]))
    assert table.notes[1:] == ["Over fewer seeds, so with care: wa (2 of 3)."]
    assert table.missing[0].startswith("Unfinished, so not comparable: wa seed 0, 2 of 4 steps (")
    assert len(models(made_up()).notes) == 1


def test_the_accuracy_table_is_cut_between_columns(made_up: Rows) -> None:
    parts = models(made_up()).fitting(lambda part: len(part.columns) <= 3)
    assert [headings(part) for part in parts] == [["CIL", *CONTINUAL[:2]], ["CIL", *CONTINUAL[2:]]]


# --- the best three of a CIL model -----------------------------------------------------------------

FOUR = ("msp", "energy", "gen", "odin", "react")


def test_a_summary_marks_the_best_three_of_each_cil_model(made_up: Rows) -> None:
    rows = pd.concat([made_up(detectors=FOUR, entropy=1), made_up(cil="wa", detectors=FOUR, entropy=2)])
    table = detection(rows)
    averages = over_seeds(rows).set_index(["cil", "metric", "split"]).sort_index()
    for block, cil in zip(table.blocks, ("icarl", "wa"), strict=True):
        for i, (metric, split) in enumerate(((m, s) for m in METRICS for s in SPLITS), start=3):
            ranks = {cells[1].text: cells[i].rank for cells in block.lines if cells[i].rank}
            marked = sorted(ranks, key=lambda name: ranks[name])
            means = averages.loc[(cil, metric, split)].set_index("detector")["mean"]
            best = means.sort_values(ascending=metric == "fpr").index[:3]
            assert marked == list(best)
    assert not any(cells[2].rank for cells in table.lines), "the accuracy is the model's, not a detector's"
    assert table.notes[1] == "¹ best, ² second, ³ third of its CIL model."


def test_of_three_detectors_none_is_marked(made_up: Rows) -> None:
    table = detection(made_up(detectors=FOUR[:3]))
    assert not any(cell.rank for cells in table.lines for cell in cells)
    assert not any("best" in note for note in table.notes)


def test_a_detector_with_fewer_seeds_is_not_among_the_best(made_up: Rows) -> None:
    rows = made_up(detectors=FOUR)
    table = detection(rows[(rows["detector"] != "gen") | (rows["seed"] == 0)])
    ranks = {cells[1].text: max(cell.rank for cell in cells) for cells in table.lines}
    assert ranks.pop("gen") == 0
    assert max(ranks.values()) == 3


def test_names_with_a_label_are_not_among_the_best_of_a_summary(made_up: Rows) -> None:
    table = detection(made_up(detectors=(*FOUR, "ber@nter")))
    ranks = {cells[1].text: max(cell.rank for cell in cells) for cells in table.lines}
    assert ranks["ber@nter"] == 0
    assert max(ranks.values()) == 3
    assert any(note.startswith("A name with @") for note in table.notes)
