"""The study's page: what it computes, and that it stays right as rows of further grids come in."""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import wilcoxon

from experiments import questions
from opencil import BadInput, Study, read_study
from opencil.study.records import RunRecord
from opencil.study.study import write_study
from results import add_rows, claims_page, learners_page, make_page, make_readme, measured, study_page

ROOT = Path(__file__).parents[2]
STUDY = read_study(ROOT / "results" / "study")
METRICS = ("auc", "auc_old", "auc_new", "ood_as_new", "fpr", "ap", "accuracy", "accuracy_nearest_mean")
BYTES = ("model_bytes", "memory_bytes")


def forget() -> None:
    """Nothing of what was computed from other rows."""
    for thing in make_readme.NAMES.values():
        if hasattr(thing, "cache_clear"):
            thing.cache_clear()


def relabelled(part: Study, **values: int | str) -> Study:
    """Rows and records under another k, seed or CIL model; a k has as many of the steps as it needs."""
    runs: list[RunRecord] = []
    rows = part.rows.assign(**values)
    steps = 100 // int(rows["k"].iloc[0])
    if steps > 10:
        rows = pd.concat([rows, rows.assign(step=rows["step"] + 10)])
    for run in part.runs:
        detectors = dict.fromkeys(run["detectors"], steps)
        seconds = [*run["seconds"], *run["seconds"]][:steps]
        runs.append(
            {**run, **values, "steps": steps, "trained": steps, "detectors": detectors, "seconds": seconds}
        )  # type: ignore[typeddict-item]
    return Study(rows[rows["step"] <= steps], runs)


