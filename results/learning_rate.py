"""What the learning rate of heads does to the fine-tuning detectors: all of them, at a few steps, on a CPU.

    python results/learning_rate.py runs/cifar100/k10/icarl/seed0 --steps 5 --data-root ROOT --csv FILE

AUC against each OOD set under the run's own values but for ``schedule.lr``; heads are tuned in full float32,
and of an OOD set at most 1,500 images are taken. Nothing is chosen by it: it shows where a difference comes
from. For all steps on a GPU, ``opencil run`` tunes detectors with labels:
``--set detector.ber@gentle.schedule.lr=0.001``.
"""

import argparse
from itertools import zip_longest

import pandas as pd
import torch
from choose_margins import Remembered

import opencil
from opencil.detectors.detector import Detector
from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.engine.arithmetic import FULL
from opencil.engine.seeding import generator
from opencil.evaluation.protocol import measure

MOST = 1_500  #: images of an OOD set


def tuned(run: opencil.StoredRun, number: int, rates: list[float]) -> dict[tuple[str, float], Detector]:
    """Every fine-tuning detector of the run with a head for each rate, by name and rate."""
    source = run.source(run.stream[number - 1], run.model(number))
    source.arithmetic = FULL
    source.features = Remembered(source.features)
    found: dict[tuple[str, float], Detector] = {}
    tunings: dict[tuple[str, float], Tuning] = {}
    for name, values in run.spec.detectors.items():
        for rate in rates if "@" not in name and "schedule" in values else ():
            detector = opencil.create_detector(
                name, **{**values, "schedule": {**values["schedule"], "lr": rate}}
            )
            assert isinstance(detector, Tuner)
            found[name, rate], tunings[name, rate] = detector, Tuning(detector, source)
    for _ in zip_longest(*(tuning.advance() for tuning in tunings.values())):  # in step: they share the views
        pass
    for key, tuning in tunings.items():
        found[key].use(tuning.extra.head)
    return found


def study(run: opencil.StoredRun, number: int, rates: list[float]) -> pd.DataFrame:
    """AUC of each detector under each rate at a step, by OOD set."""
    step, model, transform = run.stream[number - 1], run.model(number), run.data.transform
    test = opencil.forward(model, run.stream.test, transform, step.test)
    ood = {}
    for name, source in run.data.ood.items():
        seen = run.spec.ood_seen(name, len(source.images), step)
        few = seen[torch.randperm(len(seen), generator=generator(number, name))[:MOST]]
        ood[name] = opencil.forward(model, source.images, transform, few)
    every = {("energy", 0.0): opencil.create_detector("energy")} | tuned(run, number, rates)
    found = [
        (run.spec.cil, number, name, rate, m.ood, round(100 * m.value, 2))
        for (name, rate), detector in every.items()
        for m in measure(detector, None, test, ood)
        if m.metric == "auc"
    ]
    return pd.DataFrame(found, columns=["cil", "step", "detector", "lr", "ood", "auc"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--steps", required=True, help="such as 2,5,8")
    parser.add_argument("--rates", default="0.1,0.01,0.001")
    parser.add_argument("--data-root")
    parser.add_argument("--csv")
    flags = parser.parse_args()
    run = opencil.open_run(flags.run, flags.data_root, "cpu")
    rates = [float(rate) for rate in flags.rates.split(",")]
    tables = []
    for number in map(int, flags.steps.split(",")):
        tables.append(study(run, number, rates))
        print(f"{run.spec} step {number}", flush=True)
        if flags.csv:
            pd.concat(tables).to_csv(flags.csv, index=False)
    means = pd.concat(tables).pivot_table(index="detector", columns="lr", values="auc", sort=False)
    print("mean AUC over steps and OOD sets, in percent:\n", means.round(2).to_string())


if __name__ == "__main__":
    main()
