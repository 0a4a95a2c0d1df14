"""What the pages of single questions quote: figures of their rows, and of the CSV files of scripts."""

import math
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import product
from statistics import correlation, fmean
from typing import Any

import pandas as pd
from scipy.stats import ttest_1samp, wilcoxon

from opencil.evaluation.metric import shares
from opencil.published import in_percent, published_ablation
from opencil.report.compare import Agreement, agreement
from results.measured import (
    CIL,
    POSTHOC,
    SIXTEEN,
    TUNED,
    accuracy,
    auc,
    average,
    compared,
    found,
    mean,
    paper,
    record,
    study,
    table,
)
from results.study_page import KS, SEEDS, SPLITS, cells, listed, trainings

#: In which nothing has changed since the first grids.
FIVE = ("energy", "gen", "maxlogit", "msp", "odin")
EIGHT = [name for name in POSTHOC if name != "relation"]
NO_MNIST = ("cifar10", "tin", "texture", "svhn", "places365")
CHOSEN = "BER, fixed lr=0.01 α=0.01"
THREE = ("0", "1", "0, other kernels")
#: Trainings of iCaRL at k = 10: the folder of each, and its seed.
TRAININGS = {
    "tf32, seed 0": ("precision/tf32", 0),
    "tf32, seed 1": ("precision/tf32", 1),
    "bf16, seed 0": ("first_grid", 0),
    "bf16, seed 1": ("precision/bf16", 1),
    "bf16, seed 0, other kernels": ("rounding", 0),
}
#: The models that were run first under today's defaults, with torch's kernels.
TODAY = {"icarl": "iCaRL", "wa": "WA"}
#: The study's two seeds that questions were asked of.
TWO_SEEDS = (0, 1)


def fpr(detector: str, k: int = 10, **where: Any) -> float:
    return mean("fpr", detector, k, **where)


def ours(
    detector: str = "", cil: Any = tuple(CIL), metric: str = "auc", seed: Any = TWO_SEEDS, **where: Any
) -> float:
    """Of the study, k = 10."""
    sets: dict[str, Any] = {"distance": ("near", "far")} if detector else {}
    return mean(metric, detector, folder="study", cil=cil, seed=seed, **sets, **where)


def ours_off(cil: Any = tuple(CIL), seed: Any = TWO_SEEDS) -> "pd.Series[float]":
    """AUC of each detector in the study less the paper's."""
    return pd.Series({name: ours(name, cil, seed=seed) - paper("auc", name, cil) for name in SIXTEEN})


def gain(detector: str, k: int = 10, **where: Any) -> float:
    """AUC less Energy's."""
    return auc(detector, k, **where) - auc("energy", k, **where)


def paper_gain(detector: str, cil: Any = tuple(CIL)) -> float:
    return paper("auc", detector, cil) - paper("auc", "energy", cil)


def off(detector: str, cil: Any = tuple(CIL), k: int = 10, split: str = "all", metric: str = "auc") -> float:
    """Ours less the paper's."""
    sets = ("near", "far") if split == "all" else split
    return mean(metric, detector, k, cil=cil, distance=sets) - paper(metric, detector, cil, k, split)


def accuracy_off(cil: str, k: int = 10) -> float:
    return accuracy(cil, k) - paper("accuracy", cil=cil, k=k)


def within(detectors: Iterable[str], k: int = 10) -> float:
    """How far from the paper's AUC the farthest is, rounded up to a tenth."""
    return math.ceil(10 * max(abs(off(detector, k=k)) for detector in detectors)) / 10


def today(detector: str = "", cil: Any = tuple(TODAY), metric: str = "auc", **where: Any) -> float:
    """Of the first two models under today's defaults, of OOD sets."""
    sets: dict[str, Any] = {"distance": ("near", "far")} if detector else {}
    return mean(metric, detector, folder="defaults", cil=cil, **sets, **where)


def today_off(cil: Any = tuple(TODAY), without: Iterable[str] = ()) -> "pd.Series[float]":
    """AUC of each detector under today's defaults less the paper's."""
    names = [name for name in SIXTEEN if name not in without]
    return pd.Series({name: today(name, cil) - paper("auc", name, cil) for name in names})