@pytest.fixture
def whole_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every k with three seeds, the joint model and shifted sets, made of the rows of k = 10, seed 0."""
    rows = STUDY.rows
    kept = (
        (rows["k"] == 10)
        & (rows["seed"] == 0)
        & (rows["task"] == 0)
        & rows["metric"].isin([*METRICS, *BYTES])
    )
    runs = [run for run in STUDY.runs if (run["k"], run["seed"]) == (10, 0)]
    one = make_page.of_all_seeds(Study(rows[kept], runs))
    draw = np.random.default_rng(0)
    for k, seed in product(study_page.KS, study_page.SEEDS):
        part = relabelled(one, k=k, seed=seed)
        moved = part.rows["value"] + draw.normal(0, 0.001, len(part.rows))
        add_rows.add(Study(part.rows.assign(value=moved), part.runs), tmp_path / "study")
    joint = [run for run in one.runs if run["cil"] == "wa"]
    add_rows.add(relabelled(Study(one.rows[one.rows["cil"] == "wa"], joint), cil="joint"), tmp_path / "study")
    auc = one.rows[one.rows["metric"] == "auc"]
    shifted = [auc.assign(metric=metric) for metric in ("auc_full", "fpr_full")]
    of_shifted = {"ood": "corrupted", "distance": "shifted"}
    shifted.append(auc[auc["ood"] == "tin"].assign(metric="fpr_shifted", **of_shifted))
    accuracy = one.rows[(one.rows["metric"] == "accuracy") & (one.rows["detector"] == "")]
    shifted.append(accuracy.assign(metric="accuracy_shifted", value=0.25, **of_shifted))
    add_rows.add(Study(pd.concat([one.rows, *shifted]), one.runs), tmp_path / "study")
    shutil.copy(ROOT / "results" / "study" / "calls.csv", tmp_path / "study")
    forget()
    monkeypatch.setattr(study_page, "HERE", tmp_path)
    monkeypatch.setattr(measured, "HERE", tmp_path)
    yield tmp_path
    forget()


def test_the_page_follows_the_rows(whole_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make_readme.NAMES, "holds", lambda _: "")  # what is said in words is of other rows
    pages = [(ROOT / "results" / f"{name}.in.md").read_text(encoding="utf-8") for name in ("README", "steps")]
    field = (ROOT / "results" / "field.in.md").read_text(encoding="utf-8")
    text = "".join(map(make_readme.render, [*pages, field[field.index("## Covariate shift") :]]))
    head = "| | AUC | shifted | full | FPR | full | shifted rejected |\n|---|---:|---:|---:|---:|---:|---:|\n"
    assert re.search(re.escape(head) + r"\| NNGuide \| (\d+\.\d) \| \1 \| \1 \| ", text), "the best first"
    text = " ".join(text.split())
    assert "nan" not in text
    assert "ot run yet" not in text
    assert "ot whole yet" not in text
    assert "Nothing of the plan is missing." in text
    assert "k = 10 with seeds 0, 1 and 2; k = 20 with seeds 0, 1 and 2; k = 5 with seeds 0, 1 and 2" in text
    for k in study_page.KS:
        assert f"At k = {k}, over 72 cells" in text
        assert f"over the 12 trainings of k = {k}" in text
    assert re.search(r"Mean of the four models, seed 0, .* accuracy falls from \d\d\.\d to 25\.0: \| ", text)
    assert re.search(r"\| WA \| (.*?) \|.*\| Joint \| \1 \|.* Best on `joint` are NNGuide", text), (
        "it is WA's rows"
    )


def test_costs_are_of_the_processes_that_made_a_run(whole_study: Path) -> None:
    calls = ("icarl bic wa foster,684,whole", "joint,1200,the first half", "joint,34,the second")
    lines = ["k,seed,cil,seconds,how", *(f"10,0,{call}" for call in calls)]
    (whole_study / "study" / "calls.csv").write_text("\n".join(lines), encoding="utf-8")
    lines = [line for line in study_page.cost_table().splitlines() if line.startswith("| 10 | 0 |")]
    four, joint = ([cell.strip() for cell in line.split("|")[3:6]] for line in lines)
    assert four[0].startswith("iCaRL, BiC, WA, FOSTER × ")
    assert four[1] == "684"
    assert joint[0].startswith("Joint × ")
    assert joint[1] == "1,200 + 34"
    assert float(four[2]) > 3 * float(joint[2]) > 0, "of four trainings, and of one"


def test_runs_that_share_a_process_share_a_line(whole_study: Path) -> None:
    """Else its seconds are there twice."""
    calls = ("icarl wa,100,", "bic foster,200,", "icarl bic,7,")
    lines = ["k,seed,cil,seconds,how", *(f"10,1,{call}" for call in calls), "10,2,icarl bic wa foster,5,"]
    (whole_study / "study" / "calls.csv").write_text("\n".join(lines), encoding="utf-8")
    table = [[cell.strip() for cell in line.split("|")[1:5]] for line in study_page.cost_table().splitlines()]
    every = f"iCaRL, BiC, WA, FOSTER × {table[2][2].rpartition(' ')[2]}"
    assert [line for line in table if line[:2] in (["10", "1"], ["10", "2"])] == [
        ["10", "1", every, "100 + 200 + 7"],
        ["10", "2", every, "5"],
    ]


def test_runs_that_were_killed_have_no_peak_of_memory(
    whole_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run for run in STUDY.runs if (run["k"], run["seed"]) == (10, 1)]
    killed = [{**run, "environment": {**run["environment"]}} for run in runs]
    for run in killed[:-1]:
        del run["environment"]["peak_memory_mib"]

    def peak() -> str:
        monkeypatch.setattr(study_page, "study", lambda _: Study(STUDY.rows, killed))
        return study_page.cost_table().splitlines()[2].split("|")[8].strip()

    assert peak() == f"{runs[-1]['environment']['peak_memory_mib'] / 1024:.1f}"
    del killed[-1]["environment"]["peak_memory_mib"]
    assert peak() == ""


def test_every_ood_set_by_hand() -> None:
    rows = STUDY.rows[(STUDY.rows["k"] == 10) & (STUDY.rows["task"] == 0) & (STUDY.rows["metric"] == "auc")]
    rows = rows[rows["cil"].isin(measured.CIL) & (rows["ood"] == "svhn")]
    means = 100 * rows.groupby(["detector", "seed"])["value"].mean().unstack()
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in study_page.sets_table().splitlines()
    ]
    column = {line[0]: line[lines[0].index("SVHN")] for line in lines[2:]}
    for name, title in measured.SIXTEEN.items():
        best = means.loc[list(measured.SIXTEEN)].mean(axis=1).idxmax() == name
        shown = f"{means.loc[name].mean():.1f} ± {means.loc[name].std():.1f}"
        assert column[title] == (f"**{shown}**" if best else shown)


def test_below_chance_by_hand() -> None:
    rows = STUDY.rows[(STUDY.rows["k"] == 10) & (STUDY.rows["seed"] == 0) & (STUDY.rows["metric"] == "auc")]
    rows = rows[(rows["detector"] == "openmax") & (rows["task"] == 0)]
    count = sum(
        rows[(rows["cil"] == cil) & (rows["step"] == step)]["value"].mean() < 0.5
        for cil, step in product(learners_page.SIX, range(1, 11))
    )
    assert learners_page.below_chance()[0] == f"{count} of OpenMax"


def test_every_detector_on_six_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not shown while one of the six lacks; then family by family, the best first, train+ in a column."""
    rows = STUDY.rows[
        (STUDY.rows["k"] == 10) & (STUDY.rows["seed"] == 0) & STUDY.rows["cil"].isin(measured.CIL)
    ]
    kept = rows[rows["metric"].isin(BYTES)]
    rows = rows[(rows["metric"] == "auc") & rows["detector"].isin(measured.SIXTEEN)]
    runs = [run for run in STUDY.runs if (run["k"], run["seed"]) == (10, 0) and run["cil"] in measured.CIL]
    less = {"knn": 0.03, "knn@stated": 0.05, "energy@mine": 0.06, "tpl": 0.02, "scale": 0.01}
    less |= {"vra": 0.04, "vra@stated": 0.06, "she": 0.05, "she@stated": 0.04}
    energy = rows[rows["detector"] == "energy"]
    rows = pd.concat(
        [kept, rows, *(energy.assign(detector=name, value=energy["value"] - by) for name, by in less.items())]
    )
    runs = [{**run, "detectors": dict.fromkeys([*measured.SIXTEEN, *less], 10)} for run in runs]
    assert {run["cil"] for run in runs} == set(measured.CIL)
    grown = [
        relabelled(Study(rows[rows["cil"] == "wa"], [run for run in runs if run["cil"] == "wa"]), cil=cil)
        for cil in ("der", "memo")
    ]

    def shown(parts: list[Study]) -> tuple[list[str], str]:
        folder = tmp_path / f"{len(parts)} more" / "study"
        for part in (Study(rows, runs), *parts):
            add_rows.add(part, folder)
        forget()
        monkeypatch.setattr(measured, "HERE", folder.parent)
        return learners_page.six_models().splitlines(), learners_page.six_models_in_words()

    try:
        assert shown(grown[:1]) == (["Not run yet."], "")
        (head, _, *lines), words = shown(grown)
    finally:
        monkeypatch.undo()
        forget()
    assert head == "| | iCaRL | BiC | WA | FOSTER | DER | MEMO | mean | near | far | on train+ |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    by_name = {line[0]: line[1:] for line in cells}
    assert len(lines) == len(by_name) == 16 + 5 + 3 + 1, "sixteen, five more, three families, what is kept"
    assert by_name["*MB of model and memory*"][:3] == ["8.0"] * 3, "iCaRL, BiC and WA have one network"
    names = list(by_name)
    assert names.index("SCALE") < names.index("KNN")
    families = {
        name: [n for n in names[: names.index(name)] if n.startswith("*")][-1] for name in ("KNN", "TPL")
    }
    assert families == {"KNN": "*post-hoc*", "TPL": "*continual*"}
    assert by_name["KNN"][4] == by_name["KNN"][5] == by_name["KNN"][2] != by_name["KNN"][3]
    at = {
        cil: rows[(rows["detector"] == "energy") & (rows["cil"] == cil)]["value"].mean()
        for cil in measured.CIL
    }
    mean = 100 * (sum(at.values()) + 2 * at["wa"]) / 6
    assert by_name["KNN"][6] == f"{mean - 3:.1f}"
    assert by_name["VRA"][-1] == f"{mean - 6:.1f}"
    assert by_name["KNN"][-1] == "", "'@stated' is another number of neighbours too"
    assert by_name["SCALE"][-1] == by_name["BER"][-1] == "", "nothing to set up; '@stated' is not run"
    first = max(measured.SIXTEEN.values(), key=lambda name: float(by_name[name][6]))
    assert words.startswith(f"Best in the mean are {first} ({by_name[first][6]}), ")
    assert f", of the paper's sixteen {first} ({by_name[first][6]}); with near " in words
    assert words.endswith("1 are better on the memory, by most VRA (+2.0); not so SHE (-1.0).")


