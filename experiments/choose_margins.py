"""Learning rate, margins and weight of BER and VOS, judged without OOD data: later classes stand in for it.

    python experiments/choose_margins.py runs/digits/k2/icarl/seed0
    python experiments/choose_margins.py runs/cifar100/k10/icarl/seed0 --data-root ROOT --device cuda

For every step but the last: the AUC of the step's test images against training images of classes that the
model has not learned yet, for Energy and for BER and VOS under each choice of values (others are the run's);
then the mean over steps. The energies that the step's own head gives to new, mixed, memory, test and later
images are printed beside them.
"""

from collections import deque
from collections.abc import Callable
from itertools import product, zip_longest
from typing import Any

import pandas as pd
import torch
from stored_steps import study_steps
from torch import Tensor

import opencil
from opencil.detectors.finetune.energy_margins import energy
from opencil.detectors.finetune.mixing import other_class
from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.detectors.finetune.views import ViewSource
from opencil.detectors.finetune.vos import VOS
from opencil.engine.device import own_stream
from opencil.engine.seeding import generator

LATER = 5_000  #: images of later classes at most


def choices() -> dict[str, tuple[str, dict[str, Any]]]:
    """The detectors and values to compare, by a name for each."""
    schedule = {"epochs": 10, "decay": "cosine", "weight_decay": 5e-4}
    found: dict[str, tuple[str, dict[str, Any]]] = {"BER, neither": ("ber", {"nter": False, "oter": False})}
    for margins, lr, alpha in product(("fixed", "model"), (0.1, 0.01, 0.001), (0.1, 0.01)):
        values = {"margins": margins, "alpha": alpha, "schedule": {**schedule, "lr": lr}}
        found[f"BER, {margins} lr={lr} α={alpha}"] = "ber", values
        if alpha == 0.1:
            found[f"VOS, {margins} lr={lr}"] = "vos", values
    for part, off in (("NTER", "oter"), ("OTER", "nter")):
        found[f"{part} alone, fixed lr=0.1 α=0.1"] = "ber", {off: False}
        gentle = {off: False, "margins": "model", "schedule": {**schedule, "lr": 0.01}}
        found[f"{part} alone, model lr=0.01 α=0.1"] = "ber", gentle
    return found


class Remembered:
    """A function that gives its last few results again for equal tensors.

    Tuners of one kind draw alike, so under other values they mix the same images and sample the same
    outliers: on the CPU that is computed once. (A captured step cannot compare.)
    """

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self._compute = compute
        self._kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=4)

    def __call__(self, given: Tensor, *others: Any) -> Tensor:
        """The result for ``given``."""
        for known, result in self._kept:
            if known.shape == given.shape and torch.equal(known, given):
                return result
        result = self._compute(given, *others)
        self._kept.append((given.clone(), result))
        return result


def energies(source: ViewSource, model: opencil.Model) -> dict[str, float]:
    """Mean energies by the model's own head of a first batch of views, and of mixtures of them."""
    views = next(source.epoch(0, source.batch_of(128)))
    x = views[0]
    partner, _ = other_class(x.labels, torch.rand(len(x.labels), generator=generator(0)).to(x.labels.device))
    weight = torch.rand(len(x.labels), 1, 1, 1, generator=generator(1)).to(x.labels.device)
    mixed = source.features(weight * x.images + (1 - weight) * x.images[partner])
    of = {"new": x.features, "mixed": mixed}
    if len(views) > 1:
        of["memory"] = views[1].features
    return {name: float(energy(model.classify(features)).mean()) for name, features in of.items()}


def study(run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """AUC of each choice at a step; the energies there are printed."""
    with own_stream(run.stream.train.device):
        auc, levels = judged(run, step)
    print("energies, by the model's own head:", {name: round(level, 2) for name, level in levels.items()})
    return (100 * pd.Series(auc)).round(2).rename_axis("choice").reset_index(name="auc")


def judged(run: opencil.Run, step: opencil.Step) -> tuple[dict[str, float], dict[str, float]]:
    """AUC of each choice at a step, and mean energies."""
    model, transform = run.model(step.number), run.data.transform
    later = (run.stream.train.labels >= step.seen).nonzero().flatten().cpu()
    later = later[torch.randperm(len(later), generator=generator(step.number))[:LATER]]
    if not len(later):
        raise opencil.BadInput(f"after step {step.number} of {run.spec} there are no later classes")
    inside = opencil.forward(model, run.stream.test, transform, step.test)
    outside = opencil.forward(model, run.stream.train, transform, later)
    source = run.source(step, model)
    tuners = {
        name: opencil.create_detector(method, **{**run.spec.detectors.get(method, {}), **values})
        for name, (method, values) in choices().items()
    }
    if source.device.type == "cpu":
        source.features = Remembered(source.features)
        synthesisers = [tuner for tuner in tuners.values() if isinstance(tuner, VOS)]
        sampled = Remembered(synthesisers[0].outliers)
        for tuner in synthesisers:
            tuner.outliers = sampled
    tunings = {name: Tuning(tuner, source) for name, tuner in tuners.items()}
    for _ in zip_longest(*(tuning.advance() for tuning in tunings.values())):  # in step: they share the views
        pass
    found = {"Energy": opencil.create_detector("energy")} | tuners
    for name, tuner in tuners.items():
        assert isinstance(tuner, Tuner)
        tuner.use(tunings[name].extra.head)
    auc = {name: opencil.ood_metrics(d.score(inside), d.score(outside)).auc for name, d in found.items()}
    with torch.no_grad():
        levels = energies(source, model)
    tests = {"test": inside.logits, "later": outside.logits}
    return auc, levels | {name: float(energy(logits).mean()) for name, logits in tests.items()}


if __name__ == "__main__":
    found = study_steps(__doc__, study, slice(-1))
    means = found.pivot_table(index="choice", columns=["cil", "step"], values="auc", sort=False)
    print("AUC in percent:\n", means.assign(mean=means.mean(axis=1)).round(2).to_string())