def today_apart(without: Iterable[str] = ()) -> float:
    """Mean distance from the paper's AUC over detectors and models."""
    return fmean(today_off(cil, without).abs().mean() for cil in TODAY)


def today_order(cil: str, without: Iterable[str] = ()) -> float:
    """Rank correlation of the detectors' AUC with the paper's."""
    away = today_off(cil, without)
    values = pd.Series({name: today(name, cil) for name in away.index})
    return float(values.corr(values - away, method="spearman"))


def same_models() -> bool:
    """Whether every accuracy of every step is that of the grid of before, bit for bit."""
    keys = ["cil", "step", "task", "metric"]
    then, now = (
        part.loc[(part["detector"] == "") & (part["ood"] == "") & (part["k"] == 10), [*keys, "value"]]
        for part in (shares(study("first_grid").rows), shares(study("defaults").rows))
    )
    both = now.merge(then, on=keys)
    return len(both) == len(now) and bool((both["value_x"] == both["value_y"]).all())


@cache
def shared_first_step() -> pd.DataFrame:
    """Rows of step 1 that iCaRL and WA have in common, whose first training is the same."""
    every = shares(study("study").rows)
    every = every[(every["k"] == 10) & (every["seed"] == 0)]
    first = every[every["step"] == 1].drop(columns=["cil", "step"])
    keys = [name for name in first.columns if name != "value"]
    parts = [first[every.loc[first.index, "cil"] == cil] for cil in ("icarl", "wa")]
    return pd.DataFrame(parts[0].merge(parts[1], on=keys))


def gentle(detector: str, **where: Any) -> float:
    """AUC of a head tuned with lr 0.001."""
    return auc(f"{detector}@gentle", folder="learning_rate", **where)


def heads_off(values: str) -> list[float]:
    """AUC of the tuned heads by model, ``stated``, ``gentle`` or ``untuned``, less the paper's."""
    of = {"stated": auc, "gentle": gentle, "untuned": lambda _, cil: auc("energy", cil=cil)}[values]
    return [of(detector, cil=cil) - paper("auc", detector, cil) for detector, cil in product(TUNED, CIL)]


def gains_alike(values: str) -> float:
    """How the tuned heads' gains over Energy correlate with the paper's."""
    papers = [paper_gain(detector, cil) for detector, cil in product(TUNED, CIL)]
    gains = [a - b for a, b in zip(heads_off(values), heads_off("untuned"), strict=True)]
    return correlation(gains, papers)


def training(name: str, metric: str, detector: str = "", **where: Any) -> float:
    """Of one of iCaRL's trainings."""
    folder, seed = TRAININGS[name]
    return mean(metric, detector, folder=folder, seed=seed, cil="icarl", **where)


def precision(kind: str, metric: str, detector: str = "", seeds: Sequence[str] = ("0", "1")) -> float:
    return fmean(training(f"{kind}, seed {seed}", metric, detector) for seed in seeds)


def between_seeds(metric: str, detector: str = "") -> float:
    """The larger of the differences of two seeds in tf32 and in bf16."""
    of = partial(precision, metric=metric, detector=detector)
    return max(abs(of(kind, seeds="0") - of(kind, seeds="1")) for kind in ("tf32", "bf16"))


def moved(metric: str, detector: str, cil: str = "icarl") -> float:
    """The grid's less that of the earlier run with other kernels."""
    return mean(metric, detector, cil=cil) - mean(metric, detector, cil=cil, folder="rounding")


