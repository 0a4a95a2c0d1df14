"""Which of the paper's claims hold, by differences in finished trainings, and what statistics say."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from statistics import fmean

import pandas as pd

from opencil.report.statistics import Ranking, holm, rank_detectors, signed_rank
from results.measured import CIL, POSTHOC, SIXTEEN, TUNED, paper, table
from results.study_page import (
    KS,
    NOT_YET,
    SPLITS,
    accuracies,
    by_seed,
    by_training,
    cells,
    listed,
    mean_of_models,
    of_split,
    of_whole_seeds,
    rows_of,
    run_ks,
    seeds,
)


@dataclass(frozen=True)
class Difference:
    """A difference that may be above 0: in the mean, of each CIL model, and in how many trainings it is."""

    mean: float
    of_models: dict[str, float]
    signs: dict[str, set[bool]]  #: of a model's trainings, whether it is above 0
    above: int
    trainings: int
    seeds: int

    @property
    def verdict(self) -> str:
        """Of a claim that it is above 0, on these models."""
        if self.seeds < 2:
            return "one seed"
        if self.above in (0, self.trainings):
            return "**holds**" if self.above else "**reversed**"
        agreed = all(len(signs) == 1 for signs in self.signs.values())
        return "by model" if agreed and len(self.signs) > 1 else "not shown"


def difference(of_cells: "pd.Series[float]") -> Difference:
    """By training, a model and a seed: its OOD sets meet one model, and are no samples of it."""
    names = [name for name in of_cells.index.names if name != "ood"]
    of = of_cells.groupby(names).mean()
    by_model = dict(list(of.groupby("cil"))) if "cil" in names else {}
    return Difference(
        mean=float(mean_of_models(of) if by_model else of.mean()),
        of_models={cil: float(part.mean()) for cil, part in by_model.items()},
        signs={cil: set(part > 0) for cil, part in by_model.items()},
        above=int((of > 0).sum()),
        trainings=len(of),
        seeds=of.index.get_level_values("seed").nunique(),
    )


@dataclass(frozen=True)
class Claim:
    """A difference that the paper says is above 0: ours in cells of a k, and the paper's own figure."""

    words: str
    ours: Callable[[int], "pd.Series[float]"]
    papers: Callable[[int], float | None] = lambda _: None


def _less(
    a: Iterable[str], b: Iterable[str], metric: str = "auc"
) -> tuple[Callable[[int], "pd.Series[float]"], Callable[[int], float]]:
    """Mean AUC of some detectors less that of others: ours by cell, and the paper's."""
    first, second = list(a), list(b)

    def papers(k: int) -> float:
        of = [fmean(paper(metric, d, k=k) for d in names) for names in (first, second)]
        return of[0] - of[1]

    def ours(k: int) -> "pd.Series[float]":
        return cells(k, metric)[first].mean(axis=1) - cells(k, metric)[second].mean(axis=1)

    return ours, papers


def best_other(k: int) -> str:
    """The detector with the highest mean AUC but BER."""
    return str(mean_of_models(cells(k)).drop("ber").idxmax())


def _papers_best_other(k: int) -> float:
    return max(paper("auc", d, k=k) for d in SIXTEEN if d != "ber")


def _old_new(k: int) -> "pd.Series[float]":
    return (cells(k, "auc_new", 2) - cells(k, "auc_old", 2)).mean(axis=1)


def old_and_new() -> str:
    """By how much new classes are easier to tell from OOD than old ones, by model."""
    said = []
    for k in run_ks():
        more = _old_new(k).groupby("cil").mean()
        said.append(f"k = {k}: {', '.join(f'{name} {more[cil]:+.1f}' for cil, name in CIL.items())}")
    return "; ".join(said)


def _ber_helps(metric: str) -> Callable[[int], "pd.Series[float]"]:
    """BER's AUC of some classes alone less Energy's, from step 2 on."""
    return lambda k: cells(k, metric, 2)["ber"] - cells(k, metric, 2)["energy"]


def _as_new(k: int) -> "pd.Series[float]":
    """Share of OOD images predicted as new classes, less the share of new classes, from step 2 on."""
    rows = rows_of(k, "ood_as_new")
    rows = rows[(rows["step"] > 1) & (rows["detector"] == "energy")]
    more: pd.Series[float] = (
        rows.assign(value=rows["value"] - 100 / rows["step"]).groupby(["cil", "seed", "ood"])["value"].mean()
    )
    return more


def _better_models(k: int) -> "pd.Series[float]":
    """The two models that the paper has as most accurate less the two others."""
    of = of_whole_seeds(k, cells(k)).mean(axis=1).unstack("cil")
    return (of["wa"] + of["foster"] - of["icarl"] - of["bic"]) / 2


