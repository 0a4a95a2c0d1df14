"""Compare images that detectors are set up on: train+, the memory, or the choice of the paper's code.

    python experiments/set_up_data.py runs/cifar100/k10/icarl/seed0 --data-root ROOT --csv FILE

For every stored step, detectors are set up on T_t^train+ (the paper's words, ``setup: train+``), on the
memory after the step (the default), and as in the paper's code: on that memory and ten test images of each
new class, which are then not scored. NNGuide's bank is one augmented random batch of train+ in that code:
"one batch", with a draw for each of five seeds. The table has their mean AUC over the OOD sets.
"""

import pandas as pd
import torch
from stored_steps import study_steps
from torch import Tensor

import opencil
from opencil.engine.seeding import generator

DETECTORS = ("klm", "nnguide", "react", "relation")
VALIDATION = 10  #: test images of a new class that the paper's code sets detectors up on
BATCH, DRAWS = 128, 5  #: images of a random batch, and the number of batches


def taken(outputs: opencil.Outputs, chosen: Tensor, *before: opencil.Outputs) -> opencil.Outputs:
    """Return some samples of outputs, after those of ``before``, without labels and images."""
    features = torch.cat([*(part.features for part in before), outputs.features[chosen]])
    logits = torch.cat([*(part.logits for part in before), outputs.logits[chosen]])
    return opencil.Outputs(features, logits, classify=outputs.classify)


def validation(labels: Tensor, step: opencil.Step) -> Tensor:
    """Return a mask of the test images that are held out: ten of each new class, at random."""
    held = torch.zeros(len(labels), dtype=torch.bool)
    order = torch.randperm(len(labels), generator=generator(0, "validation", step.number))
    for label in range(step.old, step.seen):
        held[order[labels.cpu()[order] == label][:VALIDATION]] = True
    return held.to(labels.device)


def one_batch(model: opencil.Model, run: opencil.Run, step: opencil.Step, seed: int) -> opencil.Outputs:
    """Return outputs of a random batch of train+, augmented as in training."""
    numbers = generator(seed, "batch", step.number)
    train_plus = run.train_plus(step)
    chosen = train_plus[torch.randperm(len(train_plus), generator=numbers)[:BATCH].to(train_plus.device)]
    (pixels,) = run.stream.train.batches(chosen, BATCH)
    drawn = run.data.transform.draw(len(pixels), pixels.shape[-1], numbers)
    draw = [choices.to(pixels.device) for choices in drawn]
    with torch.no_grad():
        features = model.features(run.data.transform.train(pixels, draw))
        return opencil.Outputs(features, model.classify(features), classify=model.classify)


def study(run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """Return the AUC of each detector and set-up at a step, by OOD set."""
    model, transform = run.model(step.number), run.data.transform
    remembered = run.memory(step.number).indices
    if not len(remembered):
        raise opencil.BadInput(f"{run.spec.cil} keeps no memory to set detectors up on")
    test = opencil.forward(model, run.stream.test, transform, step.test)
    ood = {}
    for name, source in run.data.ood.items():
        seen = run.spec.ood_seen(name, len(source.images), step)
        ood[name] = opencil.forward(model, source.images, transform, seen)
    train_plus = opencil.forward(model, run.stream.train, transform, run.train_plus(step))
    memory = opencil.forward(model, run.stream.train, transform, remembered)
    held = validation(test.labels, step)
    setups = {
        "train+": (train_plus, test),
        "memory": (memory, test),
        "as released": (taken(test, held, memory), taken(test, ~held)),
    }
    tasks = [(kind, pair, name) for kind, pair in setups.items() for name in DETECTORS]
    tasks += [("one batch", (one_batch(model, run, step, seed), test), "nnguide") for seed in range(DRAWS)]
    auc = []
    for kind, (setup, scored), name in tasks:
        detector = opencil.create_detector(name, **run.spec.detectors.get(name, {}))
        try:
            detector.fit(setup)
        except opencil.BadInput as error:  # too few images
            print(f"{name} on {kind}: {error}")
            continue
        known = detector.score(scored)
        for ood_set, outputs in ood.items():
            auc.append((name, kind, ood_set, opencil.ood_metrics(known, detector.score(outputs)).auc))
    return pd.DataFrame(auc, columns=["detector", "setup", "ood", "auc"])


if __name__ == "__main__":
    rows = study_steps(__doc__, study)
    means = rows.pivot_table(index=["cil", "detector"], columns="setup", values="auc", sort=False)
    print("mean AUC over steps and OOD sets, in percent:\n", (100 * means).round(2).to_string())
