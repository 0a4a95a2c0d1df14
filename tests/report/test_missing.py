"""Every output names missing runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opencil.published import OOD
from opencil.report.layout import Block, Cell, Column, Table, words
from opencil.report.writing import write_report
from opencil.study.study import Study
from tests.report.common import unpack

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
CIFAR = {name: distance for distance, names in OOD["cifar100"].items() for name in names}
LOST = "step02/detectors/ber.parquet"
SENTENCES = (
    "cifar100/k10/icarl/seed9 (all of it)",
    f"icarl seed 1 ({LOST})",
    "Failed: icarl seed 2 (RuntimeError: no luck).",
    "icarl seed 1, 9 of 10 steps (",
)


@pytest.fixture
def incomplete(made_up: Rows, record: Record) -> Study:
    """Two finished runs of the paper's track; one has lost a table, one failed, one cannot be read."""
    names = ("msp", "energy", "ber", "ber@nter")
    place: dict[str, Any] = {"benchmark": "cifar100", "k": 10, "steps": 10, "ood": CIFAR}
    rows = made_up(detectors=names, **place)
    rows = rows[(rows["seed"] != 1) | (rows["step"] != 2) | (rows["detector"] != "ber")]
    accuracy = rows[rows["metric"] == "accuracy"]
    of: dict[str, Any] = {"benchmark": "cifar100", "k": 10, "steps": 10, "trained": 10}
    of["detectors"] = dict.fromkeys(names, 10)
    runs: list[Any] = [record(seed=seed, **of) for seed in range(3)]
    runs[1] |= {"left_out": {LOST: "is missing"}, "detectors": of["detectors"] | {"ber": 9}}
    runs[2] |= {"failed": "RuntimeError: no luck"}
    rows = pd.concat([rows, accuracy.assign(metric="accuracy_nearest_mean")])
    return Study(rows, runs, {"cifar100/k10/icarl/seed9": "config.yml is gone"})


def test_every_table_in_every_format_and_the_page(incomplete: Study, tmp_path: Path) -> None:
    write_report(incomplete, tmp_path, [])
    written = sorted((tmp_path / "tables").iterdir())
    kinds = ("accuracy", "summary", "main", "distance", "dataset", "ablation", "compare", "agreement")
    assert {path.name.partition("-")[0] for path in written} >= {
        *kinds,
        "contradictions",
        "survey",
        "statistics",
    }
    for path in written:
        text = path.read_text(encoding="utf-8").replace("\\", "")
        # Of models alone, a detector is not missing.
        sentences = SENTENCES[:3] if path.name.startswith("survey") else SENTENCES
        assert [sentence for sentence in sentences if sentence not in text] == [], path.name
    data = unpack((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert data["problems"] == incomplete.problems
    assert data["runs"][1]["left_out"] == {LOST: "is missing"}
    assert data["runs"][2]["failed"] == "RuntimeError: no luck"
    for missing in (data["groups"][0]["missing"], *(sheet["missing"] for sheet in data["tables"])):
        assert all(any(sentence in text for text in missing) for sentence in SENTENCES[:3])


def test_a_table_says_it_before_its_notes_and_on_every_line_of_csv() -> None:
    lines = [[words("msp"), Cell(1.0)], [words("energy"), Cell(2.0)]]
    table = Table(
        "t", "t", [Column("d", label=True), Column("n")], [Block(lines)], ["a note"], ["a, b is gone."]
    )
    assert table.csv() == 'd,n,missing\nmsp,1,"a, b is gone."\nenergy,2,"a, b is gone."\n'
    for text in (str(table), table.markdown(), table.latex(), table.html()):
        assert text.index("a, b is gone.") < text.index("a note")
