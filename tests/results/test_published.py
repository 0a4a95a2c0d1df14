"""The results that come with the code: the rows make the published tables and the README's figures."""

import json
import re
import subprocess
import sys
from itertools import product
from operator import sub
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from opencil import read_study
from opencil.cli import app
from opencil.published import contradictory, published_ablation, published_results, recomputed_means
from opencil.report.order import families

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CIFAR = RESULTS / "cifar100"
LEARNING_RATE = RESULTS / "learning_rate"
CIL = {"iCaRL": "icarl", "BiC": "bic", "WA": "wa", "FOSTER": "foster"}
STUDY = read_study(CIFAR)
TEN = [
    run for run in STUDY.runs if run["k"] == 10
]  # the main study; its rows are what ours() means by default


def mean(rows: pd.DataFrame, metric: str, **where: object) -> float:
    """Mean of a metric over steps, OOD sets and what else is not named, in percent."""
    rows = rows[(rows["metric"] == metric) & (rows["task"] == 0)]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return 100 * float(rows["value"].mean())


def ours(metric: str, k: int = 10, **where: object) -> float:
    """The same, of the grid and its variants."""
    return mean(STUDY.rows, metric, k=k, **where)


def papers(metric: str, cil: list[str], detector: str = "", split: str = "all", k: int = 10) -> float:
    """Mean of the published figures; where one contradicts its near and far parts, what these give."""
    figures = published_results()
    value = figures["value"].where(~contradictory(figures), recomputed_means(figures))
    chosen = (figures["id_dataset"] == "cifar100") & (figures["classes_per_step"] == k)
    chosen &= (figures["metric"] == metric) & (figures["detector"] == detector) & figures["cil"].isin(cil)
    chosen &= figures["ood_split"].isin(["", split])
    assert chosen.sum() == len(cil)
    return float(value[chosen].mean())


