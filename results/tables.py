"""Make the tables of the pages: of the study, of further learners, and of single questions."""

import math
from collections.abc import Iterable
from functools import partial
from itertools import chain, combinations, product
from statistics import fmean

import pandas as pd
from scipy.stats import chi2

import opencil
from opencil.published import SURVEY_ACCURACY
from results.rows import (
    CIL,
    EXPERIMENTS,
    KS,
    OTHER_ORDER,
    POSTHOC,
    RESULTS,
    SIXTEEN,
    SPLITS,
    TUNED,
    Values,
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
    released,
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
#: Detectors beyond the paper's that ran under both class orders.
BEYOND = ("knn", "gram", "fdbd", "ash")
#: Accuracy of independent code on the features of the same network and images, k = 10.
INDEPENDENT = {"simplecil": 68.5, "slda": 77.6, "fecam": 79.4, "ranpac": 80.3}
LOGIT_SCORES = ("msp", "maxlogit", "energy", "gen")
#: CIL models that all detectors were run on, at k = 10 with seed 0.
SIX = (*CIL, "der", "memo")


def best_by_model() -> str:
    """Name the best of the sixteen detectors on each CIL model at k = 10, beside BER."""
    lines = []
    for cil, name in CIL.items():
        ours = by_training(10).loc[cil]
        best = str(ours.mean().idxmax())
        shown = [spread(accuracies(10, cil)), SIXTEEN[best], spread(ours[best]), spread(ours["ber"])]
        lines.append([name, *shown])
    header = ["CIL method", "accuracy", "best detector", "AUC", "BER, the paper's own"]
    return markdown(header, lines, texts=(0, 2))


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


def count_pairs(ours: pd.DataFrame, papers: pd.DataFrame) -> tuple[int, int]:
    """Count pairs of columns that differ by more than a point in both tables: of the same order, and all."""
    same = every = 0
    for cil, (a, b) in product(ours.index, combinations(ours.columns, 2)):
        here, there = (table.loc[cil, a] - table.loc[cil, b] for table in (ours, papers))
        if min(abs(here), abs(there)) > 1:
            every, same = every + 1, same + (here * there > 0)
    return same, every


def agreement() -> str:
    """Show how near our AUCs are to the paper's: distances, pairs of detectors, and rank correlations."""
    lines = []

    def add(what: str, ours: pd.DataFrame, papers: pd.DataFrame, accuracy: str = "") -> None:
        away = (ours - papers).abs().stack()
        shown = [accuracy, f"{away.mean():.2f}"]
        for left_out in ([], ["relation", "nnguide", "react"]):
            same, every = count_pairs(*(table.drop(columns=left_out) for table in (ours, papers)))
            shown.append(f"{same}/{every} ({100 * same / every:.0f} %)")
        rank = fmean(ours.loc[cil].corr(papers.loc[cil], method="spearman") for cil in CIL)
        lines.append([what, *shown, f"{rank:.2f}"])

    for k in KS:
        seeds = sorted({sum(cil == name for name, _ in trainings(k)) for cil in CIL})
        away = fmean(abs(accuracies(k, cil).mean() - paper("accuracy", cil=cil, k=k)) for cil in CIL)
        papers = by_model(k) - distance(k)
        add(f"k = {k}, {' or '.join(map(str, seeds))} seeds", by_model(k), papers, f"{away:.2f}")
    seed_0, seed_1 = (by_training(10).xs(seed, level="seed").loc[list(CIL)] for seed in (0, 1))
    papers = by_model(10) - distance(10)
    add("k = 10, seed 1", seed_1, papers)
    add("the same, released set-up", seed_1.assign(**released()), papers)
    add("our seeds 0 and 1", seed_1, seed_0)
    head = ["beside the paper", "accuracy: distance", "AUC: distance", "pairs alike", "alike without R, N, R"]
    return markdown([*head, "rank ρ"], lines)


def pool(groups: Iterable[pd.DataFrame]) -> tuple[float, int]:
    """Return the standard deviation pooled over tables of trainings × detectors, and its degrees of freedom.

    The detectors of a training are not independent: they add no degrees of freedom.
    """
    squares = freedom = 0.0
    for of in groups:
        squares += ((of - of.mean()) ** 2).sum().mean()
        freedom += len(of) - 1
    return math.sqrt(squares / freedom), int(freedom)


def _independent(seed: int) -> pd.DataFrame:
    """Read the figures of an independent run of k = 10."""
    return pd.read_csv(EXPERIMENTS / f"independent_seed{seed}.csv")


def _spread_line(what: str, k: str, groups: Iterable[tuple[str, pd.DataFrame]]) -> list[str]:
    """Return the spread of trainings × detectors, grouped by CIL model, as a line of a table."""
    several = [(cil, of) for cil, of in groups if len(of) > 1]
    deviation, freedom = pool(of for _, of in several)
    low, high = (deviation * math.sqrt(freedom / chi2.ppf(q, freedom)) for q in (0.975, 0.025))
    gap, detector, cil = max((of[d].max() - of[d].min(), d, cil) for cil, of in several for d in of)
    line = [what, k, str(freedom + len(several)), f"{deviation:.1f}", f"{low:.1f} to {high:.1f}"]
    return [*line, f"{gap:.1f} ({SIXTEEN[detector]} on {CIL[cil]})"]


def spreads() -> str:
    """Show standard deviations of a detector's mean AUC on a model: over seeds, class orders and engines."""
    by_seed = {k: list(by_training(k).groupby("cil")) for k in KS}
    lines = [_spread_line("seed", str(k), groups) for k, groups in by_seed.items()]
    lines.append(_spread_line("seed, pooled", "all", chain(*by_seed.values())))
    ours, other = by_training(10), by_training(10, folder=OTHER_ORDER)
    orders = pd.concat([ours.xs(0, level="seed"), other.droplevel("seed")])
    lines.append(_spread_line("class order", "10", orders.groupby("cil")))
    again = 100 * _independent(1).query("metric == 'auc'").pivot_table("value", "cil", "detector")
    engines = pd.concat([ours.xs(1, level="seed")[again.columns], again])
    lines.append(_spread_line("rounding", "10", engines.groupby("cil")))
    away = average(_independent(3), "value", cil="wa", detector="energy") - ours["energy"]["wa"].mean()
    lines.append(["independent seed 3", "10", "1", "", "", f"{abs(away):.1f} (Energy on WA)"])
    head = ["what differs", "k", "trainings", "standard deviation", "95 % interval", "largest difference"]
    return markdown(head, lines)


def independent() -> str:
    """Compare an independent run of k = 10, seed 3, with ours."""
    lines = []
    for _, row in _independent(3).iterrows():
        cil, detector = row["cil"], row["detector"]
        if row["metric"] == "accuracy":
            what, ours = f"accuracy, {CIL[cil]}", accuracies(10, cil)
        else:
            seeds = range(3) if detector in SIXTEEN else range(1)
            ours = pd.Series([auc(detector, cil=cil if cil in CIL else list(CIL), seed=s) for s in seeds])
            what = f"AUC, {title(detector)} on {CIL.get(cil, 'all four')}"
        lines.append([what, spread(ours), f"{row['value']:.2f}", f"{row['value'] - ours.mean():+.1f}"])
    return markdown(["", "ours", "seed 3", ""], lines)


def find_equals(of: pd.DataFrame) -> Values:
    """Return mean AUCs of detectors that cannot be told from the best of trainings × detectors, best first.

    A detector can where it is below the best in every training, and by more than a point in the mean.
    """
    means = of.mean().sort_values(ascending=False)
    best = of[means.index[0]]
    return means[[not (of[d] < best).all() or best.mean() - means[d] <= 1 for d in means.index]]


def choices() -> str:
    """Name the detectors to use with a CIL model: those that cannot be told from the best of the sixteen."""
    lines = []
    for cil, name in CIL.items():
        line = [name]
        for split in SPLITS:
            parts = [by_training(k, split=split).loc[cil] for k in KS]
            parts.append(by_training(10, split=split, folder=OTHER_ORDER).loc[cil])
            best = find_equals(pd.concat(parts))
            names = [SIXTEEN[str(d)] for d in best.index]
            line.append(", ".join([f"{names[0]} {best.iloc[0]:.1f}", *names[1:]]))
        beyond = []
        for d in BEYOND:
            orders = [partial(auc, cil=cil, seed=0, folder=folder) for folder in ("study", OTHER_ORDER)]
            gains = [of(d) - max(map(of, SIXTEEN)) for of in orders]
            beyond += [f"{title(d)} {fmean(gains):+.1f}"] if min(gains) > 0 else []
        lines.append([*line, ", ".join(beyond)])
    return markdown(["", "all six OOD sets", "near", "far", "beyond the paper"], lines, texts=range(5))


def places() -> str:
    """Show BER's place among the sixteen by AUC, the paper's place of it, and the best detector here."""
    lines = []
    for k, (cil, name) in product(KS, CIL.items()):
        line = [f"{name}, k = {k}"]
        for split in SPLITS:
            ours = by_model(k, split=split).loc[cil]
            papers = ours - distance(k, split=split).loc[cil]
            here, there = (of.rank(ascending=False)["ber"] for of in (ours, papers))
            line.append(f"{here:.0f} (paper {there:.0f}; best {SIXTEEN[str(ours.idxmax())]})")
        lines.append(line)
    return markdown(["BER's place", *(f"{split} OOD sets" for split in SPLITS)], lines, texts=range(4))


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
    head = [
        "learner",
        "accuracy",
        "independent",
        "difference",
        "last step",
        *(POSTHOC[d] for d in LOGIT_SCORES),
    ]
    return markdown([*head, "model, MB", "memory, MB"], [line for _, line in sorted(lines, reverse=True)])


def open_world() -> str:
    """Show classifiers on the open-world stream: shares as means over rounds, the rest after the last."""
    rows, lines = pd.read_csv(RESULTS / "open_world" / "rows.csv"), []
    for (reject, cil, detector), played in rows.groupby(["reject", "cil", "detector"], sort=False):
        last = played.iloc[-1]
        shares = [*played[["found", "false_alarms"]].mean(), last["accuracy"]]
        found, alarms, accuracy = (f"{100 * share:.1f}" for share in shares)
        spent = [f"{last['labels']:.0f}", f"{last['classes_found']:.0f}", f"{last['labels_per_class']:.1f}"]
        lines.append([f"{reject:.2f}", title(cil), str(detector), found, alarms, *spent, accuracy])
    heads = ["reject", "learner", "detector", "found, %", "false alarms, %", "labels", "classes found"]
    return markdown([*heads, "labels a class", "accuracy, %"], lines, texts=(1, 2))


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
    return markdown(["detector", *map(title, values.columns), *whole.columns[len(values.columns) :]], lines)


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


def outliers() -> str:
    """Show gains over Energy by k and model, in the first / second half of the steps (small_steps.md)."""

    def gain(detector: str, k: int, cil: str, steps: range) -> str:
        seeds = [seed for model, seed in trainings(k) if model == cil]
        of = partial(auc, k=k, cil=cil, seed=seeds, step=steps, distance=("near", "far"))
        return f"{of(detector) - of('energy'):+.1f}"

    lines = []
    for detector in ("vos", "npos", "ber", "ber@chosen", "logitnorm", "t2fnorm", "augmix", "regmix"):
        for k in sorted(KS, reverse=True):
            halves = (range(1, 50 // k + 1), range(50 // k + 1, 100 // k + 1))
            shown = (" / ".join(gain(detector, k, cil, steps) for steps in halves) for cil in CIL)
            lines.append([SIXTEEN.get(detector, f"`{detector}`"), str(k), *shown])
    return markdown(["", "k", *CIL.values()], lines)
