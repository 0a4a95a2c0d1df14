"""Make the tables of the pages: of the study, of further learners, and of single questions."""

from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import pandas as pd

import opencil
from opencil.published import SURVEY_ACCURACY
from results.rows import (
    CIL,
    EXPERIMENTS,
    KS,
    POSTHOC,
    RESULTS,
    SIXTEEN,
    SPLITS,
    TUNED,
    accuracies,
    auc,
    average,
    by_model,
    by_training,
    cells,
    distance,
    flagged,
    listed,
    markdown,
    mean,
    mean_of_models,
    megabytes,
    of_split,
    paper,
    spread,
    spread_of_models,
    study,
    survey,
    title,
    trainings,
)

FAR_OFF = 3  #: points from the paper's AUC
#: Presets that run beside the defaults.
NAMED = (*(f"{d}@stated" for d in ("relation", "klm", "react", "nnguide")), "augmix@original", "ber@chosen")
OOD_SETS = {"cifar10": "CIFAR-10"} | {
    name.lower(): name for name in ("TIN", "MNIST", "Texture", "SVHN", "Places365")
}
LEARNERS = ("der", "memo", "lucir", "er-ace", "ss-il", "podnet", "acil", "ranpac")
LEARNERS += ("lwf", "fetril", "fecam", "simplecil", "ewc")
#: Accuracy of independent code on the features of the same network and images, k = 10.
INDEPENDENT = {"simplecil": 68.5, "slda": 77.6, "fecam": 79.4, "ranpac": 80.3}
LOGIT_SCORES = ("msp", "maxlogit", "energy", "gen")
#: CIL models that all detectors were run on, at k = 10 with seed 0.
SIX = (*CIL, "der", "memo")


def ours_and_papers() -> str:
    """Compare accuracies and mean AUC with the paper's, at k = 10."""
    lines = []
    for cil, name in CIL.items():
        ours, papers = accuracies(10, cil), paper("accuracy", cil=cil)
        lines.append([f"accuracy, {name}", spread(ours), f"{papers:.2f}", f"{ours.mean() - papers:+.1f}"])
    for kind, detectors in (("nine post-hoc", POSTHOC), ("seven fine-tuning", TUNED)):
        values = by_training(10)[list(detectors)].mean(axis=1)
        average, papers = mean_of_models(values), fmean(paper("auc", d) for d in detectors)
        shown = spread(values.groupby("seed").mean(), 2, average)
        name = f"AUC, mean of {kind} detectors on all four"
        lines.append([name, shown, f"{papers:.2f}", f"{average - papers:+.1f}"])
    return markdown(["CIFAR-100, ten classes a step", "ours", "the paper's", ""], lines)


def accuracies_by_k() -> str:
    """Compare accuracies with the paper's and the survey's, whose figure of iCaRL is of nearest means."""
    lines = []
    for cil, name in CIL.items():
        line = [name]
        for k in KS:
            ours, papers, theirs = accuracies(k, cil), paper("accuracy", cil=cil, k=k), survey(cil, k)
            line += [spread(ours), f"{papers:.2f} ({ours.mean() - papers:+.1f})", ""]
            if theirs is not None:
                same_kind = accuracies(k, cil, SURVEY_ACCURACY.get(cil, "accuracy")).mean()
                line[-1] = f"{theirs:.2f} ({same_kind - theirs:+.1f})"
        lines.append(line)
    return markdown(["", *(text for k in KS for text in (f"k = {k}", "paper", "survey"))], lines)


def auc_by_model(k: int) -> str:
    """Compare the AUC of sixteen detectors on four models with the paper's."""
    lines = []
    for kind, detectors in (("post-hoc", POSTHOC), ("tuned", TUNED)):
        groups = {name: [detector] for detector, name in detectors.items()}
        for name, group in (groups | {f"*mean, {kind}*": list(detectors)}).items():
            away, line = distance(k)[group].mean(axis=1), []
            for cil in CIL:
                mark = "†" if len(group) == 1 and flagged("auc", group[0], cil, k) else ""
                ours = by_training(k)[group].mean(axis=1).loc[cil]
                line.append(f"{spread(ours, 1)} ({away[cil]:+.1f}{mark})")
            bold = len(group) == 1 and abs(away.mean()) > FAR_OFF
            lines.append([f"**{name}**" if bold else name, *line, f"{away.mean():+.1f}"])
    return markdown(["", *CIL.values(), "mean −"], lines)


def parts(k: int) -> str:
    """Show AUC on near and far OOD sets, and of old and new classes from step 2 on, as means of models."""
    lines = []
    for detector, name in SIXTEEN.items():
        line = [name]
        for split in ("near", "far"):
            ours = spread_of_models(k, of_split(cells(k), split)[detector])
            line.append(f"{ours} ({distance(k, split=split)[detector].mean():+.1f})")
        line += [spread_of_models(k, cells(k, metric, 2)[detector]) for metric in ("auc_old", "auc_new")]
        lines.append(line)
    return markdown(["", "near", "far", "old classes", "new classes"], lines)


