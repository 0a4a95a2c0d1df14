"""The published rows are whole, and make the tables of the pages."""

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from opencil import BadInput, Study, read_study
from opencil.cli import app
from opencil.study.study import write_study
from results import add_rows, claims, make_page, make_tables, tables
from results import rows as published
from tests.report.common import unpack

ROOT = Path(__file__).parents[2]
RESULTS, EXPERIMENTS = ROOT / "results", ROOT / "experiments"
STUDY = read_study(RESULTS / "study")
AUC = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["task"] == 0)]


def test_tables_of_the_pages_are_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_tables", "--check"])
    with pytest.raises(SystemExit) as ended:
        make_tables.main()
    assert not ended.value.code, capsys.readouterr().out


def test_a_stale_table_is_shown_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (RESULTS / "field.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("| LwF |"))
    page = tmp_path / "field.md"
    page.write_text(text.replace(line, "| LwF | 99 |"), encoding="utf-8")
    monkeypatch.setattr(make_tables, "PAGES", [page])
    monkeypatch.setattr(make_tables, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(make_tables.draw, "FIGURES", {})
    monkeypatch.setattr(sys, "argv", ["make_tables", "--check"])
    with pytest.raises(SystemExit, match="True"):
        make_tables.main()
    shown = capsys.readouterr().out
    assert "-| LwF | 99 |" in shown
    assert f"+{line}" in shown
    monkeypatch.setattr(sys, "argv", ["make_tables"])
    with pytest.raises(SystemExit, match="False"):
        make_tables.main()
    assert page.read_text(encoding="utf-8") == text


def test_a_number_of_the_prose_must_be_in_a_table() -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 1200
    assert make_tables.unfounded_numbers(page) == []
    wrong = "In 2024, k = 10, CIFAR-100 and `0.3`: 1.59 points, +3.6 and 2,001."
    assert make_tables.unfounded_numbers(page + wrong) == ["1.59", "+3.6", "2,001"], "the table has −3.6"


def test_figures_contain_the_values_that_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = make_tables.draw.paper_points()
    assert len(points) == 64
    ours = AUC[(AUC["detector"] == "ber") & (AUC["cil"] == "wa") & (AUC["k"] == 10)]
    assert points.loc["ber", "wa"]["default"] == pytest.approx(100 * ours["value"].mean())
    assert points.loc["ber", "wa"]["paper"] == 76.77, "printed in the paper"
    draw = make_tables.draw.FIGURES["paper"][1]
    monkeypatch.setattr(make_tables.draw, "FIGURES", {"paper": (lambda: points, draw)})
    assert make_tables.draw.stale_figures(tmp_path) == ["paper"]
    make_tables.draw.write_figures(tmp_path)
    assert make_tables.draw.stale_figures(tmp_path) == []
    points.loc["ber", "wa"] += 0.1
    assert make_tables.draw.stale_figures(tmp_path) == ["paper"]


def test_the_published_tables_are_those_that_the_rows_make() -> None:
    text = (RESULTS / "study" / "tables.md").read_text(encoding="utf-8")
    assert text == make_page.tables(STUDY), "python -m results.make_page makes them"


def test_the_published_page_is_of_the_studys_runs() -> None:
    text = (RESULTS / "study" / "index.html").read_text(encoding="utf-8")
    data = unpack(text)
    steps = {(run["k"], run["cil"], run["seed"]): run["detectors"] for run in STUDY.runs}
    assert {(run["k"], run["cil"], run["seed"]): run["detectors"] for run in data["runs"]} == steps
    assert len(text.encode()) < 5_000_000


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in make_tables.PAGES:
        for link, heading in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            assert "://" in link or target.exists(), f"{page.name}: {link}"
            if heading and target.suffix == ".md":
                titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                named = [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles]
                assert heading in named, f"{page.name}: {link}#{heading}"


def test_rows_are_whole() -> None:
    for run in STUDY.runs:
        assert run["steps"] == 100 // int(run["k"])
        noted = dict.fromkeys(["", *run["detectors"]], 0)
        for detector, steps in ((d, s) for made in run["made"] for d, s in made["steps"].items()):
            noted[detector] += len(steps)
        assert noted == {"": run["trained"], **run["detectors"]}, "source, device and time of every step"
    assert AUC["value"].between(0, 1).all()
    assert AUC.groupby(["k", "cil", "seed"]).size().to_dict() == {
        (run["k"], run["cil"], run["seed"]): 6 * sum(run["detectors"].values()) for run in STUDY.runs
    }


def configs_below(page: Path, heading: str) -> list[dict[str, Any]]:
    """Return the configs of the commands below a heading: a shell runs the block and prints their words."""
    text = page.read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1]
    script = text.split("```bash\n")[1].split("```")[0]
    words = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
    shell = ["bash", "-euc", f'opencil() {{ {words} "$@"; }}\n{script}']
    configs = []
    for line in subprocess.run(shell, capture_output=True, text=True, check=True).stdout.splitlines():
        done = CliRunner().invoke(app, ["config", *json.loads(line)[1:]])
        assert done.exit_code == 0, done.output
        configs.append(yaml.safe_load(done.stdout))
    return configs


def assert_contained(stored: dict[str, Any], asked: dict[str, Any], where: str) -> None:
    """Check that a stored config has the values asked for; it may leave values at their default out."""
    for name, value in stored.items():
        if isinstance(value, dict):
            assert_contained(value, asked[name], f"{where} {name}")
        elif name != "shifted":  # sets that are evaluated besides
            expected = asked.get(name, asked.get("values", {}).get(name, value))  # values of an optimiser
            assert expected == value, f"{where} {name}"


NAMED = "Named values, and outliers that skip BiC's correction"


@pytest.mark.parametrize(
    ("folder", "pages"),
    [
        ("results/study", {"results/appendix.md": "What was run", "experiments/heads.md": NAMED}),
        ("results/learners", {"results/field.md": "The field's learners"}),
        ("experiments/rows/set_up", {"experiments/set_up.md": "Memory, train+, or as released"}),
    ],
)
def test_the_commands_of_the_pages_made_their_results(folder: str, pages: dict[str, str]) -> None:
    asked: dict[tuple[int, str, int], dict[str, Any]] = {}
    for config in (
        config for page, heading in pages.items() for config in configs_below(ROOT / page, heading)
    ):
        ks = config["benchmark"]["classes_per_step"]
        for k, cil, seed in product(ks, config["cil"], config["seed"]["runs"]):
            known = asked.setdefault((k, cil, seed), {"detector": {}})
            known["detector"] |= config["detector"]
            known["benchmark"] = config["benchmark"] | {"classes_per_step": [k]}
            known |= {"training": config["training"], "cil": config["cil"]}
    for run in read_study(ROOT / folder).runs:
        wanted = asked[int(run["k"]), run["cil"], run["seed"]]
        parts = {name: run["config"][name] for name in wanted}
        parts["benchmark"] |= {"classes_per_step": [int(run["k"])]}
        assert_contained(parts, wanted, f"{run['cil']} at k = {run['k']}, seed {run['seed']}:")


# --- tables ---------------------------------------------------------------------------------------


def test_the_auc_table_by_hand() -> None:
    rows = AUC[(AUC["detector"] == "energy") & (AUC["cil"] == "icarl") & (AUC["k"] == 10)]
    seeds = [100 * rows[rows["seed"] == seed]["value"].mean() for seed in (0, 1, 2)]
    cell = f"{np.mean(seeds):.1f} ± {np.std(seeds, ddof=1):.1f} ({np.mean(seeds) - 70.35:+.1f})"
    assert f"| Energy | {cell} |" in tables.auc_by_model(10), "70.35 is printed in the paper"


def test_unfinished_trainings_do_not_count() -> None:
    unfinished = {(r["cil"], r["seed"]) for r in STUDY.runs if r["k"] == 5 and r["trained"] < r["steps"]}
    assert unfinished - set(published.trainings(5)) == unfinished != set()


def test_pairs_of_the_same_order_are_counted() -> None:
    """Of six pairs, two are within a point in one of the tables, and one of the other four is reversed."""
    ours = pd.DataFrame([[1.0, 2.5, 4.0, 9.0]], ["wa"], list("abcd"))
    papers = pd.DataFrame([[1.0, 1.5, 9.0, 4.0]], ["wa"], list("abcd"))
    assert tables.count_pairs(ours, papers) == (4, 5)
    assert tables.count_pairs(ours, -papers) == (1, 5)


def test_the_spread_is_pooled_over_models_and_detectors() -> None:
    a = pd.DataFrame({"x": [1.0, 3.0, 5.0], "y": [0.0, 0.0, 3.0]})
    b = pd.DataFrame({"x": [2.0, 4.0], "y": [7.0, 7.0]})
    variances = [2 * a[d].var() + b[d].var() for d in ("x", "y")]  # of two degrees of freedom, and of one
    deviation, freedom = tables.pool([a, b])
    assert deviation == pytest.approx(np.sqrt(np.mean(variances) / 3))
    assert freedom == 3


def test_detectors_are_told_apart_where_all_trainings_agree_by_a_point() -> None:
    of = pd.DataFrame({"best": [80, 80], "near": [79.5, 79.5], "far": [70, 78], "once": [81, 70]})
    assert list(tables.find_equals(of).index) == ["best", "near", "once"]


@pytest.mark.parametrize(
    ("of_a", "of_b", "expected"),
    [
        ([1, 2], [3, 4], "yes"),
        ([-1, -2], [-3, -4], "no"),
        ([1, 2], [-3, -4], "depends"),
        ([1, 2], [3, -4], "no evidence"),
        ([1, 2], [3], "yes"),
        ([1], [3], "one seed"),
    ],
)
def test_a_claim_holds_where_all_trainings_agree(of_a: list[float], of_b: list[float], expected: str) -> None:
    values = {(cil, seed): v for cil, of in (("a", of_a), ("b", of_b)) for seed, v in enumerate(of)}
    assert claims.verdict(pd.Series(values).rename_axis(["cil", "seed"])) == expected


@pytest.mark.parametrize(
    ("wa", "bic", "expected"),
    [
        ([1, 2], [3, 4], "**yes**"),
        ([-1, -2], [-3, -4], "**no**"),
        ([1, 2], [3, -4], "**depends**: yes on WA"),
        ([-1, -2], [3, 4], "**depends**: yes on BiC, no on WA"),
        ([1, -2], [3, -4], "**no evidence**"),
    ],
)
def test_a_claim_depends_where_a_model_always_agrees(
    wa: list[float], bic: list[float], expected: str
) -> None:
    index = pd.MultiIndex.from_tuples([("wa", 0), ("wa", 1), ("bic", 0), ("bic", 1)], names=["cil", "seed"])
    assert claims.answer(pd.Series([*wa, *bic], index)) == expected


def test_claims_by_hand() -> None:
    auc = AUC[(AUC["k"] == 10) & AUC["cil"].isin(published.CIL) & AUC["detector"].isin(published.SIXTEEN)]
    first, last = (100 * auc[auc["step"] == step]["value"].mean() for step in (1, 10))
    means = auc.groupby(["cil", "seed"])["value"].mean().unstack("cil")
    more = 50 * (means["foster"] + means["wa"] - means["bic"] - means["icarl"])
    lines = {line.split(" | ")[0]: line.split(" | ")[1] for line in claims.claims().splitlines()[2:]}
    worse = lines["| detection is worse after the last step than after the first"]
    assert worse.startswith(f"{first - last:+.1f}, ")
    models = lines["| WA and FOSTER, the more accurate, are above iCaRL and BiC"]
    assert models.startswith(f"{more.mean():+.1f} (paper ")
    assert f" {(more > 0).sum()} of 3: " in models


# --- rows of further runs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Study:
    """Two steps of one run with two detectors, as if finished."""
    rows = STUDY.rows[(STUDY.rows["step"] <= 2) & STUDY.rows["detector"].isin(["", "msp", "energy"])]
    rows = rows[(rows["cil"] == "wa") & (rows["k"] == 10) & (rows["seed"] == 0)].reset_index(drop=True)
    (run,) = (run for run in STUDY.runs if (run["cil"], run["k"], run["seed"]) == ("wa", 10, 0))
    return Study(rows, [{**run, "steps": 2, "trained": 2, "detectors": {"msp": 2, "energy": 2}}])


def test_further_runs_are_added(small: Study, tmp_path: Path) -> None:
    assert add_rows.add(small, tmp_path) == [tmp_path / "k10-seed0"]
    other = Study(small.rows.assign(cil="bic"), [{**small.runs[0], "cil": "bic"}])
    add_rows.add(other, tmp_path)
    add_rows.add(Study(small.rows.assign(seed=5), [{**small.runs[0], "seed": 5}]), tmp_path)
    both = read_study(tmp_path / "k10-seed0")
    assert [run["cil"] for run in both.runs] == ["bic", "wa"]
    pd.testing.assert_frame_equal(both.rows, pd.concat([small.rows, other.rows], ignore_index=True))
    assert [run["seed"] for run in read_study(tmp_path).runs] == [0, 0, 5]


def test_a_run_is_replaced_whole_and_never_by_less(small: Study, tmp_path: Path) -> None:
    add_rows.add(small, tmp_path)
    steps = {"msp": 2, "energy": 2, "gen": 2}
    add_rows.add(Study(small.rows.assign(value=0.5), [{**small.runs[0], "detectors": steps}]), tmp_path)
    fresh = Study(small.rows.assign(k=1), [{**small.runs[0], "k": 1}])  # its folder comes first
    both = Study(pd.concat([fresh.rows, small.rows]), [*fresh.runs, *small.runs])
    with pytest.raises(BadInput, match="wa has fewer steps"):
        add_rows.add(both, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["k10-seed0"]
    assert set(read_study(tmp_path).rows["value"]) == {0.5}
    add_rows.add(small, tmp_path, replace=True)
    pd.testing.assert_frame_equal(read_study(tmp_path).rows, small.rows)


def test_damaged_rows_and_other_benchmarks_are_refused(
    small: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = Study(small.rows.assign(benchmark="digits"), [{**small.runs[0], "benchmark": "digits"}])
    with pytest.raises(BadInput, match="digits"):
        add_rows.add(digits, tmp_path / "study")
    assert not (tmp_path / "study").exists()
    write_study(small, tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("sys.argv", ["add_rows", str(tmp_path)])
    with pytest.raises(SystemExit, match="parquet"):
        add_rows.main()
