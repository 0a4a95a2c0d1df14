"""The results that come with the code: rows are whole, and make the published tables and pages."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from opencil import read_study
from opencil.cli import app
from opencil.engine.arithmetic import Arithmetic
from opencil.registry import DETECTORS, LEARNERS
from opencil.runs.plan import in_todays_terms
from opencil.validation import build, plain
from results import make_page, make_readme

ROOT = Path(__file__).parents[2]
RESULTS, EXPERIMENTS = ROOT / "results", ROOT / "experiments"
STUDY = read_study(RESULTS / "study")
FIRST_GRID = read_study(EXPERIMENTS / "rows" / "first_grid")
CIL = ("icarl", "bic", "wa", "foster")


def test_the_pages_are_what_the_rows_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_readme.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        make_readme.main()
    assert not ended.value.code, capsys.readouterr().out


def test_a_page_that_says_something_else_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = RESULTS / "field.md"
    text = page.read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("| LwF |"))
    monkeypatch.setattr(make_readme, "pages", lambda: {page: text.replace(line, "| LwF | 99 |")})
    monkeypatch.setattr(sys, "argv", ["make_readme.py", "--check"])
    with pytest.raises(SystemExit, match="True"):
        make_readme.main()
    said = capsys.readouterr().out
    assert "results/field.md is not what the rows give: run python -m results.make_readme" in said
    assert f"-{line}" in said
    assert "+| LwF | 99 |" in said
    assert page.read_text(encoding="utf-8") == text


def test_templates() -> None:
    rows = FIRST_GRID.rows
    energy = (
        (rows["metric"] == "auc") & (rows["task"] == 0) & (rows["detector"] == "energy") & (rows["k"] == 20)
    )
    bic = 100 * rows[energy & (rows["cil"] == "bic")]["value"].mean()
    near = 100 * rows[energy & (rows["distance"] == "near") & (rows["step"] > 2)]["value"].mean()
    of_bic, of_near = (
        "{{auc('energy', 20, cil='bic'):.3f}}",
        "{{auc('energy', 20, distance='near', first=3):.3f}}",
    )
    assert make_readme.render(f"AUC {of_bic}{{{{holds(True)}}}} {of_near}") == f"AUC {bic:.3f} {near:.3f}"
    assert make_readme.render("{{-0.25:+.2f}} {{'(-1), x-1'}}") == "−0.25 (−1), x-1"
    assert (
        make_readme.render("a\nb\n\n```\nc\n\nd\ne\n```\n\n| f |\n| g |\n\n- h\n  i\n- j")
        == "a b\n\n```\nc\n\nd\ne\n```\n\n| f |\n| g |\n\n- h   i\n- j"
    )
    for wrong, why in (
        ("holds(1 > 2)", "it is not so"),
        ("auc('x')", "there are no such rows"),
        ("oors", "oors"),
    ):
        with pytest.raises(SystemExit) as ended:
            make_readme.render(f"{{{{{wrong}}}}}")
        assert str(ended.value).startswith(f"{{{{{wrong}}}}}: ")
        assert why in str(ended.value)


def test_the_published_tables_are_those_that_the_rows_make() -> None:
    text = (RESULTS / "study" / "tables.md").read_text(encoding="utf-8")
    assert text == make_page.tables(STUDY), "python -m results.make_page makes them"


def test_models_and_detectors_of_one_seed_take_nothing_from_the_others() -> None:
    """Ranks are over cells that all detectors have: one of a single seed would leave that seed's alone."""
    first = STUDY.rows[STUDY.rows["seed"] == 0]
    more = [first[first["detector"] == "energy"].assign(detector="knn"), first.assign(cil="der")]
    runs = [run | {"cil": "der"} for run in STUDY.runs if (run["cil"], run["seed"]) == ("wa", 0)]
    runs += [
        run | {"detectors": run["detectors"] | {"knn": run["steps"]}} if run["seed"] == 0 else run
        for run in STUDY.runs
    ]
    further = replace(STUDY, rows=pd.concat([STUDY.rows, *more], ignore_index=True), runs=runs)
    kept, before = make_page.of_all_seeds(further), make_page.of_all_seeds(STUDY)
    pd.testing.assert_frame_equal(kept.rows, before.rows, check_index_type=False)
    assert [run["detectors"] for run in kept.runs] == [run["detectors"] for run in before.runs]
    assert {run["cil"] for run in kept.runs} == set(make_page.CIL) < {run["cil"] for run in further.runs}
    assert any("knn" in run["detectors"] for run in further.runs)


