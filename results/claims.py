"""Test the paper's claims: each is a difference that the paper says is above 0."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from results.rows import (
    CIL,
    KS,
    OTHER_ORDER,
    POSTHOC,
    SIXTEEN,
    TUNED,
    Values,
    cells,
    listed,
    markdown,
    mean_of_models,
    paper,
    study_rows,
)


@dataclass(frozen=True)
class Claim:
    """A difference in AUC (or FPR) by cell, of a k and a folder, and the paper's own figure, if any."""

    words: str
    page: str  #: explains it
    ours: Callable[[int, str], Values]
    papers: Callable[[int], float | None] = lambda _: None

    def of_trainings(self, k: int, folder: str = "study") -> Values:
        """Return the difference of each training, whose OOD sets are no samples of their own."""
        found = self.ours(k, folder)
        return found.groupby([name for name in found.index.names if name != "ood"]).mean()


def verdict(of_trainings: Values) -> str:
    """Return what the differences of single trainings say of the claim that they are above 0."""
    above = of_trainings > 0
    if of_trainings.index.get_level_values("seed").nunique() < 2:
        return "one seed"
    if above.all() or not above.any():
        return "yes" if above.all() else "no"
    if "cil" in above.index.names and (above.groupby("cil").nunique() == 1).all():
        return "depends"
    return "no evidence"


def answer(of_trainings: Values) -> str:
    """Return one answer over trainings of every k, and the models that it depends on."""
    above = of_trainings > 0
    if above.all() or not above.any():
        return "**yes**" if above.all() else "**no**"
    signs = above.groupby("cil").agg(set)
    words = {"yes": {True}, "no": {False}}
    agreed = {word: [CIL[cil] for cil in CIL if signs.get(cil) == sign] for word, sign in words.items()}
    shown = [f"{word} on {listed(cils)}" for word, cils in agreed.items() if cils]
    return f"**depends**: {', '.join(shown)}" if shown else "**no evidence**"


def _gap(words: str, page: str, a: Iterable[str], b: Iterable[str], metric: str = "auc") -> Claim:
    """Return the claim that the mean of some detectors is above that of others."""
    first, second = list(a), list(b)

    def ours(k: int, folder: str) -> Values:
        of = cells(k, metric, folder=folder)
        return of[first].mean(axis=1) - of[second].mean(axis=1)

    def papers(k: int) -> float:
        return fmean(paper(metric, d, k=k) for d in first) - fmean(paper(metric, d, k=k) for d in second)

    return Claim(words, page, ours, papers)


def _above_best_other(k: int, folder: str) -> Values:
    means = mean_of_models(cells(k, folder=folder)).drop("ber")
    return cells(k, folder=folder)["ber"] - cells(k, folder=folder)[means.idxmax()]


def _taken_for_new(k: int, folder: str) -> Values:
    """Return the share of OOD images predicted as new classes, less the share of new classes."""
    rows = study_rows(k, "ood_as_new", folder)
    rows = rows[(rows["step"] > 1) & (rows["detector"] == "energy")]
    rows = rows.assign(value=rows["value"] - 100 / rows["step"])
    return rows.groupby(["cil", "seed", "ood"])["value"].mean()


def _accurate_models(k: int, folder: str) -> Values:
    """Return the mean of WA and FOSTER less that of iCaRL and BiC, of seeds that have all four."""
    of = cells(k, folder=folder).mean(axis=1).unstack("cil").dropna()
    return (of["wa"] + of["foster"] - of["icarl"] - of["bic"]) / 2


def _papers_accurate_models(k: int) -> float:
    of = {cil: fmean(paper("auc", d, cil, k) for d in SIXTEEN) for cil in CIL}
    return (of["wa"] + of["foster"] - of["icarl"] - of["bic"]) / 2


