"""What the page says of the study: what is there, its tables, costs and noise, from finished runs.

A cell is a training (CIL model and seed) and an OOD set, mean over its steps: all detectors meet the same
model and the same images there. A k counts once a seed has all four models; then every finished training
does, and a mean over models is one of each model's own mean, since one may have more seeds than another.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from opencil import Study, registry
from opencil.published import SURVEY_ACCURACY
from opencil.report.compare import agreement, compare
from opencil.report.order import method, sort_cil
from opencil.report.results import results
from results.measured import (
    CIL,
    HERE,
    POSTHOC,
    SIXTEEN,
    TUNED,
    compared,
    kept,
    paper,
    published,
    study,
    survey,
    table,
    written,
)

KS, SEEDS = (10, 20, 5), (0, 1, 2)
SPLITS = ("all", "near", "far")
OOD_SETS = {"cifar10": "CIFAR-10"} | {
    name.lower(): name for name in ("TIN", "MNIST", "Texture", "SVHN", "Places365")
}
#: More than so many points from the paper's AUC is far off.
FAR_OFF = 3
NOT_YET = "not whole yet"
#: Values with a name that run beside the defaults.
NAMED = (*(f"{d}@stated" for d in ("relation", "klm", "react", "nnguide")), "augmix@original", "ber@chosen")
#: Detectors that score by logits, of the model or of a head that is tuned without outliers.
BY_LOGITS = ("maxlogit", "energy", "gen", "odin", "logitnorm", "t2fnorm", "augmix", "regmix")
#: What is known of detectors that are far off in some cell.
WHY = {
    "relation": "what it is [set up on](../experiments/set_up.md), where tried; BiC's is unexplained",
    "nnguide": "in part its bank of images; BiC's is [not that](../experiments/set_up.md): unexplained",
    "react": "unexplained; a [higher percentile](../experiments/set_up.md#reacts-percentile) is nearer",
    "npos": "on BiC, at k = 10, [its correction](../experiments/heads.md) of outliers; at k = 5 "
    "[looked into](../experiments/small_steps.md); unexplained",
    "vos": "unexplained; at k = 5 [looked into](../experiments/small_steps.md)",
    "ber": "unexplained; [other values](../experiments/ber.md) were tried; at k = 5 "
    "[looked into](../experiments/small_steps.md)",
}


# --- what is there --------------------------------------------------------------------------------


@cache
def trainings(
    k: int, models: Iterable[str] = tuple(CIL), detectors: Iterable[str] = tuple(SIXTEEN)
) -> list[tuple[str, int]]:
    """The runs of some models that have all steps of some detectors, as (CIL model, seed)."""
    return sorted(
        (run["cil"], run["seed"])
        for run in study("study").runs
        if run["k"] == k
        and run["cil"] in models
        and run["trained"] == run["steps"]
        and all(run["detectors"].get(name) == run["steps"] for name in detectors)
    )


@cache
def seeds(k: int) -> list[int]:
    """The seeds of which all four models are there."""
    return [
        seed for seed in sorted({s for _, s in trainings(k)}) if all((c, seed) in trainings(k) for c in CIL)
    ]


def run_ks() -> list[int]:
    """The ks of which at least one seed has all four models."""
    return [k for k in KS if seeds(k)]


@cache
def rows_of(k: int, metric: str) -> pd.DataFrame:
    """In percent, of the trainings that are there."""
    rows = study("study").rows
    asked = (rows["k"] == k) & (rows["metric"] == metric) & (rows["task"] == 0)
    asked &= rows["detector"].isin(["", *SIXTEEN])
    rows = rows[asked].assign(value=100 * rows["value"])
    return rows[pd.MultiIndex.from_frame(rows[["cil", "seed"]]).isin(trainings(k))]


@cache
def cells(k: int, metric: str = "auc", first: int = 1, last: int = 100) -> pd.DataFrame:
    """(cil, seed, ood) × the sixteen detectors, mean over steps from ``first`` to ``last``."""
    rows = rows_of(k, metric)
    rows = rows[rows["step"].between(first, last) & (rows["detector"] != "")]
    means = rows.groupby(["cil", "seed", "ood", "detector"])["value"].mean()
    return means.unstack("detector")[list(SIXTEEN)]


def mean_of_models(values: Any) -> Any:
    """Mean of the four models, of each its mean over cells: one that has fewer seeds counts as much."""
    return values.groupby("cil").mean().mean()


def of_whole_seeds(k: int, values: Any) -> Any:
    """The cells of seeds of which all four models are there."""
    return values[values.index.get_level_values("seed").isin(seeds(k))]


def of_split(values: pd.DataFrame, split: str) -> pd.DataFrame:
    """The cells of near sets, of far ones, or all."""
    near = values.index.get_level_values("ood").isin(["cifar10", "tin"])
    return {"near": values[near], "far": values[~near], "all": values}[split]


@cache
def by_training(k: int, split: str) -> dict[str, pd.DataFrame]:
    """AUC of each CIL model, seeds × detectors, mean over OOD sets and steps."""
    means = of_split(cells(k), split).groupby(["cil", "seed"]).mean()
    return {cil: means.xs(cil, level="cil") for cil in CIL}


def by_seed(k: int, detector: str, cil: str, split: str = "all") -> "pd.Series[float]":
    """A detector's AUC, mean over OOD sets and steps, for each seed."""
    return by_training(k, split)[cil][detector]


