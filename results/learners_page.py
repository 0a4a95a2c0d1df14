"""What the page says of the field's learners, beside the paper's four, and of all detectors on six models."""

import math
from functools import cache
from typing import Any

import pandas as pd

from opencil import registry
from results.measured import CIL, POSTHOC, SIXTEEN, accuracy, auc, kept, study, survey, table, written
from results.study_page import listed

#: The field's learners, beside the four: names as their papers write them.
LEARNERS = {
    name: registry.LEARNERS.entry(name).title
    for name in (
        *("der", "memo", "lucir", "er-ace", "ss-il", "podnet", "acil", "ranpac"),
        *("lwf", "fetril", "fecam", "simplecil", "ewc"),
    )
}
#: What they were scored by: none of these needs a memory, which six of them do not keep.
LEARNERS_DETECTORS = ("msp", "maxlogit", "energy", "gen")


def learner_accuracy(cil: str, **where: Any) -> float:
    return accuracy(cil, folder="learners", **where)


def learners_table() -> str:
    """Accuracy beside the survey's, AUC of four detectors, what is kept."""
    lines = []
    for cil, name in LEARNERS.items():
        ours, theirs = learner_accuracy(cil), survey(cil)
        beside = ["", ""] if theirs is None else [f"{theirs:.2f}", f"{ours - theirs:+.1f}"]
        aucs = [f"{auc(d, cil=cil, folder='learners'):.2f}" for d in LEARNERS_DETECTORS]
        megabytes = [f"{of:.1f}" for of in kept("learners")[cil]]
        lines.append(
            [name, f"{ours:.2f}", *beside, f"{learner_accuracy(cil, step=10):.2f}", *aucs, *megabytes]
        )
    head = ["", "accuracy", "survey", "", "last step", *(POSTHOC[d] for d in LEARNERS_DETECTORS)]
    return table([*head, "model, MB", "memory, MB"], lines)


#: Those that every detector is run on, k = 10, seed 0: the paper's four, and two that grow.
SIX = CIL | {name: LEARNERS[name] for name in ("der", "memo")}


@cache
def _on_the_six() -> pd.DataFrame:
    """Rows of AUC of the six models, k = 10, seed 0."""
    rows = study("study").rows
    asked = (rows["k"] == 10) & (rows["seed"] == 0) & (rows["metric"] == "auc") & (rows["task"] == 0)
    return rows[asked & rows["cil"].isin(SIX)]


@cache
def on_six_models() -> pd.DataFrame:
    """AUC, mean over steps and OOD sets: detectors that are done on all of the six × models, near and far."""
    runs = [run for run in study("study").runs if (run["k"], run["seed"]) == (10, 0) and run["cil"] in SIX]
    done = [{name for name, steps in run["detectors"].items() if steps == run["steps"]} for run in runs]
    every = set.intersection(*done) if len(runs) == len(SIX) else set()
    rows = _on_the_six()[_on_the_six()["detector"].isin(every)]
    values = 100 * rows.pivot_table("value", "detector", "cil").reindex(columns=list(SIX))
    splits = 100 * rows.pivot_table("value", "detector", "distance").reindex(columns=["near", "far"])
    return values.assign(mean=values.mean(axis=1)).join(splits)


def _families() -> dict[str, list[str]]:
    """Detectors that are done on the six, by family, the best first; none where only the paper's are."""
    by_family: dict[str, list[str]] = {}
    for detector in on_six_models()["mean"].sort_values(ascending=False).index:
        if "@" not in detector:
            by_family.setdefault(registry.DETECTORS.entry(detector).make.family, []).append(detector)
    return by_family if len(by_family) > 2 else {}  # the paper's sixteen are of two


def _on_train(detector: str) -> float | None:
    """The mean of a detector that differs by its set-up alone, all training images of a step, where run."""
    means, name = on_six_models()["mean"], f"{detector}@stated"
    stated = registry.DETECTORS.entry(detector).make.named.get("stated", {})
    return means[name] if stated == {"setup": "train+"} and name in means else None


def below_chance() -> list[str]:
    """After how many steps of the six models AUC is below 50, of the three detectors with most of them."""
    rows = _on_the_six()
    below = (
        rows[~rows["detector"].str.contains("@")].groupby(["detector", "cil", "step"])["value"].mean() < 0.5
    )
    counts = below.groupby("detector").sum().nlargest(3)
    return [f"{count} of {written(str(name))}" for name, count in counts.items()]


def six_models() -> str:
    """Every detector on the six, family by family, the best first, and what those on train+ come to."""
    if not (by_family := _families()):
        return "Not run yet."
    lines = [["*MB of model and memory*", *(f"{sum(kept('study')[cil]):.1f}" for cil in SIX), *[""] * 4]]
    for family, detectors in by_family.items():
        lines.append([f"*{family}*", *[""] * (len(SIX) + 4)])
        for name in detectors:
            on_train = _on_train(name)
            beside = "" if on_train is None else f"{on_train:.1f}"
            lines.append([written(name), *(f"{value:.1f}" for value in on_six_models().loc[name]), beside])
    return table(["", *SIX.values(), "mean", "near", "far", "on train+"], lines)


def six_models_in_words() -> str:
    """Which are best, of all and of the paper's, on near and far sets, and what the memory is worth."""
    if not (by_family := _families()):
        return ""
    values = on_six_models().loc[[name for names in by_family.values() for name in names]]

    def best(column: str, count: int, of: pd.DataFrame = values) -> str:
        return listed(
            [f"{written(name)} ({value:.1f})" for name, value in of[column].nlargest(count).items()]
        )

    papers = values[values.index.isin(SIXTEEN)]
    alike = values.assign(alike=(values["near"] + values["far"]) / 2)
    close = (values["near"] > values["near"].max() - 0.5).sum()
    gains = pd.Series({name: values["mean"][name] - (_on_train(name) or math.nan) for name in values.index})
    gains = gains.dropna().sort_values(ascending=False)
    most, worse = (
        listed([f"{written(name)} ({gain:+.1f})" for name, gain in some.items()])
        for some in (gains[gains > 0][:3], gains[gains < 0])
    )
    return (
        f"Best in the mean are {best('mean', 4)}, of the paper's sixteen {best('mean', 1, papers)}; with "
        f"near and far sets weighted alike {best('alike', 4, alike)}. On far sets {best('far', 3)} are best, "
        f"on near ones {close} are within half a point of {best('near', 1)}. Of the {len(gains)} that were "
        f"set up on all training images too, {(gains > 0).sum()} are better on the memory, by most {most}"
        f"{f'; not so {worse}' if worse else ''}."
    )