_TABLES, _HEADS = "appendix.md#ten-classes-a-step", "../experiments/heads.md"
_BER, _SMALL = "../experiments/ber.md", "../experiments/small_steps.md"
_OLD = "appendix.md#the-claims-at-every-k"
CLAIMS = (
    Claim(
        "BER is above the best other detector",
        _BER,
        _above_best_other,
        lambda k: paper("auc", "ber", k=k) - max(paper("auc", d, k=k) for d in SIXTEEN if d != "ber"),
    ),
    _gap("BER is above Energy", _SMALL, ["ber"], ["energy"]),
    _gap("BER has a lower FPR than Energy", _SMALL, ["energy"], ["ber"], "fpr"),
    *(
        Claim(
            f"BER helps {age} classes, over Energy",
            _SMALL,
            lambda k, folder, metric=f"auc_{age}": (
                cells(k, metric, 2, folder=folder)["ber"] - cells(k, metric, 2, folder=folder)["energy"]
            ),
        )
        for age in ("old", "new")
    ),
    _gap("tuned heads are above post-hoc detectors", _HEADS, TUNED, POSTHOC),
    _gap("tuned heads have a lower FPR than post-hoc detectors", _HEADS, POSTHOC, TUNED, "fpr"),
    Claim(
        "detection is worse after the last step than after the first",
        _OLD,
        lambda k, of: (cells(k, last=1, folder=of) - cells(k, first=100 // k, folder=of)).mean(axis=1),
    ),
    Claim(
        "old classes are harder to tell from OOD than new ones",
        _TABLES,
        lambda k, of: (cells(k, "auc_new", 2, folder=of) - cells(k, "auc_old", 2, folder=of)).mean(axis=1),
    ),
    Claim(
        "OOD images have more confidence than those of old classes",
        _OLD,
        lambda k, folder: 50 - cells(k, "auc_old", 2, folder=folder)["msp"],
    ),
    Claim("OOD images are taken for new classes beyond their share", _OLD, _taken_for_new),
    Claim(
        "WA and FOSTER, the more accurate, are above iCaRL and BiC",
        _TABLES,
        _accurate_models,
        _papers_accurate_models,
    ),
)


def verdicts() -> str:
    """Answer each claim over all trainings, with the difference at k = 10 and the paper's."""
    lines = []
    for claim in CLAIMS:
        parts = [claim.of_trainings(k) for k in KS] + [claim.of_trainings(10, OTHER_ORDER)]
        every = pd.concat(parts, keys=range(len(parts)))
        shown = ["" if value is None else f"{value:+.1f}" for value in (_average(parts[0]), claim.papers(10))]
        agree = f"{(every > 0).sum()}/{len(every)}"
        lines.append([f"[{claim.words}]({claim.page})", answer(every), *shown, agree])
    head = ["the paper's claim", "answer", "ours", "paper", "trainings"]
    return markdown(head, lines, texts=(0, 1))


def _average(of_trainings: Values) -> float:
    return mean_of_models(of_trainings) if "cil" in of_trainings.index.names else of_trainings.mean()


def claims(by_model: bool = True) -> str:
    """Show each claim at each k: the difference, the paper's, each model's, and how many trainings agree."""
    lines = []
    for claim in CLAIMS:
        line = [claim.words]
        for k in KS:
            of_trainings, papers = claim.of_trainings(k), claim.papers(k)
            shown = [f"{_average(of_trainings):+.1f}" + ("" if papers is None else f" (paper {papers:+.1f})")]
            if "cil" in of_trainings.index.names and by_model:
                of_models = of_trainings.groupby("cil").mean()
                shown.append(" / ".join(f"{of_models[cil]:+.1f}" for cil in CIL))
            shown.append(f"{(of_trainings > 0).sum()} of {len(of_trainings)}: {verdict(of_trainings)}")
            line.append(", ".join(shown))
        lines.append(line)
    return markdown(["difference in points", *(f"k = {k}" for k in KS)], lines, texts=range(4))