def study_off(k: int, detector: str, cil: str, split: str = "all") -> float:
    """AUC less the paper's."""
    return float(by_seed(k, detector, cil, split).mean()) - paper("auc", detector, cil, k, split)


def mean_off(k: int, detector: str, split: str = "all") -> float:
    return fmean(study_off(k, detector, cil, split) for cil in CIL)


@cache
def accuracies(k: int, cil: str, metric: str = "accuracy") -> "pd.Series[float]":
    """Mean over steps, for each seed."""
    rows = rows_of(k, metric)
    of_seeds: pd.Series[float] = (
        rows[(rows["cil"] == cil) & (rows["detector"] == "")].groupby("seed")["value"].mean()
    )
    return of_seeds


def spread(values: "pd.Series[float]", digits: int = 2, mean: float | None = None) -> str:
    """Mean ± sample standard deviation over seeds; of one seed there is none."""
    deviation = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean() if mean is None else mean:.{digits}f}{deviation}"


def _spread_of_models(k: int, values: "pd.Series[float]") -> str:
    """Mean of the four models ± over the seeds that have all of them."""
    return spread(of_whole_seeds(k, values).groupby("seed").mean(), 1, mean_of_models(values))


def listed(names: Iterable[Any]) -> str:
    every = [str(name) for name in names]
    return " and ".join(filter(None, [", ".join(every[:-1]), *every[-1:]]))


def fewer_seeds() -> str:
    """How many seeds models of a k have that does not have as many of each; nothing where all have."""
    said = []
    for k in run_ks():
        of = {name: len(accuracies(k, cil)) for cil, name in CIL.items()}
        if len(set(of.values())) > 1:
            said.append(f"At k = {k} the seeds are {', '.join(f'{n} of {name}' for name, n in of.items())}.")
    return " ".join(said)


def what_is_there() -> str:
    """Which ks and seeds are whole, what counts beside them, and what of the plan is not there."""
    whole = [f"k = {k} with seed{'s' * (len(seeds(k)) > 1)} {listed(seeds(k))}" for k in run_ks()]
    said = [f"Whole, with all four models and sixteen detectors: {'; '.join(whole)}."]
    for k in run_ks():
        for seed in sorted({s for _, s in trainings(k)} - set(seeds(k))):
            models = listed(CIL[cil] for cil in CIL if (cil, seed) in trainings(k))
            said.append(f"At k = {k} {models} of seed {seed} count too.")
    lacking = f"Not run, for want of time on a GPU: {less}." if (less := not_there()) else ""
    return " ".join([*said, lacking or "Nothing of the plan is missing."])


def not_there() -> str:
    """What of the plan has no rows, or not all."""
    lacking = []
    for k in KS:
        less = []
        for seed in SEEDS:
            models = [cil for cil in CIL if (cil, seed) not in trainings(k)]
            whose = f"{listed(CIL[cil] for cil in models)} of " if len(models) < len(CIL) else ""
            less += [f"{whose}seed {seed}{_steps_there(k, seed, models)}"] if models else []
        lacking += [f"k = {k}, {listed(less)}"] if less else []
    lacking += [] if trainings(10, ("joint",)) else ["`joint`"]
    lacking += [] if shifted_seeds() else ["`corrupted` on all four models"]
    return "; ".join(lacking)