def text_of(section: str = "") -> str:
    """The README, or a section of it."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    return re.split(r"^#+ ", text.split(f"# {section}\n")[1], flags=re.MULTILINE)[0] if section else text


def missing(sentences: list[str], section: str = "") -> list[str]:
    """Those that do not stand there."""
    prose = " ".join(text_of(section).split())
    return [sentence for sentence in sentences if sentence not in prose]


def readme(section: str = "") -> list[list[str]]:
    """The cells of the README's table lines, or of those in a section, without marks of weight."""
    text = text_of(section)
    rows = [line for line in text.splitlines() if line.startswith("| ") and not set(line) <= set("|-: ")]
    return [[cell.strip().replace("**", "") for cell in line.strip("|").split("|")] for line in rows]


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a report writes, from the committed rows."""
    out = tmp_path_factory.mktemp("again")
    flags = ["--compare", "paper", "--statistics", "--out", str(out)]
    done = CliRunner().invoke(app, ["report", str(CIFAR), *flags])
    assert done.exit_code == 0, done.output
    return out


def test_the_published_tables_are_those_that_the_rows_make(again: Path) -> None:
    made = {path.relative_to(again) for path in (again / "tables").iterdir()} | {Path("tables.md")}
    published = {path.relative_to(CIFAR) for path in (CIFAR / "tables").iterdir()} | {Path("tables.md")}
    assert made == published
    assert len(made) > 50
    for name in made:
        assert (again / name).read_text(encoding="utf-8") == (CIFAR / name).read_text(encoding="utf-8"), name


def test_rows_are_whole() -> None:
    trained = {(run["k"], run["cil"]): run["trained"] for run in STUDY.runs}
    assert trained == {(k, cil): 100 // k for k in (10, 20) for cil in CIL.values()}
    rows = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["task"] == 0)]
    assert rows["value"].between(0, 1).all()
    variants = rows["detector"].str.contains("@")
    for (k, cil), steps in trained.items():
        run = (rows["k"] == k) & (rows["cil"] == cil)
        assert len(rows[run & ~variants]) == 16 * steps * 6
        more = 9 if (k, cil) == (10, "icarl") else 1
        assert len(rows[run & variants]) == more * steps * 6
        assert "ber@chosen" in set(rows[run]["detector"])


@pytest.mark.parametrize(("section", "k"), [("What was run", 10), ("20 classes a step", 20)])
def test_the_readmes_accuracies_and_seconds(section: str, k: int) -> None:
    lines = {cells[0]: cells[1:] for cells in readme(section) if cells[0] in CIL and len(cells) == 6}
    assert lines.keys() == CIL.keys()
    for name, cells in lines.items():
        (run,) = (run for run in STUDY.runs if (run["k"], run["cil"]) == (k, CIL[name]))
        stages = [sum(s[stage] for s in run["seconds"]) for stage in ("training", "tuning", "evaluation")]
        accuracies = ours("accuracy", k=k, cil=CIL[name], detector=""), papers("acc", [CIL[name]], k=k)
        assert cells == [*(f"{s:.0f}" for s in stages), *(f"{a:.2f}" for a in accuracies)]


@pytest.mark.parametrize(("section", "k"), [("What agrees and what does not", 10), ("20 classes a step", 20)])
def test_the_readmes_detectors(section: str, k: int) -> None:
    lines = [cells for cells in readme(section) if len(cells) == 8]
    halves = [part for cells in lines for part in (cells[:4], cells[4:]) if part[0]]
    assert len(halves) == 17
    for name, auc, published, difference in halves:
        detector = {"BER, chosen values": "ber@chosen"}.get(name, name.lower())
        found = ours("auc", k=k, detector=detector)
        expected = papers("auc", [*CIL.values()], detector.split("@")[0], k=k)
        assert [float(auc), float(published)] == pytest.approx([found, expected], abs=0.0051), name
        assert difference.replace("−", "-") == f"{found - expected:+.1f}", name


def test_the_readmes_set_up_data() -> None:
    table = 100 * pd.read_csv(EXPERIMENTS / "set_up_data.csv").pivot_table(
        index="setup", columns="detector", values="auc"
    )
    checked = 0
    named = ("klm", "nnguide", "react", "relation")
    for name, *cells in readme("Relation: what it is set up on"):
        if name == "the paper":
            expected = [papers("auc", [*CIL.values()], d) for d in named]
            assert [float(cell) for cell in cells] == pytest.approx(expected, abs=0.0051)
        setup = name.removesuffix(" (the default)")
        if len(cells) == 4 and setup in table.index:
            assert cells == [f"{table.loc[setup, d]:.2f}" for d in named]
            checked += 1
    assert checked == 3


def test_the_readmes_choices() -> None:
    """Each line is a choice's: that of its name, or else the one whose figures it has."""
    table = pd.read_csv(EXPERIMENTS / "choose_margins.csv")
    assert len(table) == 24 * 8
    by_model = table.pivot_table(index="choice", columns="cil", values="auc")[["icarl", "wa", "bic"]]
    by_model.insert(0, "mean", table.groupby("choice")["auc"].mean())
    named = {
        "BER, the paper's margins, lr 0.01, α 0.01": "BER, fixed lr=0.01 α=0.01",
        "VOS, `margins: model`, lr 0.01": "VOS, model lr=0.01",
        "BER, `margins: model`, lr 0.01, α 0.1": "BER, model lr=0.01 α=0.1",
        "Energy": "Energy",
        "OTER alone, the paper's values": "OTER alone, fixed lr=0.1 α=0.1",
        "cross-entropy alone (neither), lr 0.1": "BER, neither",
        "VOS, the paper's values": "VOS, fixed lr=0.1",
        "BER, the paper's values": "BER, fixed lr=0.1 α=0.1",
        "NTER alone, the paper's values": "NTER alone, fixed lr=0.1 α=0.1",
    }
    section = readme("BER: which values it needs")
    lines = {cells[0]: cells[1:] for cells in section if cells[0] in named and "(" not in cells[1]}
    assert lines.keys() == named.keys()
    for name, cells in lines.items():
        assert [float(cell) for cell in cells] == pytest.approx(by_model.loc[named[name]], abs=0.0051), name
    assert by_model["mean"].idxmax() == named["BER, the paper's margins, lr 0.01, α 0.01"]