def test_every_finished_training_counts(whole_study: Path) -> None:
    """Also of a seed that lacks models; then each model counts as much as any other."""
    place = whole_study / "study" / "k5-seed2"
    part = read_study(place)
    lost = part.rows["cil"].isin(["foster", "bic"])
    runs = [run for run in part.runs if run["cil"] not in ("foster", "bic")]
    write_study(Study(part.rows[~lost].assign(value=part.rows["value"] + 0.25), runs), place)
    forget()
    every = read_study(whole_study / "study").rows
    auc = every[(every["k"] == 5) & (every["metric"] == "auc") & every["cil"].isin(measured.CIL)]
    by_model = 100 * auc.groupby(["cil", "detector"])["value"].mean().unstack("cil")
    assert by_model.loc["ber", "wa"] > 8 + study_page.by_seed(5, "ber", "wa")[0], "the moved seed is in"
    means = study_page.mean_of_models(study_page.cells(5))
    assert means["ber"] == pytest.approx(by_model.loc["ber"].mean())
    assert means["ber"] != pytest.approx(100 * auc[auc["detector"] == "ber"]["value"].mean(), abs=0.1)
    others = by_model.loc[[name for name in measured.SIXTEEN if name != "ber"]].mean(axis=1)
    assert claims_page.best_other(5) == others.idxmax()
    ranks = study_page.cells(5).rank(axis=1, ascending=False).mean()
    assert dict(
        zip(claims_page.ranking(5).detectors, claims_page.ranking(5).ranks, strict=True)
    ) == pytest.approx(dict(ranks))
    old = every[(every["k"] == 5) & (every["metric"] == "auc_old") & (every["detector"] == "ber")]
    old = old[old["cil"].isin(measured.CIL) & (old["step"] > 1)].groupby("cil")["value"].mean()
    (line,) = (line for line in study_page.parts_table(5).splitlines() if line.startswith("| BER |"))
    assert line.split("|")[4].split("±")[0].strip() == f"{100 * old.mean():.1f}"
    found = claims_page.difference(study_page.cells(5)["ber"] - study_page.cells(5)["energy"])
    assert found.mean == pytest.approx((by_model.loc["ber"] - by_model.loc["energy"]).mean())
    assert found.trainings == 10
    near = auc[(auc["detector"] == "ber") & (auc["distance"] == "near")].groupby("cil")["value"].mean()
    whole = auc[(auc["detector"] == "ber") & (auc["distance"] == "near") & (auc["seed"] < 2)]
    deviation = 100 * whole.groupby("seed")["value"].mean().std()
    (line,) = (line for line in study_page.parts_table(5).splitlines() if line.startswith("| BER |"))
    assert line.startswith(f"| BER | {100 * near.mean():.1f} ± {deviation:.1f} (")
    tin = auc[(auc["detector"] == "ber") & (auc["ood"] == "tin")].groupby("cil")["value"].mean()
    (line,) = (line for line in study_page.sets_table(5).splitlines() if line.startswith("| BER |"))
    assert line.split("|")[3].strip(" *").startswith(f"{100 * tin.mean():.1f} ± ")
    gain = by_model.loc["ber@chosen"] - by_model.loc["ber"]
    (line,) = (line for line in study_page.named_table(5).splitlines() if line.startswith("| `ber@chosen` |"))
    assert line.endswith(f" {by_model.loc['ber@chosen'].mean():.1f} ({gain.mean():+.1f}) |")
    assert "At k = 5, over 60 cells" in claims_page.ranks()
    said = "At k = 5 the seeds are 3 of iCaRL, 2 of BiC, 3 of WA, 2 of FOSTER."
    assert study_page.fewer_seeds() == said
    assert (
        "k = 5 with seeds 0 and 1. At k = 5 iCaRL and WA of seed 2 count too." in study_page.what_is_there()
    )
    said = study_page.noise()
    assert "At k = 5, over 2 to 3 seeds, the standard" in said
    assert "in the mean of the 64 and at most" in said


