"""What runs lack is told by everything that is made of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opencil import OpenCILError
from opencil.published import OOD
from opencil.report.figures.drawing import figures
from opencil.report.layout import Block, Cell, Column, Table, words
from opencil.report.writing import write_report
from opencil.runs.reading import read_study
from opencil.study.study import Study, write_study

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
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    start = page.index('id="data">') + len('id="data">')
    data = json.loads(page[start : page.index("</script>", start)])
    assert data["problems"] == incomplete.problems
    assert data["runs"][1]["left_out"] == {LOST: "is missing"}
    assert data["runs"][2]["failed"] == "RuntimeError: no luck"
    for missing in (data["groups"][0]["missing"], *(sheet["missing"] for sheet in data["tables"])):
        assert all(any(sentence in text for text in missing) for sentence in SENTENCES[:3])


def test_every_figure(incomplete: Study, tmp_path: Path) -> None:
    whole = {figure.about.name: figure for figure in figures(Study(incomplete.rows))}
    drawn = list(figures(incomplete))
    assert drawn
    for figure in drawn[:2]:
        assert all(sentence in figure.about.missing for sentence in SENTENCES)
        assert figure.about.caption.endswith(figure.about.missing)
        other = whole[figure.about.name]
        assert figure.size[0] == other.size[0]
        assert figure.size[1] > figure.picture.get_size_inches()[1], "there is room for it"
        svg, png = (path.read_bytes() for path in figure.save(tmp_path))
        assert f'height="{72 * figure.size[1]:g}pt"'.encode() in svg[:600]
        height = int.from_bytes(png[20:24], "big")
        assert height == pytest.approx(200 * figure.size[1], abs=1)
        assert figure.svg == figure.svg


def test_a_figure_of_whole_runs_has_nothing_below_it(made_up: Rows) -> None:
    figure = next(figures(Study(made_up(seeds=(0,)))))
    assert figure.about.missing == ""
    assert figure.size == tuple(figure.picture.get_size_inches())


def test_a_table_says_it_before_its_notes_and_on_every_line_of_csv() -> None:
    lines = [[words("msp"), Cell(1.0)], [words("energy"), Cell(2.0)]]
    table = Table(
        "t", "t", [Column("d", label=True), Column("n")], [Block(lines)], ["a note"], ["a, b is gone."]
    )
    assert table.csv() == 'd,n,missing\nmsp,1,"a, b is gone."\nenergy,2,"a, b is gone."\n'
    for text in (str(table), table.markdown(), table.latex(), table.html()):
        assert text.index("a, b is gone.") < text.index("a note")


@pytest.mark.parametrize("left_out", [["x"], {"x": 3}, {"x": "\x1b[2J"}, 3])
def test_what_a_published_study_left_out_is_checked(made_up: Rows, tmp_path: Path, left_out: Any) -> None:
    rows = made_up(seeds=(0,))
    write_study(Study(rows[:0], [], left_out), tmp_path)
    with pytest.raises(OpenCILError, match="left out is no mapping"):
        read_study(tmp_path)