def _steps_there(k: int, seed: int, models: Iterable[str]) -> str:
    """How many steps all detectors of some models have, in brackets, where one of them was begun."""
    of = dict.fromkeys(models, 0)
    for run in study("study").runs:
        if (run["k"], run["seed"]) == (k, seed) and run["cil"] in of:
            of[run["cil"]] = min(run["detectors"].get(name, 0) for name in SIXTEEN)
    fewest, most = min(of.values(), default=0), max(of.values(), default=0)
    there = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f" ({there} of {100 // k} steps are there)" if most else ""


# --- tables ---------------------------------------------------------------------------------------


def accuracy_table() -> str:
    """Beside the paper's and the survey's, whose figure of iCaRL is that of nearest means."""
    lines = []
    for cil, name in CIL.items():
        shown = []
        for k in run_ks():
            ours, theirs = accuracies(k, cil), survey(cil, k=k)
            beside = ""
            if theirs is not None:
                of_its_kind = accuracies(k, cil, SURVEY_ACCURACY.get(cil, "accuracy"))
                beside = f"{theirs:.2f} ({of_its_kind.mean() - theirs:+.1f})"
            papers = paper("accuracy", cil=cil, k=k)
            shown += [spread(ours), f"{papers:.2f} ({ours.mean() - papers:+.1f})", beside]
        lines.append([name, *shown])
    return table(["", *(text for k in run_ks() for text in (f"k = {k}", "paper", "survey"))], lines)


def auc_table(k: int = 10) -> str:
    """AUC of sixteen detectors on four models, ± over seeds, and what it is off the paper's."""
    if not seeds(k):
        return NOT_YET
    figures = published()
    figures = figures[figures["flagged"] & (figures["metric"] == "auc") & (figures["k"] == k)]
    flagged = set(figures[["detector", "cil"]].itertuples(index=False, name=None))

    def line(name: str, detectors: Sequence[str]) -> list[str]:
        made = [name]
        for cil in CIL:
            ours = by_training(k, "all")[cil][list(detectors)].mean(axis=1)
            away = fmean(study_off(k, d, cil) for d in detectors)
            mark = "†" if len(detectors) == 1 and (detectors[0], cil) in flagged else ""
            made.append(f"{spread(ours, 1)} ({away:+.1f}{mark})")
        return [*made, f"{fmean(mean_off(k, d) for d in detectors):+.1f}"]

    lines = []
    for kind, detectors in (("post-hoc", POSTHOC), ("tuned", TUNED)):
        bold = {d: f"**{n}**" if abs(mean_off(k, d)) > FAR_OFF else n for d, n in detectors.items()}
        lines += [line(name, [detector]) for detector, name in bold.items()]
        lines.append(line(f"*mean, {kind}*", list(detectors)))
    return table(["", *CIL.values(), "mean −"], lines)


def parts_table(k: int = 10) -> str:
    """Near and far sets, old and new classes (from step 2 on), mean over the four models, ± over seeds."""
    lines = []
    for detector, name in SIXTEEN.items():
        shown = []
        for split in SPLITS[1:]:
            ours = _spread_of_models(k, of_split(cells(k), split)[detector])
            shown.append(f"{ours} ({mean_off(k, detector, split):+.1f})")
        shown += [_spread_of_models(k, cells(k, metric, 2)[detector]) for metric in ("auc_old", "auc_new")]
        lines.append([name, *shown])
    return table(["", "near", "far", "old classes", "new classes"], lines)


def sets_table(k: int = 10) -> str:
    """AUC on each OOD set, mean of the four models, ± over seeds; the best of each set in bold."""
    of_sets = {ood: cells(k).xs(ood, level="ood") for ood in OOD_SETS}
    best = {ood: mean_of_models(values).idxmax() for ood, values in of_sets.items()}
    lines = []
    for detector, name in SIXTEEN.items():
        shown = {ood: _spread_of_models(k, values[detector]) for ood, values in of_sets.items()}
        lines.append([name, *(f"**{a}**" if best[ood] == detector else a for ood, a in shown.items())])
    return table(["", *OOD_SETS.values()], lines)


