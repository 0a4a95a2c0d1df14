"""Test the paper's claims: each is a difference that the paper says is above 0."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from results.rows import (
    CIL,
    KS,
    POSTHOC,
    SIXTEEN,
    TUNED,
    Values,
    accuracies,
    cells,
    listed,
    markdown,
    mean_of_models,
    paper,
    study_rows,
)


@dataclass(frozen=True)
class Claim:
    """A difference in AUC (or FPR) by cell at a k, and the paper's own figure, if it has one."""

    words: str
    ours: Callable[[int], Values]
    papers: Callable[[int], float | None] = lambda _: None


def verdict(of_trainings: Values) -> str:
    """Return what the differences of single trainings say of the claim that they are above 0."""
    above = of_trainings > 0
    if of_trainings.index.get_level_values("seed").nunique() < 2:
        return "one seed"
    if above.all() or not above.any():
        return "**holds**" if above.all() else "**reversed**"
    if "cil" in above.index.names and (above.groupby("cil").nunique() == 1).all():
        return "by model"
    return "not shown"


def _gap(words: str, a: Iterable[str], b: Iterable[str], metric: str = "auc") -> Claim:
    """Return the claim that the mean of some detectors is above that of others."""
    first, second = list(a), list(b)

    def ours(k: int) -> Values:
        return cells(k, metric)[first].mean(axis=1) - cells(k, metric)[second].mean(axis=1)

    def papers(k: int) -> float:
        return fmean(paper(metric, d, k=k) for d in first) - fmean(paper(metric, d, k=k) for d in second)

    return Claim(words, ours, papers)


def _above_best_other(k: int) -> Values:
    means = mean_of_models(cells(k)).drop("ber")
    return cells(k)["ber"] - cells(k)[means.idxmax()]


def _taken_for_new(k: int) -> Values:
    """Return the share of OOD images predicted as new classes, less the share of new classes."""
    rows = study_rows(k, "ood_as_new")
    rows = rows[(rows["step"] > 1) & (rows["detector"] == "energy")]
    rows = rows.assign(value=rows["value"] - 100 / rows["step"])
    return rows.groupby(["cil", "seed", "ood"])["value"].mean()


def _accurate_models(k: int) -> Values:
    """Return the mean of WA and FOSTER less that of iCaRL and BiC, of seeds that have all four."""
    of = cells(k).mean(axis=1).unstack("cil").dropna()
    return (of["wa"] + of["foster"] - of["icarl"] - of["bic"]) / 2


def _papers_accurate_models(k: int) -> float:
    of = {cil: fmean(paper("auc", d, cil, k) for d in SIXTEEN) for cil in CIL}
    return (of["wa"] + of["foster"] - of["icarl"] - of["bic"]) / 2


_BUT_RELATION = [name for name in POSTHOC if name != "relation"]
CLAIMS = (
    _gap("tuned heads are above post-hoc detectors", TUNED, POSTHOC),
    _gap("tuned heads are above post-hoc detectors but Relation", TUNED, _BUT_RELATION),
    _gap("tuned heads have a lower FPR than post-hoc detectors", POSTHOC, TUNED, "fpr"),
    _gap("BER is above Energy", ["ber"], ["energy"]),
    _gap("BER has a lower FPR than Energy", ["energy"], ["ber"], "fpr"),
    Claim(
        "BER is above the best other detector",
        _above_best_other,
        lambda k: paper("auc", "ber", k=k) - max(paper("auc", d, k=k) for d in SIXTEEN if d != "ber"),
    ),
    Claim(
        "detection is worse after the last step than after the first",
        lambda k: (cells(k, last=1) - cells(k, first=100 // k)).mean(axis=1),
    ),
    Claim(
        "old classes are harder to tell from OOD than new ones",
        lambda k: (cells(k, "auc_new", 2) - cells(k, "auc_old", 2)).mean(axis=1),
    ),
    Claim(
        "OOD images have more confidence than those of old classes (share of pairs, less 50)",
        lambda k: 50 - cells(k, "auc_old", 2)["msp"],
    ),
    Claim("OOD images are taken for new classes beyond their share", _taken_for_new),
    *(
        Claim(
            f"BER helps {age} classes, over Energy",
            lambda k, metric=f"auc_{age}": cells(k, metric, 2)["ber"] - cells(k, metric, 2)["energy"],
        )
        for age in ("old", "new")
    ),
    Claim(
        "WA and FOSTER, the more accurate, are above iCaRL and BiC", _accurate_models, _papers_accurate_models
    ),
)


def claims(by_model: bool = True) -> str:
    """Show each claim at each k: the difference, the paper's, each model's, and how many trainings agree."""
    lines = []
    for claim in CLAIMS:
        line = [claim.words]
        for k in KS:
            found, papers = claim.ours(k), claim.papers(k)
            # The OOD sets of a training meet one model: they are no samples of their own.
            of_trainings = found.groupby([name for name in found.index.names if name != "ood"]).mean()
            has_models = "cil" in of_trainings.index.names
            average = mean_of_models(of_trainings) if has_models else of_trainings.mean()
            shown = [f"{average:+.1f}" + ("" if papers is None else f" (paper {papers:+.1f})")]
            if has_models and by_model:
                of_models = of_trainings.groupby("cil").mean()
                shown.append(" / ".join(f"{of_models[cil]:+.1f}" for cil in CIL))
            shown.append(f"{(of_trainings > 0).sum()} of {len(of_trainings)}: {verdict(of_trainings)}")
            line.append(", ".join(shown))
        lines.append(line)
    head = ["difference in points"]
    for k in KS:
        seeds = {name: len(accuracies(k, cil)) for cil, name in CIL.items()}
        single = [name for name, number in seeds.items() if number == 1 < max(seeds.values())]
        head.append(f"k = {k}" + (f" ({listed(single)}: one seed)" if single else ""))
    return markdown(head, lines, texts=range(4))