@pytest.mark.parametrize(("section", "k"), [("BER: which values it needs", 10), ("20 classes a step", 20)])
def test_the_readmes_ber(section: str, k: int) -> None:
    lines = {cells[0]: cells[1:] for cells in readme(section) if len(cells) == 5 and "(" in cells[1]}
    named = {
        "Energy": "energy",
        "BER, the paper's values": "ber",
        "BER, the chosen values (`ber@chosen`)": "ber@chosen",
    }
    assert lines.keys() == named.keys()
    for name, cells in lines.items():
        where = [{"k": k, "cil": cil, "detector": named[name]} for cil in CIL.values()]
        assert cells == [f"{ours('auc', **w):.2f} ({ours('fpr', **w):.1f})" for w in where]
    (published,) = (cells[1:] for cells in readme(section) if cells[0] == "the paper's BER")
    assert published == [f"{papers('auc', [cil], 'ber', k=k):.2f}" for cil in CIL.values()]


def test_heads_tuned_on_a_cpu_are_those_of_the_gpu() -> None:
    rows = pd.read_csv(CIFAR / "on_a_cpu.csv")
    means = 100 * rows.groupby("detector")[["gpu", "cpu"]].mean()
    stored = {d: ours("auc", k=20, cil="icarl", step=5, detector=d) for d in means.index}
    assert means["gpu"].to_dict() == pytest.approx(stored, abs=1e-3)
    lower = (means["gpu"] - means["cpu"]).to_dict()
    assert lower == pytest.approx({"ber": 0.04, "energy": 0, "nnguide": 0}, abs=0.005)


def test_the_readmes_noise_of_ber() -> None:
    lines = {cells[0]: cells[1:] for cells in readme("BER: which values it needs") if " steps" in cells[0]}
    (heads,) = (c[1:] for c in readme("BER: which values it needs") if "bf16, seed 0" in c)
    places = {"bf16, seed 0": CIFAR, "bf16, seed 1": RESULTS / "precision" / "bf16"}
    places |= {f"tf32, seed {seed}": RESULTS / "precision" / "tf32" for seed in (0, 1)}
    places["bf16, seed 0, other kernels"] = RESULTS / "rounding"
    assert heads == list(places)
    values: dict[str, set[str]] = {"ber": set(), "ber@chosen": set()}
    for detector, name in {"ber": "the paper's values", "ber@chosen": "the chosen values"}.items():
        for last, steps in {10: "ten steps", 7: "steps 1 to 7"}.items():
            for column, path in enumerate(places.values()):
                study, seed = read_study(path), int(heads[column].split("seed ")[1][0])
                (run,) = (r for r in study.runs if (r["k"], r["cil"], r["seed"]) == (10, "icarl", seed))
                cell = lines[f"{name}, {steps}"][column]
                if last > run["detectors"].get(detector, 0):
                    assert cell == ""
                    continue
                rows = study.rows[study.rows["step"] <= last]
                where = {"k": 10, "cil": "icarl", "seed": seed}
                found = [mean(rows, "auc", detector=d, **where) for d in (detector, "energy")]
                assert float(cell.replace("−", "-")) == pytest.approx(sub(*found), abs=0.051)
                config = {
                    "margins": "fixed",
                    **run["config"]["detector"][detector],
                }  # older ones had no other
                values[detector].add(json.dumps(config, sort_keys=True))
    assert [len(found) for found in values.values()] == [1, 1], "under the same values in each"