def named_table(k: int = 10) -> str:
    """AUC under named values, and what is gained over the defaults on the same models."""
    rows = study("study").rows
    rows = rows[(rows["k"] == k) & (rows["metric"] == "auc") & (rows["task"] == 0)]
    means = 100 * rows.groupby(["detector", "cil", "seed"])["value"].mean()
    lines = []
    for name in NAMED:
        there = trainings(k, detectors=(*SIXTEEN, name))
        if {cil for cil, _ in there} != set(CIL):
            continue
        of = means[name].loc[there]
        gain = of - means[method(name)].loc[there]
        shown = [f"{spread(of[cil], 1)} ({gain[cil].mean():+.1f})" for cil in CIL]
        lines.append([f"`{name}`", *shown, f"{mean_of_models(of):.1f} ({mean_of_models(gain):+.1f})"])
    return table(["", *CIL.values(), "mean"], lines)


@cache
def _beside_the_paper(k: int) -> pd.DataFrame:
    """Every figure that the paper has of the sixteen beside ours, of the trainings that are there."""
    of = study("study")
    keys = [(k, *training) for training in trainings(k)]
    rows = of.rows[pd.MultiIndex.from_frame(of.rows[["k", "cil", "seed"]]).isin(keys)]
    runs = [run for run in of.runs if (run["k"], run["cil"], run["seed"]) in keys]
    (outcome,) = results(Study(rows, runs))
    every = compare(outcome)
    return every[every["detector"].isin(SIXTEEN)]


def _apart(k: int, metric: str = "auc") -> pd.DataFrame:
    """A metric of ours beside the paper's over all, near and far sets."""
    every = _beside_the_paper(k)
    return every[every["place"].isin(SPLITS) & (every["metric"] == metric)]


def _accuracy_apart(k: int) -> float:
    """Mean distance from the paper's accuracies."""
    return fmean(abs(accuracies(k, cil).mean() - paper("accuracy", cil=cil, k=k)) for cil in CIL)


def distances(metric: str) -> str:
    """Mean distance from the paper's accuracies, or AUCs, at each k."""
    of = {"accuracy": _accuracy_apart, "auc": lambda k: _apart(k)["difference"].abs().mean()}[metric]
    return " / ".join(f"{of(k):.2f}" for k in run_ks())


def distance_table() -> str:
    """Mean distance from the paper's figures, those that it contradicts itself left out."""
    lines = []
    for k in KS:
        if not seeds(k):
            lines.append([str(k), NOT_YET, *[""] * 8])
            continue
        auc = _apart(k)
        parts = [auc, *(auc[auc["place"] == place] for place in SPLITS)]
        parts += [auc[auc["detector"] != "relation"], _apart(k, "fpr")]
        away = [part["difference"].abs() for part in parts]
        ranks = [agreement(part).correlation for _, part in parts[1].groupby("cil")]
        values = [f"{part.mean():.2f}" for part in away]
        rank = f"{fmean(r for r in ranks if r is not None):.2f}"
        lines.append([str(k), f"{away[0].count()}", *values, rank, f"{_accuracy_apart(k):.2f}"])
    head = ["k", "cells", "AUC", "all", "near", "far", "without Relation", "FPR", "rank ρ", "accuracy"]
    return table(head, lines)


def lower_precision() -> str:
    """In how many of the paper's figures of AP, near and far, ours is lower."""
    every = pd.concat([_beside_the_paper(k) for k in run_ks()])
    less = every.loc[every["metric"] == "ap", "difference"].dropna() < 0
    return f"{less.sum()} of {len(less)}"


def far_off() -> str:
    """Every detector that is far off the paper's AUC, over all sets, near or far ones, and why."""
    lines = []
    for detector, name in SIXTEEN.items():
        shown = []
        for k in run_ks():
            of_k = []
            for split in SPLITS:
                away = {CIL[cil]: study_off(k, detector, cil, split) for cil in CIL}
                away["mean"] = mean_off(k, detector, split)
                far = [f"{where} {value:+.1f}" for where, value in away.items() if abs(value) > FAR_OFF]
                of_k += [f"{split}: {', '.join(far)}"] if far else []
            shown.append("; ".join(of_k))
        if any(shown):
            lines.append([name, *shown, WHY.get(detector, "unexplained")])
    head = ["", *(f"k = {k}" for k in run_ks()), "why"]
    return table(head, lines, texts=range(len(head)))