def test_the_best_is_that_of_models_not_of_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    index = pd.MultiIndex.from_tuples(
        [("icarl", 0, "tin"), ("icarl", 1, "tin"), ("foster", 0, "tin")], names=["cil", "seed", "ood"]
    )
    values = pd.DataFrame({"msp": [90, 90, 50], "energy": [80, 80, 65], "ber": [99, 99, 99]}, index)
    monkeypatch.setattr(claims_page, "cells", lambda _: values)
    assert claims_page.best_other(5) == "energy"


def test_noise_is_of_models_that_have_several_seeds(whole_study: Path) -> None:
    for seed in (1, 2):
        place = whole_study / "study" / f"k20-seed{seed}"
        part = read_study(place)
        kept = [run for run in part.runs if run["cil"] == "wa" and seed == 1]
        write_study(Study(part.rows[(part.rows["cil"] == "wa") & (seed == 1)], kept), place)
    forget()
    said = study_page.noise()
    assert "At k = 20, over 2 seeds of WA, the standard" in said
    assert "in the mean of the 16 and" in said
    assert claims_page.difference(claims_page.CLAIMS[-1].ours(20)).verdict == "one seed"


def test_runs_of_no_known_process_share_a_line(whole_study: Path) -> None:
    (whole_study / "study" / "calls.csv").write_text("k,seed,cil,seconds,how\n", encoding="utf-8")
    lines = [line for line in study_page.cost_table().splitlines() if line.startswith("| 5 | 1 |")]
    assert len(lines) == 1
    assert lines[0].startswith("| 5 | 1 | iCaRL, BiC, WA, FOSTER × ")


