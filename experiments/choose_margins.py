"""Judge learning rates, margins and weights of BER and VOS without OOD data, by classes of later steps.

    python experiments/choose_margins.py runs/digits/k2/icarl/seed0
    python experiments/choose_margins.py runs/cifar100/k10/icarl/seed0 --data-root ROOT --device cuda

For every step but the last: the AUC of the step's test images against training images of classes that the
model has not learned yet, for Energy and for BER and VOS under each choice of values (others are the run's).
"""

from itertools import product
from typing import Any

import pandas as pd
import torch
from stored_steps import study_steps

import opencil
from opencil.detectors.finetune.tuner import Tuning
from opencil.engine.device import SideStream
from opencil.engine.seeding import generator

LATER = 5_000  #: images of later classes at most


def choices() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the detectors and values to compare, by name."""
    schedule = {"epochs": 10, "decay": "cosine", "weight_decay": 5e-4}
    named: dict[str, tuple[str, dict[str, Any]]] = {"BER, neither": ("ber", {"nter": False, "oter": False})}
    for margins, lr, alpha in product(("fixed", "model"), (0.1, 0.01, 0.001), (0.1, 0.01)):
        values = {"margins": margins, "alpha": alpha, "schedule": {**schedule, "lr": lr}}
        named[f"BER, {margins} lr={lr} α={alpha}"] = "ber", values
        if alpha == 0.1:
            named[f"VOS, {margins} lr={lr}"] = "vos", values
    for part, off in (("NTER", "oter"), ("OTER", "nter")):
        named[f"{part} alone, fixed lr=0.1 α=0.1"] = "ber", {off: False}
        gentle = {off: False, "margins": "model", "schedule": {**schedule, "lr": 0.01}}
        named[f"{part} alone, model lr=0.01 α=0.1"] = "ber", gentle
    return named


def study(run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """Return the AUC of each choice at a step, in percent."""
    later = (run.stream.train.labels >= step.seen).nonzero().flatten().cpu()
    later = later[torch.randperm(len(later), generator=generator(step.number))[:LATER]]
    if not len(later):
        raise opencil.BadInput(f"after step {step.number} of {run.spec} there are no later classes")
    with SideStream(run.stream.train.device).active():
        model, transform = run.model(step.number), run.data.transform
        inside = opencil.forward(model, run.stream.test, transform, step.test)
        outside = opencil.forward(model, run.stream.train, transform, later)
        source = run.source(step, model)
        detectors = {"Energy": opencil.create_detector("energy")}
        for name, (method, values) in choices().items():
            tuner = opencil.create_detector(method, **{**run.spec.detectors.get(method, {}), **values})
            assert isinstance(tuner, opencil.Tuner)
            tuning = Tuning(tuner, source)
            for _ in tuning.advance():
                pass
            tuner.use(tuning.extra.head)
            detectors[name] = tuner
        auc = {
            name: opencil.ood_metrics(detector.score(inside), detector.score(outside)).auc
            for name, detector in detectors.items()
        }
    return (100 * pd.Series(auc)).round(2).rename_axis("choice").reset_index(name="auc")


if __name__ == "__main__":
    rows = study_steps(__doc__, study, slice(-1))
    means = rows.pivot_table(index="choice", columns=["cil", "step"], values="auc", sort=False)
    print("AUC in percent:\n", means.assign(mean=means.mean(axis=1)).round(2).to_string())
