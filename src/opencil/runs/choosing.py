"""Choose a detector's values on stored runs, by classes of later steps: never on OOD sets."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import product
from typing import Any, Literal, get_args

import pandas as pd
import torch

from opencil._version import __version__
from opencil.config import dump_yaml, list_benchmarks, resolve
from opencil.config.short_forms import nest
from opencil.detectors.finetune.tuner import Tuner, Tuning
from opencil.engine.device import SideStream
from opencil.engine.forward import Outputs
from opencil.engine.seeding import generator
from opencil.errors import BadInput, not_allowed
from opencil.evaluation.metrics import ood_metrics
from opencil.registry import DETECTORS
from opencil.runs.provenance import command, source_digest
from opencil.runs.state import Run, StepOutputs
from opencil.validation import flat, merge

Choice = Mapping[str, Any]
#: Images to choose on, and what they are.
Basis = Literal["future", "held-out"]
_ABOUT = {
    "future": "test images of classes seen against test images of classes of later steps",
    "held-out": "training images of old classes that the step did not train on against those of later steps",
}
_MOST = 5_000  #: held-out images of a kind


def list_choices(method: str, tried: Mapping[str, Sequence[Any]]) -> list[Choice]:
    """Return the choices to compare: no change, then every combination of values, or else the presets."""
    combinations: list[Choice] = []
    for values in product(*tried.values()):
        parts = [nest(key.split("."), value) for key, value in zip(tried, values, strict=True)]
        combinations.append(reduce(merge, parts, dict[str, Any]()))
    return [{}, *(combinations if tried else DETECTORS.entry(method).named.values())]


def judge(run: Run, method: str, choices: Sequence[Choice], on: str) -> Iterator[tuple[int, int, float]]:
    """Yield step, number of a choice and AUC, for each step of a run that has classes of later steps.

    A fine-tuning detector trains a head for each choice; nothing is stored.
    """
    if on not in get_args(Basis):
        raise not_allowed("on", on, f"{' and '.join(_ABOUT)} are; values are never chosen on OOD sets")
    name, base = run.spec.benchmark.name, run.spec.detectors.get(method)
    if base is None:  # a shipped benchmark has values of its own for some detectors
        known = name if name in list_benchmarks() else "digits"
        shipped = resolve({"benchmark": known, "cil": "joint", "detector": method}).detector[method]
        base = shipped if known == name else DETECTORS.defaults(method)
    for step in run.trained_steps:
        outputs = StepOutputs(run, step)
        sets = [outputs.test, *outputs.future.values()] if on == "future" else _held_out(outputs)
        if len(sets) < 2:
            continue
        for number, values in enumerate(choices):
            detector = DETECTORS.create(method, **merge(base, values))
            if isinstance(detector, Tuner):
                with SideStream(run.stream.train.device).active():
                    tuning = Tuning(detector, run.source(step, run.model(step.number)))
                    for _ in tuning.advance():
                        pass
                detector.use(tuning.extra.head)
            outputs.set_up(detector)
            yield step.number, number, ood_metrics(*map(detector.score, sets)).auc


def _held_out(outputs: StepOutputs) -> list[Outputs]:
    """Return outputs of training images that the step did not train on: of old classes, and of later ones."""
    run, step = outputs.run, outputs.step
    labels, others = run.stream.train.labels.cpu(), torch.ones(len(run.stream.train), dtype=torch.bool)
    others[run.train_plus(step)] = False
    sets = []
    for chosen in (others & (labels < step.old), labels >= step.seen):
        found = chosen.nonzero().flatten()
        found = found[torch.randperm(len(found), generator=generator("held out", step.number))[:_MOST]]
        sets += [outputs.of(run.stream.train, found)] if len(found) else []
    return sets


def rank_choices(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean and lowest AUC over runs by choice, best first; a run's is the mean over its steps.

    ``rows`` have the columns run, step, choice and auc. Of equal choices the first comes first.
    """
    if rows.empty:
        raise BadInput("no step of the runs has images to choose on: classes of later steps are needed")
    of_runs = rows.groupby(["choice", "run"])["auc"].mean().groupby("choice")
    return of_runs.agg(["mean", "min"]).sort_values("mean", ascending=False, kind="stable")


def make_preset(
    name: str, choices: Sequence[Choice], rows: pd.DataFrame, models: Mapping[str, str], on: str
) -> str:
    """Return the YML of the best choice under a name with a label; comments say where it comes from.

    ``models`` are checksums of the runs' last models.
    """
    ranked = rank_choices(rows)
    compared = [
        f"  {100 * mean:6.2f} {100 * least:6.2f}  {describe(choices[number])}"
        for number, mean, least in ranked.itertuples()
    ]
    steps_of: dict[str, set[int]] = rows.groupby("run")["step"].agg(set).to_dict()  # type: ignore[assignment]
    lines = [
        f"Values of {name}, chosen by OpenCIL {__version__} (source {source_digest()})",
        f"on {datetime.now(UTC):%Y-%m-%d}: {command()}",
        f"AUC in percent, {_ABOUT[on]}.",
        "No OOD set was read. Mean over runs of means over steps, and the lowest run's:",
        *compared,
        "Runs, with the checksum of their last model:",
        *(f"  {run}, steps {sorted(steps)}, {models[run]}" for run, steps in steps_of.items()),
    ]
    values = dict(choices[int(ranked.index[0])])
    return "".join(f"# {line}\n" for line in lines) + dump_yaml({"detector": {name: values}})


def describe(choice: Choice) -> str:
    """Return a choice in a line."""
    return ", ".join(f"{key}={value}" for key, value in flat(choice).items()) or "as it is"