def test_accuracies_that_are_far_off_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    away = {"icarl": 0.5, "bic": 3.5, "wa": -4.0, "foster": 3.0}
    monkeypatch.setattr(study_page, "run_ks", lambda: [5])
    monkeypatch.setattr(study_page, "paper", lambda *_, **__: 50.0)
    monkeypatch.setattr(study_page, "accuracies", lambda _, cil: pd.Series([49.0, 51.0]) + away[cil])
    assert study_page.accuracies_far_off() == " (but BiC at k = 5 +3.5 and WA at k = 5 -4.0: unexplained)"
    away.update(bic=-3.0, wa=0.0)
    assert study_page.accuracies_far_off() == ""


def test_what_is_not_whole_does_not_count(whole_study: Path) -> None:
    place = whole_study / "study" / "k20-seed1"
    part = read_study(place)
    runs: list[RunRecord] = [
        {**run, "detectors": run["detectors"] | {"ber": 4}} if run["cil"] == "bic" else run
        for run in part.runs
        if run["cil"] != "wa"
    ]
    distances, accurate = study_page.distance_table(), study_page.accuracies(20, "bic")
    spoilt = part.rows.assign(value=part.rows["value"] + 0.25 * (part.rows["cil"] == "bic"))
    write_study(Study(spoilt[spoilt["cil"] != "wa"], runs), place)
    forget()
    assert list(study_page.cells(20).loc["bic"].index.unique("seed")) == [0, 2]
    assert list(study_page.accuracies(20, "bic").index) == [0, 2]
    assert study_page.accuracies(20, "bic")[0] == accurate[0]
    moved, before = (
        [
            float(cell)
            for line in text.splitlines()[2:]
            if line.startswith("| 20")
            for cell in line.split("|")[3:-1]
        ]
        for text in (study_page.distance_table(), distances)
    )
    assert moved == pytest.approx(before, abs=0.2), "values that are 25 points off do not count"
    assert study_page.seeds(20) == [0, 2]
    assert study_page.not_there() == "k = 20, BiC and WA of seed 1 (0 to 4 of 5 steps are there)"
    assert "At k = 20, over 60 cells" in claims_page.ranks(), "those of FOSTER and iCaRL count"
    runs = [{**run, "detectors": run["detectors"] | {"ber": 3 + (run["cil"] == "bic")}} for run in part.runs]
    write_study(Study(part.rows, runs), place)
    forget()
    assert study_page.not_there() == "k = 20, seed 1 (3 to 4 of 5 steps are there)"
    few = [{**run, "detectors": {"msp": 5, "ber@chosen": 5}} for run in part.runs]
    write_study(Study(part.rows, few), place)
    forget()
    assert study_page.not_there() == "k = 20, seed 1", "of the sixteen most have nothing"
    shutil.rmtree(place)
    forget()
    assert study_page.not_there() == "k = 20, seed 1"


def test_what_has_not_begun_costs_nothing(whole_study: Path) -> None:
    """A run that was stopped before its first step, and one of another k, which comes last."""
    part = read_study(whole_study / "study" / "k5-seed0")
    begun = [
        {**run, "seed": 7, "made": [], "trained": 0, "detectors": {}, "seconds": []} for run in part.runs
    ]
    write_study(Study(part.rows[:0], begun), whole_study / "study" / "k5-seed7")
    other = [{**run, "k": "50+10"} for run in part.runs]
    write_study(Study(part.rows.assign(k="50+10"), other), whole_study / "study" / "k50+10-seed0")
    forget()
    lines = study_page.cost_table().splitlines()
    assert not any("| 7 |" in line for line in lines)
    assert lines[-1].startswith("| 50+10 | 0 | iCaRL, BiC, WA, FOSTER × ")


def test_models_of_one_seed_are_named_where_others_have_more(whole_study: Path) -> None:
    assert "| k = 10 | k = 20 | k = 5 |" in claims_page.claims_table()
    for seed in (1, 2):
        place = whole_study / "study" / f"k5-seed{seed}"
        part = read_study(place)
        runs = [run for run in part.runs if run["cil"] not in ("foster", "bic")]
        write_study(Study(part.rows[~part.rows["cil"].isin(["foster", "bic"])], runs), place)
    forget()
    assert "| k = 10 | k = 20 | k = 5 (BiC and FOSTER: one seed) |" in claims_page.claims_table()


