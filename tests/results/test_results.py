"""The results that come with the code: rows are whole, and make the published tables and the READMEs."""

import importlib.util
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from opencil import read_study
from opencil.cli import app
from opencil.engine.arithmetic import Arithmetic
from opencil.registry import DETECTORS, LEARNERS
from opencil.report.writing import write_report
from opencil.runs.plan import in_todays_terms
from opencil.validation import build, plain

ROOT = Path(__file__).parents[2]
RESULTS, EXPERIMENTS = ROOT / "results", ROOT / "experiments"
CIFAR = RESULTS / "cifar100"
STUDY = read_study(CIFAR)
CIL = ("icarl", "bic", "wa", "foster")


@pytest.fixture(scope="module")
def make_readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_readme", RESULTS / "make_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readmes_are_what_the_rows_give(
    make_readme: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_readme.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        make_readme.main()
    assert not ended.value.code, capsys.readouterr().out


def test_a_readme_that_says_something_else_is_shown(
    make_readme: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = RESULTS / "README.md"
    text = page.read_text(encoding="utf-8")
    monkeypatch.setattr(
        make_readme, "pages", lambda: {page: text.replace("| Energy | 72.04 |", "| Energy | 99 |")}
    )
    monkeypatch.setattr(sys, "argv", ["make_readme.py", "--check"])
    with pytest.raises(SystemExit, match="True"):
        make_readme.main()
    said = capsys.readouterr().out
    assert "results/README.md is not what the rows give: run python results/make_readme.py" in said
    assert "-| Energy | 72.04 |" in said
    assert "+| Energy | 99 |" in said
    assert page.read_text(encoding="utf-8") == text


def test_templates(make_readme: ModuleType) -> None:
    rows = STUDY.rows
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
    assert make_readme.render("{{-0.25:+.2f}}") == "−0.25"
    assert (
        make_readme.render("a\nb\n\n```\nc\n\nd\ne\n```\n\n| f |\n| g |")
        == "a b\n\n```\nc\n\nd\ne\n```\n\n| f |\n| g |"
    )
    for wrong, why in (
        ("holds(1 > 2)", "it is not so"),
        ("auc('x')", "there are no such rows"),
        ("ours", "ours"),
    ):
        with pytest.raises(SystemExit) as ended:
            make_readme.render(f"{{{{{wrong}}}}}")
        assert str(ended.value).startswith(f"{{{{{wrong}}}}}: ")
        assert why in str(ended.value)


def test_the_published_tables_are_those_that_the_rows_make(tmp_path: Path) -> None:
    write_report(STUDY, tmp_path, figures=())
    made, published = (
        {path.relative_to(folder): path.read_text(encoding="utf-8") for path in (folder / "tables").iterdir()}
        | {Path("tables.md"): (folder / "tables.md").read_text(encoding="utf-8")}
        for folder in (tmp_path, CIFAR)
    )
    assert len(made) > 50
    assert made == published


def test_rows_are_whole() -> None:
    trained = {(run["k"], run["cil"]): run["trained"] for run in STUDY.runs}
    assert trained == {(k, cil): 100 // k for k in (10, 20) for cil in CIL}
    rows = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["task"] == 0)]
    assert rows["value"].between(0, 1).all()
    variants = rows["detector"].str.contains("@")
    for (k, cil), steps in trained.items():
        run = (rows["k"] == k) & (rows["cil"] == cil)
        assert len(rows[run & ~variants]) == 16 * steps * 6
        more = 9 if (k, cil) == (10, "icarl") else 1
        assert len(rows[run & variants]) == more * steps * 6


def configs_below(heading: str) -> list[dict[str, Any]]:
    """Configs of the commands below a heading: a shell runs the block and prints each command's words."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8").split(f"## {heading}\n")[1]
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


@pytest.mark.parametrize(
    ("section", "folders"),
    [
        ("Under today's defaults", ["defaults"]),
        ("All four models, two seeds, with kernels of our own", ["kernels", "seed1"]),
        ("The field's learners", ["learners"]),
    ],
)
def test_the_commands_of_todays_defaults_made_their_results(section: str, folders: list[str]) -> None:
    asked: dict[tuple[int, str, int], dict[str, Any]] = {}
    for config in configs_below(section):
        benchmark = config["benchmark"]
        for k, cil, seed in product(benchmark["classes_per_step"], config["cil"], config["seed"]["runs"]):
            values = {
                "benchmark": benchmark | {"classes_per_step": [k]},
                "training": config["training"],
                "cil": {cil: config["cil"][cil]},
            }
            known = asked.setdefault((k, cil, seed), values | {"detector": {}})
            assert {name: known[name] for name in values} == values
            known["detector"] |= config["detector"]
    stored = {}
    for run in (run for folder in folders for run in read_study(RESULTS / folder).runs):
        config = in_todays_terms(run["config"])
        values = {name: plain(DETECTORS.create(name, **v)) for name, v in config["detector"].items()}
        said = {name: config[name] for name in ("benchmark", "training", "cil")}
        stored[run["k"], run["cil"], run["seed"]] = said | {"detector": values}
        assert set(run["detectors"].values()) == {run["trained"]} == {100 // run["k"]}
        assert len(run["made"]) == 1, "one source, one device"
    assert asked == stored


def test_the_readmes_commands_made_the_results() -> None:
    """Their configs are the stored ones."""
    configs = configs_below("What was run")
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

    for folder in ("cifar100", "learning_rate", "precision/tf32", "precision/bf16"):
        for run in read_study(RESULTS / folder).runs:
            note(stored, in_todays_terms(run["config"]), run["k"], run["cil"], run["seed"])
    for config in configs:
        for k, cil, seed in product(
            config["benchmark"]["classes_per_step"], config["cil"], config["seed"]["runs"]
        ):
            note(made, config, k, cil, seed)
    assert made == stored


def test_what_is_compared_differs_in_what_is_said_alone() -> None:
    """BiC as released has our values besides its three; the earlier iCaRL, the grid's training and BER."""
    (released,) = read_study(RESULTS / "bic_released").runs
    values = dict(released["config"]["cil"]["bic_released"])
    changed = {name: values.pop(name) for name in ("double_softmax", "batch_norm_trains", "decay")}
    assert changed == {"double_softmax": True, "batch_norm_trains": True, "decay": 2e-4}
    of = {run["cil"]: run["config"] for run in STUDY.runs if run["k"] == 10}
    assert values == of["bic"]["cil"]["bic"]
    (earlier,) = (run["config"] for run in read_study(RESULTS / "rounding").runs if run["cil"] == "icarl")
    assert earlier["training"] == of["icarl"]["training"]
    # older configs had no other margins
    assert {"margins": "fixed", **earlier["detector"]["ber"]} == of["icarl"]["detector"]["ber"]
    rows = read_study(RESULTS / "bic_released").rows
    of_seventh = rows[(rows["metric"] == "accuracy") & (rows["task"] == 7)]
    assert of_seventh.set_index("step")["value"].to_dict() == dict.fromkeys(range(7, 11), 0.0), (
        "it breaks down"
    )


@pytest.mark.parametrize(
    ("file", "where", "column", "k"),
    [
        (EXPERIMENTS / "set_up_data.csv", "setup == 'train+'", "auc", 10),
        (EXPERIMENTS / "set_up_data_k20.csv", "setup == 'train+'", "auc", 20),
        (CIFAR / "on_a_cpu.csv", "k == 20", "gpu", 20),
    ],
)
def test_files_beside_the_rows_say_the_same(file: Path, where: str, column: str, k: int) -> None:
    rows = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["task"] == 0) & (STUDY.rows["k"] == k)]
    cells = ["cil", "step", "detector", "ood"]
    both = pd.read_csv(file).query(where).merge(rows, on=cells, validate="one_to_one")
    assert len(both) == len(pd.read_csv(file).query(where))
    assert (both[column] - both["value"]).groupby(both["detector"]).mean().abs().max() < 1e-4


def test_the_correction_that_is_stored_is_that_of_the_rows() -> None:
    table = pd.read_csv(EXPERIMENTS / "bic_correction.csv").query("correction == 'stored'").set_index("step")
    rows = STUDY.rows.query("metric == 'accuracy' and task == 0 and k == 10 and cil == 'bic'").set_index(
        "step"
    )
    stored = 100 * rows["value"][table.index]
    assert table["accuracy"].to_dict() == pytest.approx(stored.to_dict(), abs=0.1), "on a CPU, and on a GPU"
