"""What detectors are set up on, and what that does to them: train+, the memory, or the paper code's choice.

    python experiments/set_up_data.py runs/cifar100/k10/icarl/seed0 --data-root ROOT --csv FILE

For every stored step, detectors are set up on T_t^train+ (the paper's words, `setup: train+`), on the memory
after the step (our default), and as the paper's code does it: on that memory with ten validation images of
each of the step's new classes, which are taken from the test images and not scored then. NNGuide's bank is
one augmented random batch of train+ in that code: "one batch", with a draw for each of five seeds. The table
has their mean AUC over the OOD sets. Nothing is chosen by it: it shows where a difference comes from.
"""

import pandas as pd
import torch
from stored_steps import study_steps
from torch import Tensor

import opencil
from opencil.engine.seeding import generator
from opencil.evaluation.protocol import measure
from opencil.nets.model import Classifier

DETECTORS = ("klm", "nnguide", "react", "relation")
VALIDATION = 10  #: test images of a new class that the paper's code sets detectors up on
BATCH, DRAWS = 128, 5  #: images of a random batch, and how often one is drawn


def rows(outputs: opencil.Outputs, chosen: Tensor) -> opencil.Outputs:
    """Some samples of outputs, without their images."""
    assert outputs.labels is not None
    features, logits, labels = (t[chosen] for t in (outputs.features, outputs.logits, outputs.labels))
    return opencil.Outputs(features, logits, labels, outputs.classify, tasks=outputs.tasks)


def joined(a: opencil.Outputs, b: opencil.Outputs) -> opencil.Outputs:
    """Two sets of outputs as one, without labels and images."""
    features, logits = torch.cat([a.features, b.features]), torch.cat([a.logits, b.logits])
    return opencil.Outputs(features, logits, classify=a.classify)


def validation(labels: Tensor, step: opencil.Step) -> Tensor:
    """Which test images of the new classes are held out, bool: ten of each class, at random."""
    held = torch.zeros(len(labels), dtype=torch.bool)
    order = torch.randperm(len(labels), generator=generator(0, "validation", step.number))
    for label in range(step.old, step.seen):
        held[order[labels.cpu()[order] == label][:VALIDATION]] = True
    return held


def one_batch(model: Classifier, run: opencil.Run, step: opencil.Step, seed: int) -> opencil.Outputs:
    """Outputs of a random batch of train+, augmented as in training."""
    numbers = generator(seed, "batch", step.number)
    train_plus = run.train_plus(step)
    chosen = train_plus[torch.randperm(len(train_plus), generator=numbers)[:BATCH].to(train_plus.device)]
    (pixels,) = run.stream.train.batches(chosen, BATCH)
    draw = run.data.transform.draw(len(pixels), pixels.shape[-1], numbers).to(pixels.device)
    with torch.no_grad():
        features = model.features(run.data.transform.train(pixels, draw))
        return opencil.Outputs(features, model.classify(features), classify=model.classify)


def study(run: opencil.Run, step: opencil.Step) -> pd.DataFrame:
    """AUC of each detector under each set-up at a step, by OOD set."""
    model, transform, spec = run.model(step.number), run.data.transform, run.spec
    remembered = run.memory(step.number).indices
    if not len(remembered):
        raise opencil.BadInput(f"{spec.cil} keeps no memory to set detectors up on")
    test = opencil.forward(model, run.stream.test, transform, step.test)
    ood = {}
    for name, source in run.data.ood.items():
        seen = spec.ood_seen(name, len(source.images), step)
        ood[name] = opencil.forward(model, source.images, transform, seen)
    train_plus = opencil.forward(model, run.stream.train, transform, run.train_plus(step))
    memory = opencil.forward(model, run.stream.train, transform, remembered)
    assert test.labels is not None
    held = validation(test.labels, step).to(test.labels.device)
    setups = {
        "train+": (train_plus, test),
        "memory": (memory, test),
        "as released": (joined(memory, rows(test, held)), rows(test, ~held)),
    }
    batches = [(one_batch(model, run, step, seed), test) for seed in range(DRAWS)]
    todo = [(what, pair, name) for what, pair in setups.items() for name in DETECTORS]
    todo += [("one batch", pair, "nnguide") for pair in batches]
    found = []
    for what, (setup, scored), name in todo:
        detector = opencil.create_detector(name, **run.spec.detectors.get(name, {}))
        try:
            measured = measure(detector, setup, scored, ood)
        except opencil.BadInput as error:  # too few images for it
            print(f"{name} on {what}: {error}")
            continue
        found += [(name, what, m.ood, m.value) for m in measured if m.metric == "auc"]
    return pd.DataFrame(found, columns=["detector", "setup", "ood", "auc"])


if __name__ == "__main__":
    found = study_steps(__doc__, study)
    means = found.pivot_table(index=["cil", "detector"], columns="setup", values="auc", sort=False)
    print("mean AUC over steps and OOD sets, in percent:\n", (100 * means).round(2).to_string())