def test_the_joint_model_and_shifted_sets_count_when_they_are_whole(whole_study: Path) -> None:
    assert study_page.not_there() == ""
    place = whole_study / "study" / "k10-seed0"
    part = read_study(place)
    lost = (part.rows["cil"] == "bic") & part.rows["metric"].str.endswith("shifted")
    runs: list[RunRecord] = [
        {**run, "detectors": run["detectors"] | {"ber": 4}} if run["cil"] == "joint" else run
        for run in part.runs
    ]
    write_study(Study(part.rows[~lost], runs), place)
    forget()
    assert study_page.not_there() == "`joint`; `corrupted` on all four models"
    assert study_page.joint() == "Not run yet."
    assert study_page.shifted().startswith("Not run yet on all four models ([iCaRL and WA](")


def test_cells_are_means_over_steps() -> None:
    rows = STUDY.rows
    seen = (rows["cil"] == "wa") & (rows["seed"] == 1) & (rows["k"] == 10) & (rows["task"] == 0)
    seen &= (rows["detector"] == "react") & (rows["ood"] == "svhn") & (rows["metric"] == "auc_old")
    values = [100 * row.value for row in rows[seen].itertuples() if row.step >= 3]
    assert len(values) == 8
    assert study_page.cells(10, "auc_old", 3).loc[("wa", 1, "svhn"), "react"] == pytest.approx(
        np.mean(values)
    )


def test_differences_from_the_paper_by_hand() -> None:
    rows = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["detector"] == "energy")]
    rows = rows[(rows["cil"] == "icarl") & (rows["k"] == 10) & (rows["task"] == 0)]
    seeds = [100 * rows[rows["seed"] == seed]["value"].mean() for seed in study_page.seeds(10)]
    assert study_page.study_off(10, "energy", "icarl") == pytest.approx(np.mean(seeds) - 70.35), "as printed"
    cell = f"{np.mean(seeds):.1f} ± {np.std(seeds, ddof=1):.1f} ({np.mean(seeds) - 70.35:+.1f})"
    assert f"| Energy | {cell} |" in study_page.auc_table()


def test_near_against_far_by_hand() -> None:
    rows = STUDY.rows[(STUDY.rows["metric"] == "auc") & (STUDY.rows["k"] == 10) & (STUDY.rows["task"] == 0)]
    rows = rows[rows["cil"].isin(measured.CIL) & rows["detector"].isin(measured.SIXTEEN)]
    means = 100 * rows.groupby(["cil", "seed", "distance"])["value"].mean().unstack()
    apart = means["near"] - means["far"]
    said = claims_page.near_and_far(10)
    assert f"ours {apart.mean():+.1f}, above 0 in {(apart > 0).sum()} of {len(apart)} trainings" in said
    fewer = 100 * rows[rows["ood"] != "mnist"].groupby(["cil", "seed", "distance"])["value"].mean().unstack()
    assert f"{(fewer['near'] - fewer['far']).mean():+.1f} without MNIST" in said


def test_gains_over_energy_by_hand() -> None:
    """Of the finished trainings alone, on OOD sets alone, in the steps asked for."""
    finished = {
        run["seed"] for run in STUDY.runs if (run["k"], run["cil"]) == (5, "foster") and run["trained"] == 20
    }
    values: dict[str, list[float]] = {"ber": [], "energy": []}
    rows = STUDY.rows[
        (STUDY.rows["k"] == 5) & (STUDY.rows["cil"] == "foster") & (STUDY.rows["metric"] == "auc")
    ]
    for row in rows[(rows["task"] == 0) & rows["detector"].isin(values)].itertuples():
        if row.seed in finished and 11 <= row.step <= 20 and row.ood in study_page.OOD_SETS:
            values[row.detector].append(100 * row.value)
    assert len(values["ber"]) == len(finished) * 10 * 6
    by_hand = np.mean(values["ber"]) - np.mean(values["energy"])
    assert questions.gained("ber", 5, "foster", *questions.SECOND) == pytest.approx(by_hand)
    (line,) = (line for line in questions.outliers_table().splitlines() if line.startswith("| BER | 5 |"))
    assert line.endswith(f" / {by_hand:+.1f} |")


def test_flagged_figures_do_not_count() -> None:
    """Sixteen detectors, four models, three splits, less the one figure that the paper contradicts."""
    (line,) = (line for line in study_page.distance_table().splitlines() if line.startswith("| 10 |"))
    assert line.split(" | ")[1] == str(16 * 4 * 3 - 1)