def ood_sets(k: int) -> str:
    """Show AUC on each OOD set, mean of the four models; the best of each set in bold."""
    of_sets = {ood: cells(k).xs(ood, level="ood") for ood in OOD_SETS}
    best = {ood: mean_of_models(values).idxmax() for ood, values in of_sets.items()}
    lines = []
    for detector, name in SIXTEEN.items():
        shown = {ood: spread_of_models(k, values[detector]) for ood, values in of_sets.items()}
        lines.append(
            [name, *(f"**{text}**" if best[ood] == detector else text for ood, text in shown.items())]
        )
    return markdown(["", *OOD_SETS.values()], lines)


def named(k: int) -> str:
    """Show AUC under presets, and the gain over the defaults on the same models."""
    rows = study().rows
    rows = rows[(rows["k"] == k) & (rows["metric"] == "auc") & (rows["task"] == 0)]
    means = 100 * rows.groupby(["detector", "cil", "seed"])["value"].mean()
    lines = []
    for name in NAMED:
        finished = trainings(k, detectors=(*SIXTEEN, name))
        if {cil for cil, _ in finished} == set(CIL):
            of = means[name].loc[finished]
            gain = of - means[name.split("@")[0]].loc[finished]
            line = [f"{spread(of[cil], 1)} ({gain[cil].mean():+.1f})" for cil in CIL]
            lines.append([f"`{name}`", *line, f"{mean_of_models(of):.1f} ({mean_of_models(gain):+.1f})"])
    return markdown(["", *CIL.values(), "mean"], lines)


def _uncontradicted(k: int, metric: str, split: str) -> Any:
    """Return distances from the paper's figures, NaN where the paper contradicts itself."""
    away = distance(k, metric, split)
    return away.mask(away.apply(lambda of: [flagged(metric, of.name, cil, k, split) for cil in CIL]))


def distances() -> str:
    """Show mean distances from the paper's figures, without those that contradict themselves."""
    lines = []
    for k in KS:
        away = {split: _uncontradicted(k, "auc", split).abs() for split in SPLITS}
        every = pd.concat(away.values())
        fpr = pd.concat([_uncontradicted(k, "fpr", split).abs() for split in SPLITS])
        few = every.drop(columns="relation")
        averages = [part.stack().mean() for part in (every, *away.values(), few, fpr)]
        ours = by_model(k)
        papers = (ours - distance(k)).where(_uncontradicted(k, "auc", "all").notna())
        rank = fmean(ours.loc[cil].corr(papers.loc[cil], method="spearman") for cil in CIL)
        accurate = fmean(abs(accuracies(k, cil).mean() - paper("accuracy", cil=cil, k=k)) for cil in CIL)
        values = [f"{value:.2f}" for value in (*averages, rank, accurate)]
        lines.append([str(k), f"{every.stack().count()}", *values])
    head = ["k", "cells", "AUC", "all", "near", "far", "without Relation", "FPR", "rank ρ", "accuracy"]
    return markdown(head, lines)


def far_off() -> str:
    """List detectors that are far off the paper's AUC, over all, near or far sets."""
    lines = []
    for detector, name in SIXTEEN.items():
        shown = []
        for k in KS:
            of_k = []
            for split in SPLITS:
                of = distance(k, split=split)[detector]
                away = {CIL[cil]: of[cil] for cil in CIL} | {"mean": of.mean()}
                far = [f"{where} {value:+.1f}" for where, value in away.items() if abs(value) > FAR_OFF]
                of_k += [f"{split}: {', '.join(far)}"] if far else []
            shown.append("; ".join(of_k))
        if any(shown):
            lines.append([name, *shown])
    return markdown(["", *(f"k = {k}" for k in KS)], lines, texts=range(4))