def _papers_models(k: int) -> float:
    of = {cil: fmean(paper("auc", d, cil, k) for d in SIXTEEN) for cil in CIL}
    return (of["wa"] + of["foster"] - of["icarl"] - of["bic"]) / 2


_EIGHT = [name for name in POSTHOC if name != "relation"]
CLAIMS = (
    Claim("tuned heads are above post-hoc detectors", *_less(TUNED, POSTHOC)),
    Claim("tuned heads are above post-hoc detectors but Relation", *_less(TUNED, _EIGHT)),
    Claim("tuned heads have a lower FPR than post-hoc detectors", *_less(POSTHOC, TUNED, "fpr")),
    Claim("BER is above Energy", *_less(["ber"], ["energy"])),
    Claim("BER has a lower FPR than Energy", *_less(["energy"], ["ber"], "fpr")),
    Claim(
        "BER is above the best other detector",
        lambda k: cells(k)["ber"] - cells(k)[best_other(k)],
        lambda k: paper("auc", "ber", k=k) - _papers_best_other(k),
    ),
    Claim(
        "detection is worse after the last step than after the first",
        lambda k: (cells(k, last=1) - cells(k, first=100 // k)).mean(axis=1),
    ),
    Claim("old classes are harder to tell from OOD than new ones", _old_new),
    Claim(
        "OOD images have more confidence than those of old classes (share of pairs, less 50)",
        lambda k: 50 - cells(k, "auc_old", 2)["msp"],
    ),
    Claim("OOD images are taken for new classes beyond their share", _as_new),
    Claim("BER helps old classes, over Energy", _ber_helps("auc_old")),
    Claim("BER helps new classes, over Energy", _ber_helps("auc_new")),
    Claim("WA and FOSTER, the more accurate, are above iCaRL and BiC", _better_models, _papers_models),
)


def claimed(words: str, k: int) -> Difference:
    """What the claim that begins with some words comes to at a k."""
    return difference(next(claim for claim in CLAIMS if claim.words.startswith(words)).ours(k))


def claimed_by_k(words: str) -> str:
    """Its difference at each k."""
    return listed(f"{claimed(words, k).mean:+.1f} (k = {k})" for k in run_ks())


def claims_table(models: Iterable[str] = tuple(CIL)) -> str:
    """Each claim at each k: the difference, the paper's, some models' own, and how many trainings have it."""
    lines = []
    for claim in CLAIMS:
        shown = []
        for k in KS:
            if not seeds(k):
                shown.append(NOT_YET)
                continue
            found, papers = difference(claim.ours(k)), claim.papers(k)
            beside = "" if papers is None else f" (paper {papers:+.1f})"
            by_model = " / ".join(f"{found.of_models[cil]:+.1f}" for cil in models if cil in found.of_models)
            counted = f"{found.above} of {found.trainings}: {found.verdict}"
            shown.append(", ".join(filter(None, [f"{found.mean:+.1f}{beside}", by_model, counted])))
        lines.append([claim.words, *shown])
    return table(["difference in points", *map(_with_single_seeds, KS)], lines, texts=(0, 1, 2, 3))


def _with_single_seeds(k: int) -> str:
    """A k with the models of which one seed is there where others have more."""
    of = {name: len(accuracies(k, cil)) for cil, name in CIL.items()}
    single = [name for name, number in of.items() if number == 1 < max(of.values())]
    return f"k = {k}" + f" ({listed(single)}: one seed)" * bool(single)


@cache
def ranking(k: int) -> Ranking:
    return rank_detectors(cells(k))


def told_from(k: int, detector: str) -> tuple[list[str], list[str]]:
    """The detectors that one is above and below: paired over cells (Wilcoxon), 5 % for all others (Holm)."""
    others = [name for name in SIXTEEN if name != detector]
    less = {name: cells(k)[detector] - cells(k)[name] for name in others}
    p = dict(zip(others, holm([signed_rank(less[name].to_numpy()) for name in others]), strict=True))
    told = [name for name in others if p[name] < 0.05]
    return [name for name in told if less[name].mean() > 0], [name for name in told if less[name].mean() < 0]


def paired() -> str:
    """From which detectors the best one and BER are told by the paired test, at each k."""
    said = []
    for k in run_ks():
        best = str(mean_of_models(cells(k)).idxmax())
        above, _ = told_from(k, best)
        but = [SIXTEEN[name] for name in SIXTEEN if name not in (best, *above)]
        of_ber = [listed(SIXTEEN[name] for name in side) or "none" for side in told_from(k, "ber")]
        said.append(
            f"At k = {k} {SIXTEEN[best]} is above all fifteen others{' but ' + listed(but) if but else ''}; "
            f"BER is above {of_ber[0]}, and below {of_ber[1]}."
        )
    return " ".join(said)


def ranks() -> str:
    """Which detectors can be told apart, by the critical difference, and where BER stands, at each k."""
    said = []
    for k in run_ks():
        r = ranking(k)
        rank = dict(zip(r.detectors, r.ranks, strict=True))
        group = [SIXTEEN[r.detectors[i]] for i in r.groups[0]]
        apart = [d for d in r.detectors if rank[d] - rank["ber"] >= r.critical]
        above = [d for d in r.detectors if rank["ber"] - rank[d] >= r.critical]
        said.append(
            f"At k = {k}, over {len(cells(k))} cells, mean ranks must differ by {r.critical:.1f} to be told "
            f"apart (Nemenyi, 5 %): {listed(group)} (ranks {r.ranks[0]:.1f} to "
            f"{r.ranks[r.groups[0][-1]]:.1f}) are not. BER is at {rank['ber']:.1f}, place "
            f"{r.detectors.index('ber') + 1}; told from it are {listed(SIXTEEN[d] for d in above) or 'none'} "
            f"above it and {listed(SIXTEEN[d] for d in apart) or 'none'} below."
        )
    return " ".join(said)


def _place(values: "pd.Series[float]") -> int:
    return int((values > values["ber"]).sum()) + 1


def ber_places(k: int) -> str:
    """BER's place among the sixteen by AUC in each model and split, ours and the paper's."""
    if not seeds(k):
        return f"k = {k}: {NOT_YET}"
    said = []
    for cil, name in CIL.items():
        places = []
        for split in SPLITS:
            ours = pd.Series({d: by_seed(k, d, cil, split).mean() for d in SIXTEEN})
            papers = pd.Series({d: paper("auc", d, cil, k, split) for d in SIXTEEN})
            places.append((_place(ours), _place(papers)))
        own, theirs = (" / ".join(str(p) for p in side) for side in zip(*places, strict=True))
        best = max(SIXTEEN, key=lambda d: float(by_seed(k, d, cil).mean()))
        said.append(f"{name} {own} (paper {theirs}; best here {SIXTEEN[best]})")
    return f"k = {k}: {', '.join(said)}"


def near_less_far(k: int, left_out: str = "") -> Difference:
    """AUC on near sets less that on far ones, but one of these, mean of the sixteen."""
    of = cells(k).mean(axis=1)
    of = of[of.index.get_level_values("ood") != left_out].to_frame()
    near, far = (of_split(of, split).groupby(["cil", "seed"]).mean()[0] for split in ("near", "far"))
    return difference(near - far)


def near_far_by_k(left_out: str = "") -> str:
    """By how much near sets are the harder, or far ones but one, at each k."""
    return listed(f"{abs(near_less_far(k, left_out).mean):.1f} (k = {k})" for k in run_ks())


def near_and_far(k: int) -> str:
    """AUC on near sets less that on far ones, mean of the sixteen: the paper's, and ours where it is run."""
    papers = fmean(paper("auc", d, k=k, split="near") - paper("auc", d, k=k, split="far") for d in SIXTEEN)
    if not seeds(k):
        return f"k = {k}: paper {papers:+.1f}, ours {NOT_YET}"
    shown = []
    for left_out, words in (("", ""), ("mnist", " without MNIST")):
        found = near_less_far(k, left_out)
        shown.append(f"{found.mean:+.1f}{words}, above 0 in {found.above} of {found.trainings} trainings")
    return f"k = {k}: paper {papers:+.1f}, ours {' and '.join(shown)}"


def within_models() -> list[float]:
    """Rank correlations of accuracy and mean AUC over the seeds of each model and k that has several."""
    found = []
    for k, cil in product(run_ks(), CIL):
        accurate, auc = accuracies(k, cil), by_training(k, "all")[cil].mean(axis=1)
        found += [float(accurate.corr(auc, method="spearman"))] if len(auc) > 1 else []
    return found


def accuracy_and_auc(k: int) -> str:
    """How accuracy and mean AUC go together over trainings."""
    auc = cells(k).mean(axis=1).groupby(["cil", "seed"]).mean()
    accurate = pd.Series([accuracies(k, cil)[seed] for cil, seed in auc.index], auc.index)
    return f"ρ = {accurate.corr(auc, method='spearman'):.2f} over the {len(auc)} trainings of k = {k}"