def test_the_readmes_bic() -> None:
    rows = pd.read_csv(EXPERIMENTS / "bic_correction.csv")
    table = rows.pivot_table(index="step", columns="correction", values="accuracy")
    named = {
        "no correction at this step": "none",
        "ours, as stored": "stored",
        "ours, fitted again": "ours, again",
        "with weight decay 2e-4 (the paper's is not known)": "with decay",
        **{name: name for name in ("double softmax", "batch norm trains", "all three")},
    }
    lines = {cells[0]: cells[1:] for cells in readme() if cells[0] in named}
    assert lines.keys() == named.keys()
    for name, cells in lines.items():
        assert [float(cell) for cell in cells] == pytest.approx([*table[named[name]]], abs=0.0051), name
    stored = {step: ours("accuracy", cil="bic", step=step, detector="") for step in table.index}
    assert table["stored"].to_dict() == pytest.approx(stored, abs=0.1), (
        "on a CPU, and on the GPU that trained"
    )


def test_the_readmes_bic_as_released() -> None:
    study = read_study(RESULTS / "bic_released")
    (run,) = study.runs
    assert (run["k"], run["seed"], run["trained"]) == (10, 0, 10)
    as_ours = {**run["config"]["cil"]["bic_released"]}
    changed = {name: as_ours.pop(name) for name in ("double_softmax", "batch_norm_trains", "decay")}
    assert changed == {"double_softmax": True, "batch_norm_trains": True, "decay": 2e-4}
    (own,) = (run["config"]["cil"]["bic"] for run in TEN if run["cil"] == "bic")
    assert as_ours == own
    lines = {cells[0]: cells[1:] for cells in readme("BiC") if len(cells) == 12}
    accuracies = {}
    for name, rows, cil in (("ours", STUDY.rows, "bic"), ("as released", study.rows, "bic_released")):
        where = {"k": 10, "cil": cil, "detector": ""}
        found = accuracies[name] = [mean(rows, "accuracy", step=step, **where) for step in range(1, 11)]
        assert [float(cell) for cell in lines[name][:-1]] == pytest.approx(found, abs=0.051)
        assert lines[name][-1] == f"{fmean(found):.2f}"
    assert lines["the paper"][-1] == f"{papers('acc', ['bic']):.2f}"
    rows = study.rows[(study.rows["metric"] == "accuracy") & (study.rows["task"] == 7)]
    assert rows.set_index("step")["value"].to_dict() == dict.fromkeys(range(7, 11), 0.0), "it breaks down"
    corrections = pd.read_csv(RESULTS / "bic_released" / "corrections.csv").set_index(["cil", "step"])
    losses = [a - b for a, b in zip(*accuracies.values(), strict=True)]
    expected = [
        f"α is {corrections.loc[('bic_released', 7), 'alpha']:.3f}",
        f"this run is {fmean(losses):.1f} points lower",
        f"the two differ by {losses[0]:.1f}",
        f"At steps 2 to 6 the difference is {fmean(losses[1:6]):.1f}.",
    ]
    for name, end in (
        ("energy", "Energy's AUC is {:.2f} as released and {:.2f} in ours (the paper's {:.2f})"),
        ("msp", "MSP's {:.2f} and {:.2f} ({:.2f})"),
    ):
        found = mean(study.rows, "auc", detector=name), ours("auc", cil="bic", detector=name)
        expected.append(end.format(*found, papers("auc", ["bic"], name)))
    assert missing(expected, "BiC") == []


def test_the_readmes_ablation_of_ber() -> None:
    lines = {cells[0]: cells[1:] for cells in readme("BER: which values it needs") if len(cells) == 6}
    for name, both in {"the paper's values": "ber", "the chosen values": "ber@chosen"}.items():
        parts = [f"{both}{'-' if '@' in both else '@'}{part}" for part in ("none", "nter", "oter")]
        where = [{"cil": "icarl", "detector": d} for d in ("energy", *parts, both)]
        assert lines[name] == [f"{ours('auc', **w):.2f} ({ours('fpr', **w):.1f})" for w in where]
    of_part = published_ablation().groupby(["detector", "metric"])["value"].mean()
    pairs = [(of_part[d, "auc"], of_part[d, "fpr"]) for d in ("energy", "ber@nter", "ber@oter", "ber")]
    assert [cell for cell in lines["the paper"] if cell] == [f"{auc:.2f} ({fpr:.1f})" for auc, fpr in pairs]


