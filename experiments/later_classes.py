"""Which score, by task or by a tuned head or both, is best where later classes stand in for OOD data?

    python experiments/later_classes.py RUNS/cifar100/k10/icarl/seed1 ... --data-root ROOT --csv FILE
    python experiments/later_classes.py --report FILE

For every stored step: test images of the classes seen so far against those of classes that come later, which
the model has not seen, and against the OOD sets under the protocol. Candidates are each post-hoc detector,
set up on the memory, and each stored head of a tuner, by its own score and by each post-hoc detector whose
score a head can change; all of them plain and by task. What runs the network again (ODIN, Gram, RankFeat)
takes longer than all others together: it is a candidate where ``--also odin`` asks for it, and never by a
head; nor is TPL, which is more than a score of a head. One forward pass a step and set serves all, and the
scores of all candidates are ranked together.

The choice, one for all CIL models, is made from the later classes alone (``choose``); the last step has none
and does not count for it. The report puts the OOD sets beside it, which nothing is chosen by.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from stored_steps import study_steps
from torch import Tensor

import opencil
from opencil.data.images import Images
from opencil.detectors.task_standards import TaskStandards
from opencil.engine.seeding import generator
from opencil.evaluation.ranking import enough

LATER, MARGIN = "later classes", 0.1  #: AUC points within which the simpler of two is chosen
#: The simplest first; odd ones are by task.
KINDS = ("post-hoc", "post-hoc by task", "tuned", "tuned by task", "composition", "both")
BASELINES = ("energy", "nnguide", "odin", "augmix", "augmix@original", "ber", "ber@chosen")
TOP = 15
AGAIN = {"images", "layers"}  #: what a detector reads that runs the network again


def image_sets(run: opencil.Run, step: opencil.Step, most: int | None) -> dict[str, tuple[Images, Tensor]]:
    """Images to score and their indices: test images of seen classes first, of later ones, and OOD sets."""
    test = run.stream.test
    found = {"seen": (test, step.test), LATER: (test, (test.labels >= step.seen).nonzero().flatten().cpu())}
    for name, source in run.data.ood.items():
        found[name] = source.images, run.spec.ood_seen(name, len(source.images), step)
    orders = {n: torch.randperm(len(i), generator=generator(0, "images", n)) for n, (_, i) in found.items()}
    return {
        n: (images, i if most is None else i[orders[n][:most]]) for n, (images, i) in found.items() if len(i)
    }


def joined(parts: list[opencil.Outputs]) -> opencil.Outputs:
    """Outputs of one model as one, without labels and images."""
    features, logits = torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts])
    return opencil.Outputs(features, logits, classify=parts[0].classify, tasks=parts[0].tasks)


def post_hoc(run: opencil.Run, also: Sequence[str] = ()) -> Iterator[tuple[str, opencil.Detector]]:
    """Detectors that are no tuners, new ones; of those that run the network again what is asked for."""
    for name in opencil.list_detectors():
        detector = opencil.create_detector(name, **run.spec.detectors.get(name, {}))
        if not isinstance(detector, opencil.Tuner) and (detector.reads.isdisjoint(AGAIN) or name in also):
            yield name, detector


def reads_head(detector: opencil.Detector) -> bool:
    """Whether another head changes what it scores."""
    reads = detector.reads | (detector.setup_reads or frozenset())
    return not reads.isdisjoint({"logits", "head", "linear"})


def scored(
    run: opencil.Run,
    step: opencil.Step,
    memory: opencil.Outputs,
    sets: list[opencil.Outputs],
    also: Sequence[str] = (),
) -> Iterator[tuple[str, str, Tensor]]:
    """Name, kind and scores of each candidate, on all sets one after the other."""
    everything = joined(sets)
    assert memory.labels is not None
    assert memory.tasks is not None

    def pair(
        name: str, kind: int, detector: opencil.Detector, setup: opencil.Outputs, parts: list[opencil.Outputs]
    ) -> Iterator[tuple[str, str, Tensor]]:
        """The detector plain and by task."""
        try:
            if not detector.ready:
                detector.fit(setup)
            plain = torch.cat([detector.score(part) for part in parts])
            standards = TaskStandards.of(detector.score(setup), memory.labels, memory.tasks)
        except Exception as error:  # one detector's trouble is not the others': too few images for it
            print(f"{name} at step {step.number}: {error}")
            return
        yield name, KINDS[kind], plain
        # As the value by_task has it: the task is predicted by the model's own head.
        yield f"{name} by task", KINDS[kind + 1], standards.standardised(plain, everything.logits)

    for name, detector in post_hoc(run, also):
        parts = [everything] if detector.reads.isdisjoint(AGAIN) else sets
        yield from pair(name, 0, detector, memory, parts)
    for head in run.spec.detectors:
        if not run.folder.step(step.number).head(head).exists():
            continue
        tuner = run.detector(head, step.number)
        assert isinstance(tuner, opencil.Tuner)
        own = list(pair(head, 2, tuner, memory, [everything]))
        yield from own
        # Outputs by the head as scored_by has them, once for all detectors.
        setup, by_head = tuner.by_head(memory), tuner.by_head(everything)
        for name, detector in post_hoc(run):
            if detector.family == "post-hoc" and reads_head(detector):
                found = list(pair(f"{head} + {name}", 4, detector, setup, [by_head]))
                # Energy is what most heads are scored by anyway.
                if not (own and found and torch.equal(found[0][2], own[0][2])):
                    yield from found


def ranked(scores: Tensor, sizes: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """AUC and FPR of each row of scores [K, N], in percent: of the first set against each of the others."""
    seen, *others = scores.split(sizes, dim=1)
    seen, count = seen.sort(dim=1).values, sizes[0]
    threshold = seen[:, count - enough(count, 0.95), None]
    for ood in others:
        ood = ood.contiguous()
        # Seen images that score below an OOD one, twice; those that score alike count once.
        lost = torch.searchsorted(seen, ood) + torch.searchsorted(seen, ood, right=True)
        yield 100 - 50 * lost.double().mean(dim=1) / count, 100 * (ood >= threshold).double().mean(dim=1)


def study(also: Sequence[str], most: int | None, run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """AUC of each candidate at a step by set, then FPR; there are no later classes at the last one."""
    started, model, transform = time.monotonic(), run.model(step.number), run.data.transform
    chosen = image_sets(run, step, most)
    sets = [opencil.forward(model, images, transform, indices) for images, indices in chosen.values()]
    memory = opencil.forward(model, run.stream.train, transform, run.memory(step.number).indices)
    memory = replace(memory, tasks=torch.tensor(step.task_of_class, device=memory.logits.device))
    names, kinds, scores = zip(*scored(run, step, memory, sets, also), strict=True)
    found = pd.DataFrame({"candidate": names, "kind": kinds, LATER: torch.nan})
    fprs = {}
    for name, (auc, fpr) in zip(
        list(chosen)[1:], ranked(torch.stack(scores), [len(s) for s in sets]), strict=True
    ):
        found[name], fprs[f"FPR {name}"] = auc.cpu().numpy().round(3), fpr.cpu().numpy().round(3)
    print(f"{len(found)} candidates on {sum(map(len, sets))} images: {time.monotonic() - started:.1f} s")
    return found.assign(**fprs)


def averages(rows: pd.DataFrame, columns: list[str]) -> pd.Series:
    """Mean over models of that over steps and columns, by kind and candidate: of those there everywhere."""
    by = ["kind", "candidate"]
    rows = rows.assign(mean=rows[columns].mean(axis=1)).dropna(subset=columns)
    places = rows.groupby(by)["mean"].transform("size")
    everywhere = rows[places == places.max()]
    return everywhere.groupby([*by, "cil"])["mean"].mean().groupby(by).mean()


def choose(rows: pd.DataFrame) -> str:
    """One candidate for all models, by later classes alone: the best, or one as good that is simpler."""
    found = averages(rows[["cil", "candidate", "kind", LATER]], [LATER]).sort_values(ascending=False)
    good = found[found >= found.iloc[0] - MARGIN]
    return min(good.index, key=lambda index: KINDS.index(index[0]))[1]  # of one kind the first, the best


def report(rows: pd.DataFrame) -> str:
    """The choice, the best by later classes and the baselines, with the OOD sets beside them."""
    known = ("cil", "step", "candidate", "kind", LATER)
    ood = [name for name in rows if name not in known and not name.startswith("FPR ")]
    columns = {LATER: [LATER], "OOD sets": ood, **{name: [name] for name in ood}}
    table = pd.DataFrame({name: averages(rows, of) for name, of in columns.items()}).dropna()
    table = table.reset_index("kind").sort_values(LATER, ascending=False)
    places = {
        f"rank by {name}": table[name].rank(ascending=False).astype(int) for name in (LATER, "OOD sets")
    }
    table = table.assign(**places).round(2)
    best = table.groupby("kind", sort=False).head(1)
    agree = table[LATER].rank().corr(table["OOD sets"].rank())
    shown = {
        f"chosen of {len(table)} candidates": table.loc[[choose(rows)]],
        f"the best {TOP} by later classes": table.head(TOP),
        "the best of each kind by later classes": best,
        "baselines": table.loc[[name for name in BASELINES if name in table.index]],
    }
    parts = [f"{what}:\n{part.to_string()}" for what, part in shown.items()]
    return "\n\n".join([*parts, f"Spearman correlation of the two over candidates: {agree:.2f}"])


def main() -> None:
    """Study the runs that the user names, or report what was found."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--images", type=int, help="at most so many of each set, at random: to try it out")
    own.add_argument("--also", default="", help="detectors that run the network again, such as odin,gram")
    own.add_argument("--report", metavar="FILE", help="tell what rows that were written say, and no more")
    flags, _ = own.parse_known_args()
    also = [name for name in flags.also.split(",") if name]
    if unknown := set(also) - set(opencil.list_detectors()):
        own.error(f"--also: there is no detector {', '.join(sorted(unknown))}")
    if flags.images is not None and flags.images < 1:
        own.error(f"--images {flags.images}: at least 1 is needed")
    if not flags.report:
        print(report(study_steps(__doc__, partial(study, also, flags.images), parents=[own])))
        return
    try:
        found = report(pd.read_csv(flags.report))
    except (OSError, ValueError, KeyError) as error:
        own.error(f"--report {flags.report} has no rows of this script: {error}")
    print(found)


if __name__ == "__main__":
    main()
