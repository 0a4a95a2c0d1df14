"""What the page says of the field's learners, beside the paper's four, and of all detectors on six models."""

import math
from functools import cache
from typing import Any

import pandas as pd

from opencil import registry
from opencil.report.results import results
from results.measured import CIL, POSTHOC, SIXTEEN, accuracy, auc, study, survey, table, written
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


@cache
def learners_keep() -> dict[str, tuple[float, float]]:
    """MB of the last model and of its exemplars, by learner."""
    (outcome,) = results(study("learners"))
    return outcome.kept


def learners_table() -> str:
    """Accuracy beside the survey's, AUC of four detectors, what is kept."""
    lines = []
    for cil, name in LEARNERS.items():
        ours, theirs = learner_accuracy(cil), survey(cil)
        beside = ["", ""] if theirs is None else [f"{theirs:.2f}", f"{ours - theirs:+.1f}"]
        aucs = [f"{auc(d, cil=cil, folder='learners'):.2f}" for d in LEARNERS_DETECTORS]
        megabytes = [f"{of:.1f}" for of in learners_keep()[cil]]
        lines.append(
            [name, f"{ours:.2f}", *beside, f"{learner_accuracy(cil, step=10):.2f}", *aucs, *megabytes]
        )
    head = ["", "accuracy", "survey", "", "last step", *(POSTHOC[d] for d in LEARNERS_DETECTORS)]
    return table([*head, "model, MB", "memory, MB"], lines)


#: Those that every detector is run on, k = 10, seed 0: the paper's four, and two that grow.
SIX = CIL | {name: LEARNERS[name] for name in ("der", "memo")}


@cache
def on_six_models() -> pd.DataFrame:
    """AUC, mean over steps and OOD sets: detectors that are done on all of the six × models, near and far."""
    runs = [run for run in study("study").runs if (run["k"], run["seed"]) == (10, 0) and run["cil"] in SIX]
    done = [{name for name, steps in run["detectors"].items() if steps == run["steps"]} for run in runs]
    every = set.intersection(*done) if len(runs) == len(SIX) else set()
    rows = study("study").rows
    asked = (rows["k"] == 10) & (rows["seed"] == 0) & (rows["metric"] == "auc") & (rows["task"] == 0)
    rows = rows[asked & rows["cil"].isin(SIX) & rows["detector"].isin(every)]
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
    """The mean of a detector that is set up on all training images of a step, where it was run so."""
    means, name = on_six_models()["mean"], f"{detector}@stated"
    stated = registry.DETECTORS.entry(detector).make.named.get("stated", {})
    return means[name] if stated.get("setup") == "train+" and name in means else None


def six_models() -> str:
    """Every detector on the six, family by family, the best first, and what those on train+ come to."""
    if not (by_family := _families()):
        return "Not run yet."
    lines = []
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
    gains = pd.Series({name: values["mean"][name] - (_on_train(name) or math.nan) for name in values.index})
    gains = gains.dropna()
    most = listed([f"{written(name)} ({gain:+.1f})" for name, gain in gains.nlargest(3).items()])
    return (
        f"Best in the mean are {best('mean', 3)}, of the paper's sixteen {best('mean', 1, papers)}; on near "
        f"sets {best('near', 3)}, on far ones {best('far', 3)}. All have their defaults, of which one was "
        f"found on these sets, the learning rate of tuned heads, and one seed. Of the {len(gains)} that were "
        f"set up on all training images too, {(gains > 0).sum()} are better on the memory, by most {most}."
    )