def test_the_published_page_is_of_the_studys_runs() -> None:
    text = (RESULTS / "study" / "index.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    steps = {(run["k"], run["cil"], run["seed"]): run["detectors"] for run in STUDY.runs}
    assert {(run["k"], run["cil"], run["seed"]): run["detectors"] for run in data["runs"]} == steps
    assert len(text.encode()) < 5_000_000


def test_links_of_the_pages_lead_somewhere() -> None:
    templates = {*RESULTS.glob("*.in.md")}
    pages = [*sorted({*RESULTS.glob("*.md")} - templates), *sorted(EXPERIMENTS.glob("*.md"))]
    for page in [ROOT / "README.md", *pages]:
        for link, heading in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            assert "://" in link or target.exists(), f"{page.name}: {link}"
            if heading and target.suffix == ".md":
                titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                named = [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles]
                assert heading in named, f"{page.name}: {link}#{heading}"


def test_rows_are_whole() -> None:
    assert STUDY.runs
    for run in STUDY.runs:
        assert run["steps"] == 100 // int(run["k"])
        noted = dict.fromkeys(["", *run["detectors"]], 0)
        for detector, steps in ((d, s) for made in run["made"] for d, s in made["steps"].items()):
            noted[detector] += len(steps)
        counts = {"": run["trained"], **run["detectors"]}
        assert noted == counts, "source, device, precision and time of every detector's steps"
    auc = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["task"] == 0)]
    assert auc["value"].between(0, 1).all()
    counts = auc.groupby(["k", "cil", "seed"]).size().to_dict()
    assert counts == {
        (run["k"], run["cil"], run["seed"]): 6 * sum(run["detectors"].values()) for run in STUDY.runs
    }
    assert {(run["k"], run["cil"], run["trained"]) for run in FIRST_GRID.runs} == {
        (k, cil, 100 // k) for k in (10, 20) for cil in CIL
    }


def configs_below(page: Path, heading: str = "") -> list[dict[str, Any]]:
    """Configs of the commands below a heading: a shell runs the block and prints each command's words."""
    text = page.read_text(encoding="utf-8").split(f"## {heading}\n" if heading else "# ", 1)[1]
    script = text.split("```bash\n")[1].split("```")[0]
    words = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
    shell = ["bash", "-euc", f'opencil() {{ {words} "$@"; }}\n{script}']
    printed = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    made = []
    for line in printed.splitlines():
        done = CliRunner().invoke(app, ["config", *json.loads(line)[1:]])
        assert done.exit_code == 0, done.output
        config = yaml.safe_load(done.stdout)
        # As records have it: without what decides nothing at its default.
        config["training"] = plain(build(Arithmetic, config["training"], "training"))
        made.append(config)
    return made


def _values(config: dict[str, Any], k: int, cil: str) -> dict[str, Any]:
    """What decides a run; shifted sets are looked at besides, and change nothing else."""
    benchmark = {name: v for name, v in config["benchmark"].items() if name != "shifted"}
    return {
        "benchmark": benchmark | {"classes_per_step": [k]},
        "training": config["training"],
        "cil": {cil: config["cil"][cil]},
    }


@pytest.mark.parametrize(
    ("folder", "whole", "pages"),
    [
        (
            RESULTS / "study",
            False,
            [
                (RESULTS / "README.md", "What was run"),
                (EXPERIMENTS / "heads.md", "Named values, and outliers that skip BiC's correction"),
            ],
        ),
        (RESULTS / "learners", True, [(RESULTS / "field.md", "The field's learners")]),
        (EXPERIMENTS / "rows/defaults", True, [(EXPERIMENTS / "defaults.md", "")]),
        (EXPERIMENTS / "rows/set_up", True, [(EXPERIMENTS / "set_up.md", "Memory, train+, or as released")]),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_commands_of_todays_defaults_made_their_results(
    folder: Path, whole: bool, pages: list[tuple[Path, str]]
) -> None:
    """Every stored value is asked for; all that is asked for is stored, but where a study is under way."""
    asked: dict[tuple[int, str, int], dict[str, Any]] = {}
    for config in (config for page, heading in pages for config in configs_below(page, heading)):
        benchmark = config["benchmark"]
        for k, cil, seed in product(benchmark["classes_per_step"], config["cil"], config["seed"]["runs"]):
            values = _values(config, k, cil)
            known = asked.setdefault((k, cil, seed), values | {"detector": {}})
            assert {name: known[name] for name in values} == values
            known["detector"] |= config["detector"]
    stored = {}
    for run in read_study(folder).runs:
        config = in_todays_terms(run["config"])
        key = (int(run["k"]), run["cil"], run["seed"])
        values = {name: plain(DETECTORS.create(name, **v)) for name, v in config["detector"].items()}
        stored[key] = _values(config, key[0], key[1]) | {"detector": values}
        if whole:
            assert set(run["detectors"].values()) == {run["trained"]} == {100 // key[0]}
        else:
            asked[key]["detector"] = {name: asked[key]["detector"][name] for name in values}
    assert stored == (asked if whole else {key: asked[key] for key in stored})


def test_trainings_with_either_kernels_differ_in_nothing_else() -> None:
    """Seeds, images and values are the same; the backbone is the plugin's, and compiled."""
    ours, torchs = (read_study(EXPERIMENTS / "rows/by_torch" / kind).runs for kind in ("ours", "torch"))
    assert [run["seed"] for run in ours] == [run["seed"] for run in torchs] == list(range(6))
    for own, other in zip(ours, torchs, strict=True):
        assert own["environment"]["source"] == other["environment"]["source"]
        assert own["data"] == other["data"]
        wanted = copy.deepcopy(own["config"])
        wanted["benchmark"]["backbone"], wanted["training"]["compile"] = "resnet32_by_torch", True
        (plugin,) = other["config"].pop("plugins")
        assert "resnet32_by_torch" in (EXPERIMENTS / Path(plugin).name).read_text(encoding="utf-8")
        assert other["config"] == wanted


def test_the_readmes_commands_made_the_results() -> None:
    """Their configs are the stored ones."""
    configs = configs_below(EXPERIMENTS / "first_grid.md", "What was run")
    assert len(configs) == 7
    stored: dict[tuple[str, int, str, int], dict[str, Any]] = {}
    made: dict[tuple[str, int, str, int], dict[str, Any]] = {}

    def note(
        configs: dict[tuple[str, int, str, int], dict[str, Any]], config: Any, k: int, cil: str, seed: int
    ) -> None:
        """The values that decide a run, as they are understood today."""
        values = {"cil": plain(LEARNERS.create(cil, **config["cil"][cil])), "training": config["training"]}
        noted = configs.setdefault((config["training"]["precision"], k, cil, seed), values | {"detector": {}})
        assert noted["training"] == config["training"]
        noted["detector"] |= {
            name: plain(DETECTORS.create(name, **v)) for name, v in config["detector"].items()
        }

    for folder in ("first_grid", "learning_rate", "precision/tf32", "precision/bf16"):
        for run in read_study(EXPERIMENTS / "rows" / folder).runs:
            note(stored, in_todays_terms(run["config"]), run["k"], run["cil"], run["seed"])
    for config in configs:
        for k, cil, seed in product(
            config["benchmark"]["classes_per_step"], config["cil"], config["seed"]["runs"]
        ):
            note(made, config, k, cil, seed)
    assert made == stored


def test_what_is_compared_differs_in_what_is_said_alone() -> None:
    """BiC as released has our values besides its three; the earlier iCaRL, the grid's training and BER."""
    (released,) = read_study(EXPERIMENTS / "rows/bic_released").runs
    values = dict(released["config"]["cil"]["bic_released"])
    changed = {name: values.pop(name) for name in ("double_softmax", "batch_norm_trains", "decay")}
    assert changed == {"double_softmax": True, "batch_norm_trains": True, "decay": 2e-4}
    of = {run["cil"]: run["config"] for run in FIRST_GRID.runs if run["k"] == 10}
    assert values == of["bic"]["cil"]["bic"]
    (earlier,) = (
        run["config"] for run in read_study(EXPERIMENTS / "rows/rounding").runs if run["cil"] == "icarl"
    )
    assert earlier["training"] == of["icarl"]["training"]
    # older configs had no other margins
    assert {"margins": "fixed", **earlier["detector"]["ber"]} == of["icarl"]["detector"]["ber"]
    rows = read_study(EXPERIMENTS / "rows/bic_released").rows
    of_seventh = rows[(rows["metric"] == "accuracy") & (rows["task"] == 7)]
    assert of_seventh.set_index("step")["value"].to_dict() == dict.fromkeys(range(7, 11), 0.0), (
        "it breaks down"
    )


@pytest.mark.parametrize(
    ("file", "where", "column", "k"),
    [
        (EXPERIMENTS / "set_up_data.csv", "setup == 'train+'", "auc", 10),
        (EXPERIMENTS / "set_up_data_k20.csv", "setup == 'train+'", "auc", 20),
        (EXPERIMENTS / "rows/first_grid/on_a_cpu.csv", "k == 20", "gpu", 20),
    ],
)
def test_files_beside_the_rows_say_the_same(file: Path, where: str, column: str, k: int) -> None:
    rows = FIRST_GRID.rows[
        (FIRST_GRID.rows["metric"] == "auc") & (FIRST_GRID.rows["task"] == 0) & (FIRST_GRID.rows["k"] == k)
    ]
    cells = ["cil", "step", "detector", "ood"]
    both = pd.read_csv(file).query(where).merge(rows, on=cells, validate="one_to_one")
    assert len(both) == len(pd.read_csv(file).query(where))
    assert (both[column] - both["value"]).groupby(both["detector"]).mean().abs().max() < 1e-4


def test_the_correction_that_is_stored_is_that_of_the_rows() -> None:
    table = pd.read_csv(EXPERIMENTS / "bic_correction.csv").query("correction == 'stored'").set_index("step")
    rows = FIRST_GRID.rows.query("metric == 'accuracy' and task == 0 and k == 10 and cil == 'bic'").set_index(
        "step"
    )
    stored = 100 * rows["value"][table.index]
    assert table["accuracy"].to_dict() == pytest.approx(stored.to_dict(), abs=0.1), "on a CPU, and on a GPU"