def test_the_readmes_learning_rates() -> None:
    study = read_study(LEARNING_RATE)
    lines = {cells[0].lower(): cells[1:] for cells in readme("Heads that are tuned: the learning rate")[1:]}
    stated, gentle = (run["config"]["detector"] for run in (TEN[0], study.runs[0]))
    assert lines.keys() == {name for name in stated if "@" not in name and "schedule" in stated[name]}
    assert len(study.runs) == len(CIL)
    for run in study.runs:
        assert run["config"]["detector"] == gentle
    for name, cells in lines.items():
        slower = {**stated[name], "schedule": {**stated[name]["schedule"], "lr": 0.001}}
        assert gentle[f"{name}@gentle"] == slower, "nothing but the rate"
        by_model = [mean(study.rows, "auc", cil=c, detector=f"{name}@gentle") for c in CIL.values()]
        published = [papers("auc", [c], name) for c in CIL.values()]
        means = [ours("auc", detector=name), fmean(by_model), fmean(published)]
        assert [float(cell) for cell in cells[:3]] == pytest.approx(means, abs=0.0051), name
        untuned = ours("auc", detector="energy") - means[2]
        differences = [means[0] - means[2], means[1] - means[2], untuned, *map(sub, by_model, published)]
        assert [float(c.replace("−", "-")) for c in cells[3:]] == pytest.approx(differences, abs=0.051), name


def test_the_readmes_precisions() -> None:
    columns = {
        "tf32, seed 0": "precision/tf32",
        "tf32, seed 1": "precision/tf32",
        "bf16, seed 0": "cifar100",
        "bf16, seed 1": "precision/bf16",
        "bf16, seed 0, other kernels": "rounding",
    }
    (_, *header), *lines = readme("Precision")
    assert header == list(columns)
    quantities = {
        "accuracy": ("accuracy", ""),
        "accuracy, nearest mean": ("accuracy_nearest_mean", ""),
        **{
            f"{metric}, {d}": (metric.lower(), d.lower())
            for metric in ("AUC", "FPR")
            for d in ("Energy", "MSP")
        },
    }
    table = {cells[0]: cells[1:] for cells in lines}
    assert table.keys() == quantities.keys()
    for place, (column, folder) in enumerate(columns.items()):
        study, seed = read_study(RESULTS / folder), int(column.split("seed ")[1][0])
        (run,) = (r for r in study.runs if (r["k"], r["cil"], r["seed"]) == (10, "icarl", seed))
        training = {"precision": column[:4], "deterministic": True, "compile": True}
        assert run["config"]["training"] == training
        assert run["trained"] == 10
        for name, (metric, detector) in quantities.items():
            found = mean(study.rows, metric, k=10, cil="icarl", seed=seed, detector=detector)
            assert float(table[name][place]) == pytest.approx(found, abs=0.0051), (column, name)


def test_the_readmes_average_precision() -> None:
    rows = pd.read_csv(EXPERIMENTS / "average_precision.csv")
    assert set(rows["step"]) == set(range(1, 11))
    assert set(rows["cil"]) == {"icarl"}
    found = 100 * rows.groupby(["detector", "numbers", "distance"])["ap"].mean()
    _, *lines = [cells for cells in readme("What agrees and what does not") if len(cells) == 5]
    assert [name for name, *_ in lines] == ["Energy", "MSP"]
    for name, *cells in lines:
        expected = [
            [found[name.lower(), numbers, distance] for distance in ("near", "far")]
            for numbers in ("ours", "the paper's OOD", "and 90 % of ID")
        ]
        expected.append([papers("ap", ["icarl"], name.lower(), split) for split in ("near", "far")])
        assert cells == [f"{near:.1f} / {far:.1f}" for near, far in expected]