def off_alike(k: int, cil: str, split: str = "all") -> str:
    """How far off the paper detectors are that score by logits, of the model or of a head like its own."""
    away = [study_off(k, detector, cil, split) for detector in BY_LOGITS]
    return f"{min(away):+.1f} to {max(away):+.1f}"


def accuracies_far_off() -> str:
    """Accuracies that are far off the paper's, in brackets, or nothing."""
    away = {
        f"{name} at k = {k}": accuracies(k, cil).mean() - paper("accuracy", cil=cil, k=k)
        for k, (cil, name) in product(run_ks(), CIL.items())
    }
    far = [f"{where} {by:+.1f}" for where, by in away.items() if abs(by) > FAR_OFF]
    return f" (but {listed(far)}: unexplained)" if far else ""


def near_the_paper(k: int) -> str:
    """How many of the 64 mean AUCs are near the paper's, and how alike the orders of the sixteen are."""
    away = [abs(study_off(k, d, c)) for d in SIXTEEN for c in CIL]
    near = [sum(distance <= most for distance in away) for most in (1, FAR_OFF)]
    every = _apart(k)
    every = every[every["place"] == "all"]
    orders = {cil: agreement(part).correlation for cil, part in every.groupby("cil")}
    shown = ", ".join(f"{CIL[cil]} {orders[cil]:.2f}" for cil in CIL)
    return f"k = {k}: {near[0]} and {near[1]}; {shown}"


def distance_of(folder: str, detectors: Iterable[str], k: int = 10) -> float:
    """Mean distance of AUCs over all, near and far sets from the paper's, of some detectors."""
    every = compared(folder, k)
    asked = (every["metric"] == "auc") & every["place"].isin(SPLITS) & every["detector"].isin(list(detectors))
    return float(every.loc[asked, "difference"].abs().mean())


def processes() -> pd.DataFrame:
    """Each process that ran something of the study, with its CIL methods as a list in ``cil``."""
    found = pd.read_csv(HERE / "study" / "calls.csv")
    return found.assign(cil=found["cil"].str.split())


def cost_table() -> str:
    """Seconds and memory of runs, those together that some process made together."""
    every = processes()
    grids: dict[tuple[Any, int, tuple[int, ...]], list[Any]] = {}
    for run in (run for run in study("study").runs if run.get("made")):
        of = {
            call.Index
            for call in every.itertuples()
            if (call.k, call.seed) == (run["k"], run["seed"]) and run["cil"] in call.cil
        }
        runs = [run]
        for grid in [grid for grid in grids if of & set(grid[2])]:
            of, runs = of | set(grid[2]), grids.pop(grid) + runs
        grids.setdefault((run["k"], run["seed"], tuple(sorted(of))), []).extend(runs)
    lines = []
    place = {k: i for i, k in enumerate(KS)}
    for (k, seed, of), runs in sorted(
        grids.items(), key=lambda grid: (place.get(grid[0][0], len(KS)), str(grid[0][0]), *grid[0][1:])
    ):
        stages = [
            f"{sum(step.get(stage, 0) for run in runs for step in run['seconds']):.0f}"
            for stage in ("training", "tuning", "evaluation")
        ]
        made = [made for run in runs for made in run["made"]]
        days = sorted({m["first"][:10] for m in made} | {m["last"][:10] for m in made})
        detectors = " or ".join(map(str, sorted({len(run["detectors"]) for run in runs})))
        # A run that was killed has none.
        peaks = [run["environment"].get("peak_memory_mib") for run in runs]
        peak = max(filter(None, peaks), default=None)
        cils = sort_cil(run["cil"] for run in runs)
        done = {run["cil"]: min(run["detectors"].values(), default=0) for run in runs}
        steps = {
            cil: "" if n == runs[0]["steps"] else f" ({n} of {runs[0]['steps']} steps)"
            for cil, n in done.items()
        }
        names = ", ".join(f"{registry.LEARNERS.entry(cil).title}{steps[cil]}" for cil in cils)
        lines.append(
            [
                *(str(k), str(seed), f"{names} × {detectors}"),
                " + ".join(f"{every['seconds'][call]:,}" for call in of),
                *stages,
                "" if peak is None else f"{peak / 1024:.1f}",
                listed(sorted({f"{m['device'].removeprefix('NVIDIA ')}, {m['precision']}" for m in made})),
                " to ".join(dict.fromkeys([days[0], days[-1]])),
                listed(sorted({f"`{m['source'][:8]}`" for m in made})),
            ]
        )
    head = ["k", "seed", "runs × detectors", "seconds", "training", "tuning", "evaluation", "GiB"]
    return table([*head, "device", "day", "source"], lines, texts=(0, 1, 2, 8, 9, 10))