def span(metric: str, detector: str, k: int) -> str:
    """From where to where a metric goes over models and steps from the second on."""
    cells = [
        mean(metric, detector, k, cil=cil, step=step) for cil, step in product(CIL, range(2, 100 // k + 1))
    ]
    return f"{min(cells):.0f} to {max(cells):.0f}"


def ap_less(split: str) -> str:
    """By how much AP is below the paper's, least and most among the eight."""
    less = sorted((-off(name, split=split, metric="ap"), POSTHOC[name]) for name in EIGHT)
    return " to ".join(f"{value:.1f} ({name})" for value, name in (less[0], less[-1]))


def set_up(detector: str, data: str, cil: Any = tuple(CIL), file: str = "set_up_data") -> float:
    return 100 * average(found(f"{file}.csv"), "auc", detector=detector, setup=data, cil=cil)


def choice(name: str, cil: Any = tuple(CIL), step: Any = range(1, 11)) -> float:
    """AUC of a choice of values, judged by classes that come later."""
    return average(found("choose_margins.csv"), "auc", choice=name, cil=cil, step=step)


def released(detector: str) -> float:
    return 100 * average(found("as_released.csv"), "auc", detector=f"{detector}_released")


def correction(name: str, step: int) -> float:
    return average(found("bic_correction.csv"), "accuracy", correction=name, step=step)


def released_accuracy(**where: Any) -> float:
    return mean("accuracy", folder="bic_released", cil="bic_released", **where)


def alpha(step: int) -> float:
    return average(found("rows/bic_released/corrections.csv"), "alpha", cil="bic_released", step=step)


def on_a_cpu(detector: str) -> "pd.Series[float]":
    """AUC of heads tuned on a GPU less those tuned on a CPU, by OOD set."""
    table = found("rows/first_grid/on_a_cpu.csv").set_index("detector")
    return 100 * (table["gpu"] - table["cpu"])[detector]


def ablation(detector: str, metric: str = "auc", **where: Any) -> float:
    figures = published_ablation()
    figures = figures.assign(value=in_percent(figures["value"]))
    return average(figures, "value", detector=detector, metric=metric, **where)


def call_seconds(*numbers: int) -> int:
    return int(found("rows/first_grid/calls.csv").set_index("call")["seconds"][list(numbers)].sum())


def calls(*numbers: int) -> str:
    first, second, third = map(call_seconds, numbers)
    return f"{first + second + third:,} s in three calls of {first}, {second} and {third} s"


def peak(k: int) -> float:
    """GiB of the device's memory."""
    return max(record(cil, k)["environment"]["peak_memory_mib"] for cil in CIL) / 1024


def beside_paper(k: int, metric: str) -> list[Agreement]:
    """How far the first grid and the paper agree, for each model."""
    cells = compared("first_grid", k)
    cells = cells[(cells["metric"] == metric) & (cells["place"] == "all")]
    return [agreement(cells[cells["cil"] == cil]) for cil in CIL]


def apart(k: int, metric: str) -> float:
    """Their mean distance over all of the sixteen detectors' cells."""
    every = beside_paper(k, metric)
    return sum((one.mean or 0) * one.cells for one in every) / sum(one.cells for one in every)


# --- tables ---------------------------------------------------------------------------------------


def seconds_table(k: int) -> str:
    lines = []
    for cil, name in CIL.items():
        steps, stages = record(cil, k)["seconds"], ("training", "tuning", "evaluation")
        seconds = [f"{sum(step[stage] for step in steps):.0f}" for stage in stages]
        lines.append([name, *seconds, f"{accuracy(cil, k):.2f}", f"{paper('accuracy', cil=cil, k=k):.2f}"])
    return table(
        ["run-seconds", "training", "tuning of heads", "evaluation", "accuracy", "the paper's"], lines
    )


def detectors_table(k: int) -> str:
    def cells(detector: str, name: str) -> list[str]:
        away = off(detector, k=k)
        name = f"**{name}**" if abs(away) > 3 else name
        return [name, f"{auc(detector, k):.2f}", f"{paper('auc', detector, k=k):.2f}", f"{away:+.1f}"]

    left = [cells(*one) for one in POSTHOC.items()]
    right = [cells(*one) for one in (TUNED | {"ber@chosen": "BER, chosen values"}).items()] + [[""] * 4]
    lines = [a + b for a, b in zip(left, right, strict=True)]
    return table(["", "ours", "paper", ""] * 2, lines, texts=(0, 4))


def today_table() -> str:
    lines = []
    for detector, name in SIXTEEN.items():
        away = [float(today_off(cil)[detector]) for cil in TODAY]
        name = f"**{name}**" if abs(fmean(away)) > 3 else name
        pairs = [(today(detector, cil), paper("auc", detector, cil)) for cil in TODAY]
        cells = [f"{value:.2f}" for pair in pairs for value in pair]
        then = fmean(auc(detector, cil=cil) - paper("auc", detector, cil) for cil in TODAY)
        lines.append([name, *cells, *(f"{value:+.1f}" for value in (*away, then))])
    head = [cell for name in TODAY.values() for cell in (name, "paper")]
    return table(["", *head, *(f"{name} −" for name in TODAY.values()), "stated −"], lines)


@cache
def both_kernels() -> dict[tuple[str, int], tuple[float, float]]:
    """Accuracies of each model and seed with kernels of our own, and with torch's."""
    by_torch = {0: accuracy, 1: partial(independent, "accuracy")}
    pairs = product(CIL, TWO_SEEDS)
    return {(cil, seed): (ours("", cil, "accuracy", seed), by_torch[seed](cil)) for cil, seed in pairs}


def lost_by_kernels(*, without: tuple[str, int] | None = None) -> list[float]:
    """Accuracy with kernels of our own less that with torch's, of each pair of trainings."""
    return [ours - torchs for pair, (ours, torchs) in both_kernels().items() if pair != without]


def by_torch() -> pd.DataFrame:
    """Accuracies of single trainings of all classes, by seed, with kernels of our own and with torch's."""
    of_all = {
        k: study(f"by_torch/{k}").rows.query("metric == 'accuracy' and task == 0") for k in ("ours", "torch")
    }
    return pd.DataFrame({kind: 100 * rows.set_index("seed")["value"] for kind, rows in of_all.items()})


def gained_by_kernels() -> tuple[float, float, float]:
    """Accuracy of these with kernels of our own less that with torch's: mean, and its 95 % interval."""
    differences = by_torch()["ours"] - by_torch()["torch"]
    interval = ttest_1samp(differences, 0).confidence_interval()
    return float(differences.mean()), float(interval.low), float(interval.high)


def by_torch_table() -> str:
    """These accuracies: a line of each kind, a column of each seed."""
    lines = [
        [name, *(f"{value:.2f}" for value in [*by_torch()[kind], by_torch()[kind].mean()])]
        for kind, name in (("ours", "kernels of our own"), ("torch", "torch's"))
    ]
    return table(["accuracy", *(f"seed {seed}" for seed in by_torch().index), "mean"], lines)


def two_seeds_accuracy_table() -> str:
    """Accuracies of both seeds, each beside a training with torch's kernels, and the paper's."""
    lines = []
    for cil, name in CIL.items():
        pairs = [both_kernels()[cil, seed] for seed in TWO_SEEDS]
        cells = [*pairs[0], *pairs[1], fmean(own for own, _ in pairs), paper("accuracy", cil=cil)]
        lines.append([name, *(f"{value:.2f}" for value in cells)])
    seeds = [cell for seed in (0, 1) for cell in (f"seed {seed}", "torch's kernels")]
    return table(["accuracy", *seeds, "mean of ours", "paper"], lines)


def independent(metric: str, cil: str, detector: str = "", **where: Any) -> float:
    """Of the independent run of seed 1, made with the engine of before."""
    every = found("independent_seed1.csv").fillna("")
    return 100 * average(every, "value", metric=metric, cil=cil, detector=detector, **where)


def moved_by_rounding() -> float:
    """By how much another training of one seed of iCaRL moved the mean AUC of a post-hoc detector at most."""
    return max(abs(moved("auc", d)) for d in POSTHOC)


def five_less(cil: str) -> float:
    """AUC of the five detectors that nothing was changed in, seed 1, less that of the independent run."""
    return fmean(ours(d, cil, seed=1) - independent("auc", cil, d) for d in FIVE)


SET_UP = ("klm", "nnguide", "react", "relation")
#: Whose models have been set up in three ways: the method, and its k.
SIX_MODELS = (("icarl", 10), ("bic", 10), ("wa", 10), ("foster", 10), ("icarl", 20), ("icarl", 5))


def set_up_of(detector: str, kind: str, cil: str, k: int) -> float:
    """AUC of a detector that is set up on train+, the memory, or as released, on the models of seed 1."""
    file = found("set_up_data_seed1.csv")
    return 100 * average(file, "auc", detector=detector, setup=kind, cil=cil, k=k)


def released_set_up_table() -> str:
    lines = []
    for cil, k in SIX_MODELS:
        for kind in ("train+", "memory", "as released"):
            lines.append([f"{CIL[cil]}, {k}: {kind}", *(f"{set_up_of(d, kind, cil, k):.2f}" for d in SET_UP)])
        if k == 10:
            batch = f"{set_up_of('nnguide', 'one batch', cil, k):.2f}"
            lines.append(["one augmented batch", *(batch if d == "nnguide" else "" for d in SET_UP)])
        lines.append(["the paper", *(f"{paper('auc', d, cil, k):.2f}" for d in SET_UP)])
    return table(["model, k: set up on", *(POSTHOC[d] for d in SET_UP)], lines)


def off_as_released(cil: str) -> "pd.Series[float]":
    """AUC less the paper's, mean of two seeds, with Relation set up as released."""
    away = ours_off(cil)
    away["relation"] = set_up_of("relation", "as released", cil, 10) - paper("auc", "relation", cil)
    return away


def nnguide_off(kind: str, cil: Any = tuple(CIL)) -> float:
    """NNGuide's AUC under a set-up, on the models of seed 1, less the paper's."""
    models = [cil] if isinstance(cil, str) else cil
    return fmean(set_up_of("nnguide", kind, c, 10) - paper("auc", "nnguide", c) for c in models)


def order_as_released(cil: str) -> float:
    papers = pd.Series({name: paper("auc", name, cil) for name in SIXTEEN})
    return float((papers + off_as_released(cil)).corr(papers, method="spearman"))


def set_up_gains(*steps: int) -> list[float]:
    """What the memory gives the four detectors over train+ on iCaRL, seed 1, at some k."""
    return [
        auc(d, k, cil="icarl", folder=folder, seed=1)
        - auc(f"{d}@stated", k, cil="icarl", folder=folder, seed=1)
        for k, folder in ((k, "study" if k == 10 else "set_up") for k in steps)
        for d in SET_UP
    ]


#: What ReAct cuts features at, k = 10, seed 0: the percentile, and the detector's name in rows/react.
CUTS = {85: "react@p85", 90: "react", 95: "react@p95", 99: "react@p99", 100: "react@p100"}


def cut(percentile: int, cil: str, split: str = "all") -> float:
    """ReAct's AUC under a percentile."""
    where = {} if split == "all" else {"distance": split}
    return auc(CUTS[percentile], cil=cil, folder="react", **where)


def cut_off(percentile: int, split: str = "all") -> float:
    """Its mean distance from the paper's figures of the four models."""
    return fmean(abs(cut(percentile, cil, split) - paper("auc", "react", cil, split=split)) for cil in CIL)


def cuts_table() -> str:
    """Over all sets and, in brackets, near ones, with distances from the paper over all, near and far."""
    lines = [
        [
            f"{p}",
            *(f"{cut(p, cil):.1f} ({cut(p, cil, 'near'):.1f})" for cil in CIL),
            *(f"{cut_off(p, split):.1f}" for split in SPLITS),
        ]
        for p in CUTS
    ]
    papers = [f"{paper('auc', 'react', c):.1f} ({paper('auc', 'react', c, split='near'):.1f})" for c in CIL]
    head = ["percentile", *CIL.values(), *(f"off, {split}" for split in SPLITS)]
    return table(head, [*lines, ["the paper", *papers, "", "", ""]])


def shift_table() -> str:
    lines = []
    for detector, name in SIXTEEN.items():
        cells = [today(detector, metric=metric) for metric in ("auc", "auc_full", "fpr", "fpr_full")]
        rejected = mean("fpr_shifted", detector, folder="defaults", cil=tuple(TODAY))
        lines.append([name, *(f"{value:.1f}" for value in (*cells, rejected))])
    return table(["", "AUC", "full", "FPR", "full", "shifted rejected"], lines)


def today_set_up_table() -> str:
    detectors = ("klm", "nnguide", "react", "relation")
    lines = []
    for cil, model in TODAY.items():
        for kind, ending in (("memory", ""), ("train+", "@stated")):
            lines.append([f"{model}, {kind}", *(f"{today(d + ending, cil):.2f}" for d in detectors)])
        lines.append([f"{model}, the paper", *(f"{paper('auc', d, cil):.2f}" for d in detectors)])
    return table(["set up on", *(POSTHOC[d] for d in detectors)], lines)


def average_precision_table() -> str:
    file, numbers = (
        found("average_precision.csv"),
        ("ours", "the paper's OOD", "and 90 % of ID"),
    )
    lines = []
    for detector in ("energy", "msp"):
        of = partial(average, file, "ap", detector=detector)
        pairs = [[100 * of(numbers=n, distance=d) for d in ("near", "far")] for n in numbers]
        pairs.append([paper("ap", detector, "icarl", split=d) for d in ("near", "far")])
        lines.append([POSTHOC[detector], *(f"{near:.1f} / {far:.1f}" for near, far in pairs)])
    return table(["AP, near / far", *numbers, "the paper"], lines)


def set_up_table() -> str:
    detectors = ("klm", "nnguide", "react", "relation")
    kinds = ("train+", "memory", "memory and 100 test images")
    lines = [[kind, *(f"{set_up(d, kind):.2f}" for d in detectors)] for kind in kinds]
    lines[0][0] += " (the default)"
    lines.append(["the paper", *(f"{paper('auc', d):.2f}" for d in detectors)])
    return table(["set up on", *(POSTHOC[d] for d in detectors)], lines)


def choices_table() -> str:
    named = {
        CHOSEN: "**BER, the paper's margins, lr 0.01, α 0.01**",
        "VOS, model lr=0.01": "VOS, `margins: model`, lr 0.01",
        "BER, model lr=0.01 α=0.1": "BER, `margins: model`, lr 0.01, α 0.1",
        "Energy": "Energy",
        "OTER alone, fixed lr=0.1 α=0.1": "OTER alone, the paper's values",
        "BER, neither": "cross-entropy alone (neither), lr 0.1",
        "VOS, fixed lr=0.1": "VOS, the paper's values",
        "BER, fixed lr=0.1 α=0.1": "**BER, the paper's values**",
        "NTER alone, fixed lr=0.1 α=0.1": "NTER alone, the paper's values",
    }
    models = (tuple(CIL), "icarl", "wa", "bic")
    lines = [[name, *(f"{choice(key, cil):.2f}" for cil in models)] for key, name in named.items()]
    return table(["", "mean", "iCaRL", "WA", "BiC"], lines)


def auc_and_fpr(detector: str, **where: Any) -> str:
    return f"{auc(detector, **where):.2f} ({fpr(detector, **where):.1f})"


def ber_table(k: int) -> str:
    named = {"Energy": "energy", "BER, the paper's values": "ber", "**BER, the chosen values**": "ber@chosen"}
    lines = [[name, *(auc_and_fpr(d, k=k, cil=cil) for cil in CIL)] for name, d in named.items()]
    lines.append(["the paper's BER", *(f"{paper('auc', 'ber', cil, k):.2f}" for cil in CIL)])
    return table(["", *CIL.values()], lines)


def noise_table() -> str:
    """Empty where a head was not tuned so far."""

    def cell(name: str, detector: str, last: int) -> str:
        folder, seed = TRAININGS[name]
        if record("icarl", 10, folder, seed)["detectors"].get(detector, 0) < last:
            return ""
        less = training(name, "auc", detector, last=last) - training(name, "auc", "energy", last=last)
        return f"{less:+.1f}"

    lines = [
        [f"the {values} values, {steps}", *(cell(name, detector, last) for name in TRAININGS)]
        for last, steps in ((10, "ten steps"), (7, "steps 1 to 7"))
        for detector, values in (("ber", "paper's"), ("ber@chosen", "chosen"))
    ]
    return table(["", *TRAININGS], lines)


def ablation_table() -> str:
    chosen = ("energy", "ber@chosen-none", "ber@chosen-nter", "ber@chosen-oter", "ber@chosen")
    of = {
        "the paper's values": ("energy", "ber@none", "ber@nter", "ber@oter", "ber"),
        "the chosen values": chosen,
    }
    lines = [[name, *(auc_and_fpr(d, cil="icarl") for d in detectors)] for name, detectors in of.items()]
    papers = [
        f"{ablation(d):.2f} ({ablation(d, 'fpr'):.1f})" for d in ("energy", "ber@nter", "ber@oter", "ber")
    ]
    lines.append(["the paper", papers[0], "", *papers[1:]])
    return table(["", "Energy", "neither", "NTER", "OTER", "both"], lines)


def rates_table() -> str:
    lines = []
    for detector, name in TUNED.items():
        means = auc(detector), gentle(detector), paper("auc", detector)
        away = [value - means[2] for value in (means[0], means[1], auc("energy"))]
        away += [gentle(detector, cil=cil) - paper("auc", detector, cil) for cil in CIL]
        lines.append([name, *(f"{value:.2f}" for value in means), *(f"{value:+.1f}" for value in away)])
    return table(["", "lr 0.1", "lr 0.001", "paper", "0.1", "0.001", "untuned", *CIL.values()], lines)


def corrections_table() -> str:
    named = {
        "none": "no correction at this step",
        "stored": "ours, as stored",
        "ours, again": "ours, fitted again",
        "with decay": "with weight decay 2e-4, as in the paper's code",
        **{name: name for name in ("double softmax", "batch norm trains", "all three")},
    }
    steps = (3, 6, 10)
    lines = [[name, *(f"{correction(key, step):.2f}" for step in steps)] for key, name in named.items()]
    return table(["accuracy after step", *map(str, steps)], lines)


def released_bic_table() -> str:
    named = {
        "ours": partial(accuracy, "bic"),
        "ours, today's code": partial(accuracy, "bic", folder="study", seed=0),
        "as released": released_accuracy,
    }
    lines = [
        [name, *(f"{of(step=s):.1f}" for s in range(1, 11)), f"{of():.2f}"] for name, of in named.items()
    ]
    lines.append(["the paper", *[""] * 10, f"{paper('accuracy', cil='bic'):.2f}"])
    return table(["accuracy after step", *map(str, range(1, 11)), "mean"], lines)


def precision_table() -> str:
    named = {"accuracy": ("accuracy", ""), "accuracy, nearest mean": ("accuracy_nearest_mean", "")}
    named |= {f"{m.upper()}, {POSTHOC[d]}": (m, d) for m, d in product(("auc", "fpr"), ("energy", "msp"))}
    lines = [[name, *(f"{training(t, *what):.2f}" for t in TRAININGS)] for name, what in named.items()]
    return table(["", *TRAININGS], lines)


#: What later_classes.py chose, and what that is put beside.
COMPOSED = "ber@chosen + fdbd"
RIVALS = ("nnguide", "fdbd", "augmix@original", "ber@chosen", "relation", "gen", "odin", "energy", "ber")
LATER, SETS = "later classes", ("cifar10", "tin", "mnist", "texture", "svhn", "places365")


@cache
def candidates() -> pd.DataFrame:
    """What each score has in the mean over the four models, of those that all have."""
    rows = found("later_classes.csv")
    rows = rows[rows.groupby("candidate")["cil"].transform("nunique") == len(CIL)]
    return rows.groupby(["candidate", "kind"])[[LATER, *SETS]].mean().reset_index("kind")


def candidate(name: str, *columns: str) -> float:
    """AUC of a candidate, mean over models and columns (default: the six OOD sets)."""
    return float(candidates().loc[name, list(columns or SETS)].mean())


def against(name: str, other: str) -> "pd.Series[float]":
    """By how much a candidate is above another, by model and OOD set."""
    cells = found("later_classes.csv").set_index(["candidate", "cil"])[list(SETS)]
    return (cells.loc[name] - cells.loc[other]).stack()


def undecided(name: str, other: str) -> float:
    """The p of Wilcoxon's paired test over models and OOD sets."""
    return float(wilcoxon(against(name, other)).pvalue)


def by_task_gains(column: str = "") -> "pd.Series[float]":
    """What scoring by task adds to each candidate, on later classes or on the mean of the OOD sets."""
    means = candidates()[[column] if column else list(SETS)].mean(axis=1)
    tasked = means[means.index.str.endswith(" by task")]
    return tasked - means[tasked.index.str.removesuffix(" by task")].to_numpy()


def composition_table() -> str:
    every = candidates().sort_values(LATER, ascending=False)
    best = every.groupby("kind", sort=False).head(1).index
    shown = dict.fromkeys([*best, *RIVALS])
    lines = [
        [
            f"**{name}**" if name == COMPOSED else name,
            every.loc[name, "kind"],
            *(f"{candidate(name, *columns):.2f}" for columns in ((LATER,), SETS, SETS[:2], SETS[2:])),
            "" if name == COMPOSED else f"{int((against(COMPOSED, name) > 0).sum())}",
            "" if name == COMPOSED else f"{undecided(COMPOSED, name):.2f}",
        ]
        for name in sorted(shown, key=lambda name: -candidate(name, LATER))
    ]
    return table(
        ["", "kind", LATER, "six OOD sets", "near", "far", "of 24 cells below the first", "p"],
        lines,
        texts=(0, 1),
    )


# --- small steps ----------------------------------------------------------------------------------

#: Detectors that push the energy of outliers above a margin.
OUTLIERS = ("vos", "npos", "ber")
WITHOUT = [name for name in TUNED if name not in OUTLIERS]
BIC = "bic"  # a template's nested quotes are used up


def halves(k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first and the last step of the first half of a k's steps, and of the second."""
    steps = 100 // k
    return (1, steps // 2), (steps // 2 + 1, steps)


FIRST, SECOND = halves(5)


def gained(
    detector: str, k: int, cil: str, first: int = 1, last: int = 100, seeds: Iterable[int] = SEEDS
) -> float:
    """AUC less Energy's in some steps, over the study's finished trainings of a model."""
    finished = [seed for model, seed in trainings(k) if model == cil and seed in seeds]
    where: dict[str, Any] = {"cil": cil, "seed": finished, "distance": ("near", "far")}
    return gain(detector, k, folder="study", first=first, last=last, **where)


def by_seed_gained(detector: str, k: int, cil: str, first: int = 1, last: int = 100) -> str:
    """The same for each seed."""
    finished = [seed for model, seed in trainings(k) if model == cil]
    return listed(f"{gained(detector, k, cil, first, last, (seed,)):+.1f}" for seed in finished)


def outliers_table() -> str:
    """Gains over Energy by k and model, in the first half of the steps / in the second."""
    lines = []
    for detector in (*OUTLIERS, "ber@chosen", *WITHOUT):
        for k in sorted(KS, reverse=True):
            shown = [" / ".join(f"{gained(detector, k, cil, *of):+.1f}" for of in halves(k)) for cil in CIL]
            lines.append([SIXTEEN.get(detector, f"`{detector}`"), str(k), *shown])
    return table(["", "k", *CIL.values()], lines)


def old_and_new_gained(k: int) -> pd.DataFrame:
    """BER's AUC of old classes alone and of new ones alone, less Energy's, from step 2 on, by model."""
    of = {metric: cells(k, metric, 2) for metric in ("auc_old", "auc_new")}
    return pd.DataFrame({m: (c["ber"] - c["energy"]).groupby("cil").mean() for m, c in of.items()})


def old_and_new_in_words(k: int) -> str:
    of = old_and_new_gained(k)
    return ", ".join(f"{CIL[cil]} {of['auc_old'][cil]:+.1f} / {of['auc_new'][cil]:+.1f}" for cil in CIL)