def of_trainings(**seeds_of: list[float]) -> "pd.Series[float]":
    """Differences of models' seeds, on two OOD sets each, whose mean they are."""
    values = {
        (cil, seed, ood): value + apart
        for cil, of_seeds in seeds_of.items()
        for seed, value in enumerate(of_seeds)
        for ood, apart in (("x", 9.0), ("y", -9.0))
    }
    return pd.Series(values).rename_axis(["cil", "seed", "ood"])


def test_trainings_count_not_their_ood_sets() -> None:
    found = claims_page.difference(of_trainings(a=[-0.5, 3.5], b=[-5.5, 3.5]))
    assert found.mean == pytest.approx(0.25)
    assert found.of_models == pytest.approx({"a": 1.5, "b": -1.0})
    assert (found.above, found.trainings, found.seeds) == (2, 4, 2)


@pytest.mark.parametrize(
    ("of_a", "of_b", "verdict"),
    [
        ([1, 2], [3, 4], "**holds**"),
        ([-1, -2], [-3, -4], "**reversed**"),
        ([1, 2], [-3, -4], "by model"),
        ([1, 2], [3, -4], "not shown"),
        ([1, 2], [3], "**holds**"),
        ([1], [3], "one seed"),
    ],
)
def test_a_claim_holds_where_all_trainings_say_so(of_a: list[float], of_b: list[float], verdict: str) -> None:
    assert claims_page.difference(of_trainings(a=of_a, b=of_b)).verdict == verdict


def test_the_paired_test_by_hand() -> None:
    """Wilcoxon's p of each other detector, the smallest times fifteen, the next times fourteen, and so on."""
    cells = study_page.cells(10)
    others = [name for name in measured.SIXTEEN if name != "ber"]
    p = {name: wilcoxon(cells["ber"], cells[name]).pvalue for name in others}
    told, largest = set(), 0.0
    for i, name in enumerate(sorted(others, key=p.__getitem__)):
        largest = max(largest, (15 - i) * p[name])
        told |= {name} if largest < 0.05 else set()
    above, below = claims_page.told_from(10, "ber")
    assert set(above) == {name for name in told if cells["ber"].mean() > cells[name].mean()}
    assert set(below) == told - set(above)
    assert above
    assert below
    assert (
        f"BER is above {study_page.listed(measured.SIXTEEN[n] for n in above)}, and" in claims_page.paired()
    )