def study_minutes() -> float:
    """Of the shortest process that ran the four models at k = 10: others ran more beside these."""
    of = processes()
    return float(of["seconds"][(of["k"] == 10) & of["cil"].map(lambda names: names == list(CIL))].min()) / 60


def ours_and_papers_table() -> str:
    """Six lines: accuracies of the four models, AUC of the two kinds of detectors, ten classes a step."""
    pairs = {
        f"accuracy, {name}": (
            spread(accuracies(10, cil)),
            accuracies(10, cil).mean(),
            paper("accuracy", cil=cil),
        )
        for cil, name in CIL.items()
    }
    for kind, detectors in (("nine post-hoc", POSTHOC), ("seven fine-tuning", TUNED)):
        ours = cells(10)[list(detectors)].mean(axis=1)
        mean, theirs = mean_of_models(ours), fmean(paper("auc", d) for d in detectors)
        shown = spread(of_whole_seeds(10, ours).groupby("seed").mean(), 2, mean)
        pairs[f"AUC, mean of {kind} detectors on all four"] = shown, mean, theirs
    lines = [[name, shown, f"{b:.2f}", f"{a - b:+.1f}"] for name, (shown, a, b) in pairs.items()]
    return table(["CIFAR-100, ten classes a step", "ours", "the paper's", ""], lines)


# --- noise ----------------------------------------------------------------------------------------


def deviations(k: int) -> dict[tuple[str, str], float]:
    """Over seeds, of the mean AUC of every detector on every model, as (model, detector)."""
    of_seeds = {(CIL[cil], SIXTEEN[d]): by_seed(k, d, cil) for cil in CIL for d in SIXTEEN}
    return {pair: float(values.std()) for pair, values in of_seeds.items() if len(values) > 1}


def seeds_apart(k: int) -> float:
    """How far two seeds are apart at most in the mean AUC of a detector on a model."""
    return max(float(np.ptp(by_seed(k, d, cil))) for cil in CIL for d in SIXTEEN)


def noise() -> str:
    """How far seeds are apart, at each k and of each model that has several."""
    said = []
    for k in run_ks():
        if not (of_auc := deviations(k)):
            continue
        models = [cil for cil in CIL if len(accuracies(k, cil)) > 1]
        number = " to ".join(map(str, sorted({len(accuracies(k, cil)) for cil in models})))
        whose = f" of {listed(CIL[cil] for cil in models)}" if len(models) < len(CIL) else ""
        model, detector = max(of_auc, key=lambda pair: of_auc[pair])
        of_accuracy = [accuracies(k, cil).std() for cil in models]
        of_sets = cells(k).groupby(["cil", "ood"]).std().stack()
        said.append(
            f"At k = {k}, over {number} seeds{whose}, the standard deviation of a detector's mean AUC on "
            f"a model is {fmean(of_auc.values()):.1f} points in the mean of the {len(of_auc)} and at most "
            f"{of_auc[model, detector]:.1f} ({detector} on {model}; two seeds are up to {seeds_apart(k):.1f} "
            f"apart), on a single OOD set {of_sets.mean():.1f} and at most {of_sets.max():.1f}; that of "
            f"accuracy is {min(of_accuracy):.1f} to {max(of_accuracy):.1f}."
        )
    return " ".join(said) or "There is one seed of each k so far."


# --- covariate shift, and the joint model ---------------------------------------------------------


def shifted_seeds() -> list[int]:
    """The seeds of k = 10 whose four models have met shifted images."""
    rows = study("study").rows
    rows = rows[(rows["k"] == 10) & (rows["metric"] == "fpr_shifted")]
    met = set(rows[["cil", "seed"]].itertuples(index=False, name=None))
    return [seed for seed in seeds(10) if all((cil, seed) in met for cil in CIL)]