def costs() -> str:
    """Show seconds and memory of runs, by k, seed and the processes that made them (study/calls.csv)."""
    calls = pd.read_csv(RESULTS / "study" / "calls.csv")
    groups = calls.groupby([calls["k"].map(KS.index), "seed", calls["cil"] == "joint"])["seconds"]
    lines = []
    for (place, seed, is_joint), seconds in groups:
        runs = [run for run in study().runs if (run["k"], run["seed"]) == (KS[place], seed)]
        runs = [run for run in runs if (run["cil"] == "joint") == is_joint]
        runs.sort(key=lambda run: (*SIX, "joint").index(run["cil"]))
        stages = [
            f"{sum(step.get(stage, 0) for run in runs for step in run['seconds']):.0f}"
            for stage in ("training", "tuning", "evaluation")
        ]
        names = []
        for run in runs:
            done = min(run["detectors"].values(), default=0)
            steps = run["steps"] or done
            names.append(title(run["cil"]) + f" ({done} of {steps} steps)" * (done < steps))
        numbers = " or ".join(map(str, sorted({len(run["detectors"]) for run in runs})))
        peak = max(run["environment"].get("peak_memory_mib") or 0 for run in runs) / 1024
        made = [part for run in runs for part in run["made"]]
        days = sorted({part[end][:10] for part in made for end in ("first", "last")})
        devices = {f"{part['device'].removeprefix('NVIDIA ')}, {part['precision']}" for part in made}
        line = [str(KS[place]), str(seed), f"{', '.join(names)} × {numbers}"]
        line += [" + ".join(f"{value:,}" for value in seconds), *stages, f"{peak:.1f}"]
        line += [listed(sorted(devices)), " to ".join(dict.fromkeys([days[0], days[-1]]))]
        lines.append([*line, listed(sorted({f"`{part['source'][:8]}`" for part in made}))])
    head = ["k", "seed", "runs × detectors", "seconds", "training", "tuning", "evaluation", "GiB"]
    return markdown([*head, "device", "day", "source"], lines, texts=(0, 1, 2, 8, 9, 10))


def joint() -> str:
    """Compare the joint model with others of its seed, at k = 10."""
    rows = study().rows
    rows = rows[(rows["k"] == 10) & (rows["seed"] == 0) & (rows["task"] == 0)]
    auc_rows = rows[(rows["metric"] == "auc") & rows["detector"].isin(SIXTEEN)]
    by_step = 100 * auc_rows.pivot_table("value", "cil", "step")
    lines = []
    for cil in (*CIL, "der", "joint", "memo"):
        of = by_step.loc[cil]
        values = (mean("accuracy", cil=cil, seed=0), of.mean(), of[1], of[10], *megabytes("study", cil))
        lines.append([title(cil), *(f"{value:.1f}" for value in values)])
    return markdown(["", "accuracy", "AUC", "first step", "last step", "model, MB", "images, MB"], lines)


def learners() -> str:
    """Show the field's learners: accuracy beside the survey's, AUC of four detectors, and stored MB."""
    detectors, lines = LOGIT_SCORES, []
    for cil in LEARNERS:
        ours, theirs = mean("accuracy", cil=cil, folder="learners"), survey(cil)
        beside = ["", ""] if theirs is None else [f"{theirs:.2f}", f"{ours - theirs:+.1f}"]
        values = [mean("accuracy", cil=cil, folder="learners", step=10)]
        values += [auc(d, cil=cil, folder="learners") for d in detectors]
        stored = [f"{value:.1f}" for value in megabytes("learners", cil)]
        lines.append([title(cil), f"{ours:.2f}", *beside, *(f"{v:.2f}" for v in values), *stored])
    head = ["", "accuracy", "survey", "", "last step", *(POSTHOC[d] for d in detectors)]
    return markdown([*head, "model, MB", "memory, MB"], lines)


def pretrained() -> str:
    """Show learners on a frozen network: accuracy beside independent code's, AUC of logit scores, and MB."""
    lines = []
    for cil in sorted(study("pretrained").rows["cil"].unique()):
        of = partial(mean, folder="pretrained", cil=cil)
        ours, theirs = of("accuracy"), INDEPENDENT.get(cil)
        beside = ["", ""] if theirs is None else [f"{theirs:.1f}", f"{ours - theirs:+.1f}"]
        values = [of("accuracy", step=10), *(of("auc", d, distance=("near", "far")) for d in LOGIT_SCORES)]
        stored = [f"{value:.1f}" for value in megabytes("pretrained", cil)]
        lines.append((ours, [title(cil), f"{ours:.2f}", *beside, *(f"{v:.1f}" for v in values), *stored]))
    head = ["", "accuracy", "independent", "", "last step", *(POSTHOC[d] for d in LOGIT_SCORES)]
    return markdown([*head, "model, MB", "memory, MB"], [line for _, line in sorted(lines, reverse=True)])


def pretrained_detectors() -> str:
    """Show AUC of detectors on a frozen network: all sets on each learner; near and far as their mean."""
    rows = study("pretrained").rows.query("metric == 'auc' and task == 0 and k == 10")
    rows = rows[rows["distance"].isin(["near", "far"])]
    values = 100 * rows.pivot_table("value", "detector", "cil")
    splits = 100 * rows.pivot_table("value", "detector", "distance")
    whole = values.assign(mean=values.mean(axis=1)).join(splits[["near", *{"far"} & {*splits.columns}]])
    lines = [
        [title(str(name)), *("" if pd.isna(value) else f"{value:.1f}" for value in line)]
        for name, line in whole.sort_values("mean", ascending=False).iterrows()
    ]
    return markdown(["", *map(title, values.columns), *whole.columns[len(values.columns) :]], lines)