def test_the_readmes_commands_made_the_results() -> None:
    """The block is run by a shell that prints each command's words; their configs are the stored ones."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8").split("## What was run\n")[1]
    script = text.split("```bash\n")[1].split("```")[0]
    words = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
    shell = ["bash", "-euc", f'opencil() {{ {words} "$@"; }}\n{script}']
    printed = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    commands = [json.loads(line)[1:] for line in printed.splitlines()]
    assert len(commands) == 7
    stored, made = {}, {}
    for folder in ("cifar100", "learning_rate", "precision/tf32", "precision/bf16"):
        for run in read_study(RESULTS / folder).runs:
            config = run["config"]
            place = config["training"]["precision"], run["k"], run["cil"], run["seed"]
            values = stored.setdefault(
                place, {"cil": config["cil"], "training": config["training"], "detector": {}}
            )
            values["detector"] |= config["detector"]
    for command in commands:
        done = CliRunner().invoke(app, ["config", *command])
        assert done.exit_code == 0, done.output
        config = yaml.safe_load(done.stdout)
        for k, cil, seed in product(
            config["benchmark"]["classes_per_step"], config["cil"], config["seed"]["runs"]
        ):
            place = config["training"]["precision"], k, cil, seed
            values = made.setdefault(
                place, {"cil": {cil: config["cil"][cil]}, "training": config["training"], "detector": {}}
            )
            assert values["training"] == config["training"]
            values["detector"] |= config["detector"]
    assert made == stored


def signed(value: float) -> str:
    """As the README prints a difference."""
    return f"{value:+.1f}".replace("-", "−")


def gain(detector: str, k: int = 10, **where: object) -> float:
    """AUC less Energy's."""
    return ours("auc", k, detector=detector, **where) - ours("auc", k, detector="energy", **where)


def old_and_new(k: int, detector: str) -> tuple[float, float]:
    """AUC of old and of new classes from step 2 on, mean over the four models."""
    later = STUDY.rows[(STUDY.rows["k"] == k) & (STUDY.rows["step"] > 1)]
    return mean(later, "auc_old", detector=detector), mean(later, "auc_new", detector=detector)


def test_the_projects_readme() -> None:
    """The figures of its section about CIFAR-100."""
    grid = {name for name in TEN[0]["config"]["detector"] if "@" not in name}
    posthoc = set(dict(families(sorted(grid)))["post-hoc"]) - {"relation"}
    assert len(posthoc) == 8
    off: dict[str, list[float]] = {"BiC": [], "others": [], "post-hoc": []}
    for k in (10, 20):
        of_cil = {c: ours("accuracy", k, cil=c, detector="") - papers("acc", [c], k=k) for c in CIL.values()}
        off["BiC"].append(of_cil.pop("bic"))
        off["others"].append(max(map(abs, of_cil.values())))
        published = {d: papers("auc", [*CIL.values()], d, k=k) for d in posthoc}
        off["post-hoc"].append(max(abs(ours("auc", k, detector=d) - published[d]) for d in posthoc))
    expected = [
        f"the paper's to {max(off['others']):.1f} points",
        "(BiC: {:.1f} and {:.1f} above)".format(*off["BiC"]),
        "within {:.1f} and {:.1f} points of the paper's AUC".format(
            *(np.ceil(10 * x) / 10 for x in off["post-hoc"])
        ),
    ]
    prose = " ".join((RESULTS.parent / "README.md").read_text(encoding="utf-8").split())
    assert [sentence for sentence in expected if sentence not in prose] == []