def test_the_page_has_what_the_readme_has() -> None:
    """Claims, distances and costs; statistics of the paper's sixteen, since others were run with one seed."""
    text = (ROOT / "results" / "study" / "index.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    shown = {table["title"]: table for table in data["tables"]}
    for table in make_page.of_the_readme():
        assert shown[table.title]["columns"][0]["text"] == table.columns[0].name
        lines = [list(line) for line in shown[table.title]["lines"]]
        assert lines == [[cell.text for cell in line] for block in table.blocks for line in block.lines]
    for k in study_page.run_ks():
        ranked = shown[f"cifar100, {k} classes per step: detectors ranked by AUC↑"]
        assert any(f" {len(study_page.cells(k))} cells " in f" {note}" for note in ranked["notes"])


def test_a_markdown_table_as_one_of_a_report() -> None:
    made = make_page.from_markdown(
        "t", "T", measured.table(["", "a", "b"], [["x", "**1**", ""], ["y", "", "`2`"]]), "n"
    )
    assert [column.name for column in made.columns] == ["", "a", "b"]
    assert [[cell.text for cell in line] for line in made.blocks[0].lines] == [["x", "1", ""], ["y", "", "2"]]


def test_claims_by_hand() -> None:
    rows = STUDY.rows[(STUDY.rows["k"] == 10) & (STUDY.rows["task"] == 0)]
    rows = rows[rows["cil"].isin(measured.CIL)]
    test = {claim.words[:28]: claims_page.difference(claim.ours(10)) for claim in claims_page.CLAIMS}
    auc = rows[(rows["metric"] == "auc") & rows["detector"].isin(measured.SIXTEEN)]
    first, last = (auc[auc["step"] == step]["value"].mean() for step in (1, 10))
    assert test["detection is worse after the"].mean == pytest.approx(100 * (first - last))
    old = rows[(rows["metric"] == "auc_old") & (rows["detector"] == "msp")]
    assert test["OOD images have more confide"].mean == pytest.approx(50 - 100 * old["value"].mean())
    means = auc.groupby(["cil", "seed"])["value"].mean()
    more = (means["foster"] + means["wa"] - means["bic"] - means["icarl"]) / 2
    models = test["WA and FOSTER, the more accu"]
    assert models.mean == pytest.approx(100 * more.mean())
    assert (models.trainings, models.above) == (len(study_page.seeds(10)), (more > 0).sum()), "seeds"
    fpr = rows[(rows["metric"] == "fpr")].groupby("detector")["value"].mean()
    assert test["BER has a lower FPR than Ene"].mean == pytest.approx(100 * (fpr["energy"] - fpr["ber"]))


# --- rows of further runs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Study:
    """Two steps of one run with two detectors, as if finished."""
    rows = STUDY.rows[(STUDY.rows["step"] <= 2) & STUDY.rows["detector"].isin(["", "msp", "energy"])]
    rows = rows[(rows["cil"] == "wa") & (rows["k"] == 10) & (rows["seed"] == 0)].reset_index(drop=True)
    (run,) = (run for run in STUDY.runs if (run["cil"], run["k"], run["seed"]) == ("wa", 10, 0))
    return Study(rows, [{**run, "steps": 2, "trained": 2, "detectors": {"msp": 2, "energy": 2}}])


def test_further_runs_come_beside_those_that_are_there(small: Study, tmp_path: Path) -> None:
    (place,) = add_rows.add(small, tmp_path)
    assert place == tmp_path / "k10-seed0"
    other = Study(small.rows.assign(cil="bic"), [{**small.runs[0], "cil": "bic"}])
    seed = Study(small.rows.assign(seed=5), [{**small.runs[0], "seed": 5}])
    add_rows.add(other, tmp_path)
    add_rows.add(seed, tmp_path)
    both = read_study(tmp_path / "k10-seed0")
    assert [run["cil"] for run in both.runs] == ["bic", "wa"]
    assert both.runs[1]["made"] == small.runs[0]["made"], "what made which rows comes along"
    pd.testing.assert_frame_equal(both.rows, pd.concat([small.rows, other.rows], ignore_index=True))
    assert [run["seed"] for run in read_study(tmp_path).runs] == [0, 0, 5]


def test_a_run_is_replaced_whole_and_never_by_less(small: Study, tmp_path: Path) -> None:
    add_rows.add(small, tmp_path)
    more = Study(
        small.rows.assign(value=0.5), [{**small.runs[0], "detectors": {"msp": 2, "energy": 2, "gen": 2}}]
    )
    add_rows.add(more, tmp_path)
    assert set(read_study(tmp_path).rows["value"]) == {0.5}
    with pytest.raises(BadInput, match=r"cifar100/k10/wa/seed0 has fewer steps .*: gen 0 of 2; --replace"):
        add_rows.add(small, tmp_path)
    assert set(read_study(tmp_path).rows["value"]) == {0.5}
    add_rows.add(small, tmp_path, replace=True)
    pd.testing.assert_frame_equal(read_study(tmp_path).rows, small.rows)


def test_nothing_damaged_or_of_elsewhere_is_added(small: Study, tmp_path: Path) -> None:
    write_study(small, tmp_path / "published")
    (tmp_path / "published" / "more").mkdir()
    (tmp_path / "published" / "more" / "runs.json").write_text("{}")
    with pytest.raises(BadInput, match="damaged or lost"):
        add_rows.add(read_study(tmp_path / "published"), tmp_path / "study")
    digits = Study(small.rows.assign(benchmark="digits"), [{**small.runs[0], "benchmark": "digits"}])
    with pytest.raises(BadInput, match="the study is of cifar100, and some runs are of digits"):
        add_rows.add(digits, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_all_that_is_added_or_nothing(small: Study, tmp_path: Path) -> None:
    names = [f"detector{i}" for i in range(9)]
    add_rows.add(Study(small.rows, [{**small.runs[0], "detectors": dict.fromkeys(names, 2)}]), tmp_path)
    fresh = Study(small.rows.assign(k=1), [{**small.runs[0], "k": 1}])  # its folder comes first
    both = Study(pd.concat([fresh.rows, small.rows]), [*fresh.runs, *small.runs])
    with pytest.raises(BadInput, match=r": detector0 0 of 2, .*, detector4 0 of 2 and 4 more; --replace"):
        add_rows.add(both, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["k10-seed0"]


def test_a_damaged_file_is_a_sentence(
    small: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(small, tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("sys.argv", ["add_rows.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="parquet"):
        add_rows.main()