def shifted() -> str:
    """What detectors do under covariate shift, at k = 10; ``full`` has the shifted images on the ID side.

    They are as many as the clean ones, so an AUC of both together is the mean of that of each.
    """
    if not shifted_seeds():
        earlier = "[iCaRL and WA](../experiments/defaults.md#covariate-shift), with torch's kernels"
        return f"Not run yet on all four models ({earlier})."
    rows = study("study").rows
    rows = rows[(rows["k"] == 10) & rows["cil"].isin(CIL) & (rows["task"] == 0)]
    rows = rows[rows["seed"].isin(shifted_seeds()) & ~rows["detector"].str.contains("@")]
    means = 100 * rows.groupby(["detector", "metric"])["value"].mean().unstack("metric")
    means["auc_shifted"] = 2 * means["auc_full"] - means["auc"]
    metrics = ["auc", "auc_shifted", "auc_full", "fpr", "fpr_full", "fpr_shifted"]
    of_detectors = means.drop("")[metrics].sort_values("auc_shifted", ascending=False)
    lines = [
        [written(str(detector)), *(f"{value:.1f}" for value in values)]
        for detector, values in of_detectors.iterrows()
    ]
    head = ["", "AUC", "shifted", "full", "FPR", "full", "shifted rejected"]
    accurate = [f"{means.loc['', metric]:.1f}" for metric in ("accuracy", "accuracy_shifted")]
    lost = of_detectors["auc"] - of_detectors["auc_shifted"]
    order = of_detectors["auc"].corr(of_detectors["auc_shifted"], method="spearman")
    return (
        f"Mean of the four models, seed {listed(shifted_seeds())}, every detector, the best on shifted "
        f"images first; accuracy falls from {accurate[0]} to {accurate[1]}:\n\n{table(head, lines)}\n\n"
        f"The orders on clean and on shifted images correlate by ρ = {order:.2f}. Most is lost by "
        f"{listed(f'{written(str(d))} ({value:.1f})' for d, value in lost.nlargest(3).items())}."
    )


def joint() -> str:
    """The model that is trained on all data of all classes seen, beside others of its seed, at k = 10."""
    there = [seed for _, seed in trainings(10, ("joint",))]
    if not there:
        return "Not run yet."
    rows = study("study").rows
    rows = rows[(rows["k"] == 10) & (rows["task"] == 0) & rows["seed"].isin(there)]
    accurate = rows[(rows["metric"] == "accuracy") & (rows["detector"] == "")].groupby("cil")["value"].mean()
    auc = rows[(rows["metric"] == "auc") & rows["detector"].isin(SIXTEEN)]
    by_step = auc.pivot_table("value", "cil", "step")
    lines = []
    for cil in sort_cil({cil for cil, seed in trainings(10, tuple(accurate.index)) if seed in there}):
        first, *_, last = by_step.loc[cil]
        values = [100 * value for value in (accurate[cil], by_step.loc[cil].mean(), first, last)]
        shown = [f"{value:.1f}" for value in (*values, *kept("study")[cil])]
        lines.append([registry.LEARNERS.entry(cil).title, *shown])
    head = ["", "accuracy", "AUC", "first step", "last step", "model, MB", "images, MB"]
    of_joint = auc[auc["cil"] == "joint"].groupby("detector")["value"].mean()
    best = [f"{SIXTEEN[str(name)]} ({100 * value:.1f})" for name, value in of_joint.nlargest(2).items()]
    return (
        f"Seed {listed(there)}, AUC the mean of the sixteen, and what is kept after the last step:\n\n"
        f"{table(head, lines)}\n\nBest on `joint` are {listed(best)}. It keeps no memory, so that KLM, "
        f"NNGuide, ReAct and Relation are set up on all training images there, and on the memory elsewhere."
    )


def farthest() -> tuple[str, str, float]:
    """The detector and the model whose AUC is farthest from the paper's at k = 10, and by how much."""
    away = {(detector, cil): study_off(10, detector, cil) for detector in SIXTEEN for cil in CIL}
    detector, cil = max(away, key=lambda pair: abs(away[pair]))
    return SIXTEEN[detector], CIL[cil], away[detector, cil]


def mean_distance(k: int = 10) -> float:
    """Of the 64 mean AUCs from the paper's."""
    every = np.array([study_off(k, detector, cil) for detector in SIXTEEN for cil in CIL])
    return float(np.abs(every).mean())