def six_models() -> str:
    """Show AUC of every detector on six models, by family, at k = 10 with seed 0."""
    rows = study().rows
    asked = (rows["k"] == 10) & (rows["seed"] == 0) & (rows["metric"] == "auc") & (rows["task"] == 0)
    rows = rows[asked & rows["cil"].isin(SIX)]
    values = 100 * rows.pivot_table("value", "detector", "cil")[list(SIX)].dropna()
    splits = 100 * rows.pivot_table("value", "detector", "distance")[["near", "far"]]
    values = values.assign(mean=values.mean(axis=1)).join(splits).sort_values("mean", ascending=False)
    runs = (run for run in study().runs if (run["cil"], run["k"], run["seed"]) == ("wa", 10, 0))
    config = next(runs)["config"]["detector"]
    families: dict[str, list[list[str]]] = {}
    for name, line in values.iterrows():
        if "@" not in (detector := str(name)):
            stated = config.get(f"{detector}@stated", {})
            changed = {key for key in stated if stated[key] != config[detector].get(key)}
            on_train = f"{values['mean'][f'{detector}@stated']:.1f}" if changed == {"setup"} else ""
            shown = [title(detector), *(f"{value:.1f}" for value in line), on_train]
            families.setdefault(opencil.create_detector(detector).family, []).append(shown)
    stored = [f"{sum(megabytes('study', cil)):.1f}" for cil in SIX]
    lines = [["*MB of model and memory*", *stored, *[""] * 4]]
    for family, of_family in families.items():
        lines += [[f"*{family}*", *[""] * 10], *of_family]
    return markdown(["", *map(title, SIX), "mean", "near", "far", "on train+"], lines)


def shifted() -> str:
    """Show detectors under covariate shift, mean of the four models, k = 10, seed 0."""
    rows = study().rows.query("k == 10 and seed == 0 and task == 0")
    rows = rows[rows["cil"].isin(CIL) & ~rows["detector"].str.contains("@") & (rows["detector"] != "")]
    means = 100 * rows.groupby(["detector", "metric"])["value"].mean().unstack("metric")
    means["shifted"] = 2 * means["auc_full"] - means["auc"]  # full: as many shifted as clean images
    columns = ["auc", "shifted", "auc_full", "fpr", "fpr_full", "fpr_shifted"]
    lines = [
        [title(str(name)), *(f"{value:.1f}" for value in line)]
        for name, line in means[columns].sort_values("shifted", ascending=False).iterrows()
    ]
    return markdown(["", "AUC", "shifted", "full", "FPR", "full", "shifted rejected"], lines)


# --- experiments/ ---------------------------------------------------------------------------------


def as_released() -> str:
    """Compare images that four detectors are set up on, on the models of seed 1 (set_up.md)."""
    detectors = ("klm", "nnguide", "react", "relation")
    of = partial(average, pd.read_csv(EXPERIMENTS / "set_up_data_seed1.csv"), "auc")
    lines = []
    for cil, k in (*product(CIL, (10,)), ("icarl", 20), ("icarl", 5)):
        for kind in ("train+", "memory", "as released"):
            values = (100 * of(detector=d, setup=kind, cil=cil, k=k) for d in detectors)
            lines.append([f"{CIL[cil]}, {k}: {kind}", *(f"{value:.2f}" for value in values)])
        lines.append(["the paper", *(f"{paper('auc', d, cil, k):.2f}" for d in detectors)])
    return markdown(["model, k: set up on", *(POSTHOC[d] for d in detectors)], lines)


def outliers() -> str:
    """Show gains over Energy by k and model, in the first / second half of the steps (small_steps.md)."""
    sets = ("near", "far")

    def gain(detector: str, k: int, cil: str, steps: range) -> str:
        seeds = [seed for model, seed in trainings(k) if model == cil]
        of = partial(auc, k=k, cil=cil, seed=seeds, step=steps, distance=sets)
        return f"{of(detector) - of('energy'):+.1f}"

    lines = []
    for detector in ("vos", "npos", "ber", "ber@chosen", "logitnorm", "t2fnorm", "augmix", "regmix"):
        for k in sorted(KS, reverse=True):
            halves = (range(1, 50 // k + 1), range(50 // k + 1, 100 // k + 1))
            shown = (" / ".join(gain(detector, k, cil, steps) for steps in halves) for cil in CIL)
            lines.append([SIXTEEN.get(detector, f"`{detector}`"), str(k), *shown])
    return markdown(["", "k", *CIL.values()], lines)
