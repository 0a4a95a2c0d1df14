"""The results that come with the code: the rows make the published tables and the README's figures."""

import re
from operator import sub
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest
from typer.testing import CliRunner

from opencil import read_study
from opencil.cli import app
from opencil.published import contradictory, published_ablation, published_results, recomputed_means

RESULTS = Path(__file__).parents[2] / "results"
CIFAR = RESULTS / "cifar100"
CIL = {"iCaRL": "icarl", "BiC": "bic", "WA": "wa", "FOSTER": "foster"}
STUDY = read_study(CIFAR)


def mean(rows: pd.DataFrame, metric: str, **where: object) -> float:
    """Mean of a metric over steps, OOD sets and what else is not named, in percent."""
    rows = rows[(rows["metric"] == metric) & (rows["task"] == 0)]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return 100 * float(rows["value"].mean())


def ours(metric: str, **where: object) -> float:
    """The same, of the grid and its variants."""
    return mean(STUDY.rows, metric, **where)


def papers(metric: str, cil: list[str], detector: str = "") -> float:
    """Mean of the published figures; where one contradicts its near and far parts, what these give."""
    figures = published_results()
    value = figures["value"].where(~contradictory(figures), recomputed_means(figures))
    chosen = (figures["id_dataset"] == "cifar100") & (figures["classes_per_step"] == 10)
    chosen &= (figures["metric"] == metric) & (figures["detector"] == detector) & figures["cil"].isin(cil)
    chosen &= figures["ood_split"].isin(["", "all"])
    assert chosen.sum() == len(cil)
    return float(value[chosen].mean())


def readme(section: str = "") -> list[list[str]]:
    """The cells of the README's table lines, or of those in a section, without marks of weight."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    if section:
        text = re.split(r"^#+ ", text.split(f"# {section}\n")[1], flags=re.MULTILINE)[0]
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
    assert {run["cil"]: run["trained"] for run in STUDY.runs} == dict.fromkeys(CIL.values(), 10)
    rows = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["task"] == 0)]
    assert rows["value"].between(0, 1).all()
    variants = rows["detector"].str.contains("@")
    assert len(rows[~variants]) == 4 * 16 * 10 * 6
    of_icarl = rows[variants & (rows["cil"] == "icarl")]
    assert len(of_icarl) == 9 * 10 * 6
    for cil in ("bic", "wa", "foster"):
        assert set(rows[variants & (rows["cil"] == cil)]["detector"]) == {"ber@chosen"}


def test_the_readmes_accuracies_and_seconds() -> None:
    lines = {cells[0]: cells[1:] for cells in readme() if cells[0] in CIL and len(cells) == 6}
    assert lines.keys() == CIL.keys()
    for name, cells in lines.items():
        (run,) = (run for run in STUDY.runs if run["cil"] == CIL[name])
        stages = [sum(s[stage] for s in run["seconds"]) for stage in ("training", "tuning", "evaluation")]
        accuracies = ours("accuracy", cil=CIL[name], detector=""), papers("acc", [CIL[name]])
        assert cells == [*(f"{s:.0f}" for s in stages), *(f"{a:.2f}" for a in accuracies)]


def test_the_readmes_detectors() -> None:
    lines = readme("What agrees and what does not")
    halves = [part for cells in lines for part in (cells[:4], cells[4:]) if part[0]]
    assert len(halves) == 17
    for name, auc, published, difference in halves:
        detector = {"BER, chosen values": "ber@chosen"}.get(name, name.lower())
        found = ours("auc", detector=detector)
        expected = papers("auc", [*CIL.values()], detector.split("@")[0])
        assert [float(auc), float(published)] == pytest.approx([found, expected], abs=0.0051), name
        assert difference.replace("−", "-") == f"{found - expected:+.1f}", name


def test_the_readmes_set_up_data() -> None:
    table = 100 * pd.read_csv(CIFAR / "set_up_data.csv").pivot_table(
        index="setup", columns="detector", values="auc"
    )
    checked = 0
    for name, *cells in readme():
        setup = name.removesuffix(" (the default)")
        if len(cells) == 4 and setup in table.index:
            assert cells == [f"{table.loc[setup, d]:.2f}" for d in ("klm", "nnguide", "react", "relation")]
            checked += 1
    assert checked == 3


def test_the_readmes_choices() -> None:
    """Each line is a choice's: that of its name, or else the one whose figures it has."""
    table = pd.read_csv(CIFAR / "margins.csv")
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
    lines = {cells[0]: cells[1:] for cells in readme() if cells[0] in named and "(" not in cells[1]}
    assert lines.keys() == named.keys()
    for name, cells in lines.items():
        assert [float(cell) for cell in cells] == pytest.approx(by_model.loc[named[name]], abs=0.0051), name
    assert by_model["mean"].idxmax() == named["BER, the paper's margins, lr 0.01, α 0.01"]


def test_the_readmes_ber() -> None:
    lines = {cells[0]: cells[1:] for cells in readme() if len(cells) == 5 and "(" in cells[1]}
    named = {
        "Energy": "energy",
        "BER, the paper's values": "ber",
        "BER, the chosen values (`ber@chosen`)": "ber@chosen",
    }
    assert lines.keys() == named.keys()
    for name, cells in lines.items():
        where = [{"cil": cil, "detector": named[name]} for cil in CIL.values()]
        assert cells == [f"{ours('auc', **w):.2f} ({ours('fpr', **w):.1f})" for w in where]
    (published,) = (cells[1:] for cells in readme() if cells[0] == "the paper's BER")
    assert published == [f"{papers('auc', [cil], 'ber'):.2f}" for cil in CIL.values()]


def test_the_readmes_bic() -> None:
    rows = pd.read_csv(CIFAR / "bic_correction.csv")
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


def test_the_readmes_ablation_of_ber() -> None:
    lines = {cells[0]: cells[1:] for cells in readme("BER: which values it needs") if len(cells) == 6}
    for name, both in {"the paper's values": "ber", "the chosen values": "ber@chosen"}.items():
        parts = [f"{both}{'-' if '@' in both else '@'}{part}" for part in ("none", "nter", "oter")]
        found = [ours("auc", cil="icarl", detector=d) for d in ("energy", *parts, both)]
        assert lines[name] == [f"{auc:.2f}" for auc in found]
    figures = published_ablation()
    of_part = figures[figures["metric"] == "auc"].groupby("detector")["value"].mean()
    expected = [f"{of_part[d]:.2f}" for d in ("energy", "ber@nter", "ber@oter", "ber")]
    assert [cell for cell in lines["the paper"] if cell] == expected


def test_the_readmes_learning_rates() -> None:
    study = read_study(RESULTS / "learning_rate")
    lines = {cells[0].lower(): cells[1:] for cells in readme("Heads that are tuned: the learning rate")[1:]}
    stated, gentle = (run["config"]["detector"] for run in (STUDY.runs[0], study.runs[0]))
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
        differences = [means[0] - means[2], means[1] - means[2], *map(sub, by_model, published)]
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
        (run,) = (run for run in study.runs if (run["cil"], run["seed"]) == ("icarl", seed))
        assert run["config"]["training"]["precision"] == column[:4]
        assert run["trained"] == 10
        for name, (metric, detector) in quantities.items():
            found = mean(study.rows, metric, cil="icarl", seed=seed, detector=detector)
            assert float(table[name][place]) == pytest.approx(found, abs=0.0051), (column, name)