def test_the_readmes_sentences_of_20_classes() -> None:
    calls = pd.read_csv(CIFAR / "calls.csv").set_index("call")["seconds"][[10, 11, 12]]
    peak = max(run["environment"]["peak_memory_mib"] for run in STUDY.runs if run["k"] == 20)
    expected = [
        "{:,} s in three calls of {}, {} and {} s".format(calls.sum(), *calls),
        f"{peak / 1024:.1f} GiB at the peak. Stages overlap",
    ]
    agreement = pd.read_csv(CIFAR / "tables" / "agreement-main-cifar100-k20.csv").set_index("CIL").loc["all"]
    ranks = [float(agreement[column]) for column in agreement.index if "rank" in column]
    expected.append(f"is {ranks[0]:.2f} in the mean over the four models for AUC and {ranks[1]:.2f} for FPR")
    off = {
        (detector, cil): ours("auc", 20, cil=cil, detector=detector) - papers("auc", [cil], detector, k=20)
        for detector, cil in (("nnguide", "bic"), ("react", "icarl"))
    }
    expected.append("NNGuide is {} on BiC and ReAct {} on iCaRL".format(*map(signed, off.values())))
    by_step = [signed(gain("ber@chosen", 20, step=step)) for step in range(1, 6)]
    expected.append("{} and {} at the first two, {}, {} and {} at the others".format(*by_step))
    foster, bic, wa, icarl = (
        f"{gain('ber@chosen', 20, cil=c):.1f}" for c in ("foster", "bic", "wa", "icarl")
    )
    assert bic == wa
    expected.append(f"by {foster} (FOSTER), {bic} (BiC and WA) and {icarl} (iCaRL)")
    near = [signed(gain("ber@chosen", 20, cil=c, distance="near")) for c in ("bic", "wa", "foster", "icarl")]
    expected.append("(BiC {}, WA {}, FOSTER {}; iCaRL {})".format(*near))
    old, new = zip(*(old_and_new(20, d) for d in ("ber", "energy", "ber@chosen")), strict=True)
    expected.append(
        f"(AUC {new[0]:.1f}, under Energy {new[1]:.1f}; on old ones {old[0]:.1f} and {old[1]:.1f})"
    )
    expected.append(
        f"classes' (AUC {old[2]:.1f}, under Energy {old[1]:.1f}); new ones lose ({new[2]:.1f}, {new[1]:.1f})"
    )
    expected.append(f"({signed(gain('ber', 20, ood='mnist'))}) and on new classes")
    expected.append(f"({signed(gain('augmix', 20, ood='svhn'))} against Energy)")
    setups = pd.read_csv(EXPERIMENTS / "set_up_data_k20.csv").pivot_table(
        index="setup", columns="detector", values="auc"
    )
    relation = 100 * setups["relation"]
    assert relation["train+"] == pytest.approx(ours("auc", 20, step=3, detector="relation"), abs=0.01)
    expected.append(
        f"its AUC is {relation['train+']:.1f} on train+ and {relation['memory']:.1f} on the memory"
    )
    rows = STUDY.rows[(STUDY.rows["k"] == 20) & (STUDY.rows["detector"] == "relation")]
    rows = rows[rows["step"] > 1]
    cells = [
        [100 * g for g in rows[rows["metric"] == metric].groupby(["cil", "step"])["value"].mean()]
        for metric in ("auc_old", "auc_new")
    ]
    ends = [f"{end(part):.0f}" for part in cells for end in (min, max)]
    expected.append("it is {} to {} for old classes and {} to {} for new ones".format(*ends))
    cpu = pd.read_csv(CIFAR / "on_a_cpu.csv")
    cpu = cpu[cpu["detector"] == "ber"]
    lower = 100 * (cpu["gpu"] - cpu["cpu"])
    expected.append(f"BER {lower.mean():.2f} lower in the mean, at most {lower.abs().max():.2f} by set")
    assert missing(expected, "20 classes a step") == []


def test_the_readmes_sentences() -> None:
    """Figures in prose, as they stand there."""
    calls = pd.read_csv(CIFAR / "calls.csv").set_index("call")["seconds"]
    peak = max(run["environment"]["peak_memory_mib"] for run in TEN)
    expected = [
        f"**{calls[[1, 2, 3]].sum():,} s** in three calls of {calls[1]}, {calls[2]} and {calls[3]} s",
        f"{peak / 1024:.1f} GiB at the peak",
    ]
    agreement = pd.read_csv(CIFAR / "tables" / "agreement-main-cifar100-k10.csv").set_index("CIL").loc["all"]
    ranks = [float(agreement[column]) for column in agreement.index if "rank" in column]
    expected.append(f"is {ranks[0]:.2f} in the mean over the four models for AUC and {ranks[1]:.2f} for FPR")

    sets = {"MNIST": "mnist", "CIFAR-10": "cifar10", "TIN": "tin"}
    sets |= {"Places": "places365", "Texture": "texture", "SVHN": "svhn"}
    expected.append(", ".join(f"{name} {signed(gain('ber', ood=ood))}" for name, ood in sets.items()))
    later = STUDY.rows[(STUDY.rows["k"] == 10) & (STUDY.rows["step"] > 1)]
    bias = {
        (detector, which, part): mean(rows, f"auc_{which}", detector=detector)
        for detector in ("energy", "ber")
        for which in ("new", "old")
        for part, rows in (("all", later), ("others", later[later["ood"] != "mnist"]))
    }
    expected.append(f"(AUC {bias['ber', 'new', 'all']:.1f}, under Energy {bias['energy', 'new', 'all']:.1f})")
    expected.append(f"({bias['ber', 'old', 'all']:.1f} and {bias['energy', 'old', 'all']:.1f})")
    changes = [(bias["energy", w, "others"], bias["ber", w, "others"]) for w in ("new", "old")]
    expected += [f"from {before:.1f} to {after:.1f}" for before, after in changes]
    old, new = zip(*(old_and_new(10, d) for d in ("ber@chosen", "energy")), strict=True)
    expected.append(
        "their AUC is {:.1f} (under Energy {:.1f}), that of new ones {:.1f} ({:.1f})".format(*old, *new)
    )
    gains = [f"{gain('ber@chosen', cil=c):.1f}" for c in ("foster", "wa", "bic", "icarl")]
    expected.append("by {} (FOSTER), {} (WA), {} (BiC) and {} (iCaRL) points".format(*gains))

    gentle = read_study(LEARNING_RATE).rows
    tuned = sorted({name.split("@")[0] for name in gentle["detector"] if name})
    cells = [(detector, cil) for detector in tuned for cil in CIL.values()]
    published = np.array([papers("auc", [cil], detector) for detector, cil in cells])
    stated = np.array([ours("auc", cil=cil, detector=detector) for detector, cil in cells])
    slow = np.array([mean(gentle, "auc", cil=cil, detector=f"{d}@gentle") for d, cil in cells])
    energy = np.array([ours("auc", cil=cil, detector="energy") for _, cil in cells])
    theirs = published - [papers("auc", [cil], "energy") for _, cil in cells]
    away = [np.abs(found - published).mean() for found in (stated, slow, energy)]
    expected.append(f"distance falls from {away[0]:.1f} to {away[1]:.1f} points")
    expected.append(f"untuned heads are {away[2]:.1f} off")
    alike = [np.corrcoef(found - energy, theirs)[0, 1] for found in (slow, stated)]
    expected.append(f"correlate with the paper's gains by {alike[0]:.2f}, at lr 0.1 by {alike[1]:.2f}")
    for detector, ood in (("augmix", "svhn"), ("ber", "mnist")):
        slower = mean(gentle, "auc", detector=f"{detector}@gentle", ood=ood)
        expected.append(
            f"from {ours('auc', detector=detector, ood=ood):.1f} to {slower:.1f} on {ood.upper()}"
        )
    expected.append(f"{signed(gain('augmix', ood='svhn'))} against Energy")
    pairs = [
        ours("auc", cil="icarl", detector=f"{d}{label}") for label in ("@chosen", "") for d in ("vos", "npos")
    ]
    expected.append("{:.2f} and {:.2f}, instead of {:.2f} and {:.2f}".format(*pairs))
    assert missing(expected) == []
