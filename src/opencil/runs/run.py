"""The run loop: train a step, store it, tune heads, measure every detector, store the rows, go on.

``run`` does one run in one process, or on each of several ranks. Everything parallel is outside: see
``opencil.runs.launch``. The file is not ``opencil/run.py``: a module of that name would replace the function
``opencil.run``. In this file ``this`` is the run, ``stored`` the folder of a step, ``info`` its record.
"""

import time
from collections.abc import Generator
from contextlib import suppress
from statistics import fmean

import pandas as pd
from torch import nn

from opencil.cil.learner import Task
from opencil.data.benchmark import BenchmarkData
from opencil.data.roles import FUTURE, OOD_ROLES
from opencil.data.stream import Step
from opencil.detectors.detector import Detector
from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.ranks import LostRank, agree, from_first
from opencil.errors import BadInput, OpenCILError, no_exits
from opencil.evaluation.metric import table_metrics
from opencil.evaluation.protocol import Measurement
from opencil.files import Damaged
from opencil.registry import DETECTORS
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.events import Evaluated, Event, Trained, Training, describe_failures
from opencil.runs.protocol import Protocol
from opencil.runs.provenance import describe_arithmetic, describe_maker
from opencil.runs.spec import RunSpec
from opencil.runs.state import Run, StepOutputs
from opencil.runs.store import Info, RunFolder, digest_values
from opencil.runs.tuning import tune
from opencil.study.rows import COLUMNS

PAPER = Protocol()


def run(
    spec: RunSpec,
    data: BenchmarkData,
    store: RunFolder,
    protocol: Protocol = PAPER,
    checkpoint_seconds: float = 60.0,
) -> Generator[Event]:
    """Train, measure and store the missing parts of a run, yielding an event after each advance.

    Closing the generator interrupts the run: a training or tuning in progress is checkpointed. A failing
    detector does not stop the run; an error at the end names it.
    """
    this = Run(spec, store, data)
    failures: dict[str, tuple[int, Exception]] = {}
    for step in this.stream:
        stored, outputs = store.step(step.number), StepOutputs(this, step)

        if not from_first(stored.record.exists):
            # Train the step, from its checkpoint if there is one.
            task, made_of = begin_step(this, step), this.describe_training(step)
            with Checkpoints(stored, made_of, checkpoint_seconds) as checkpoints:
                for progress in this.learner.learn(task, checkpoints.resume):
                    checkpoints.measured += protocol.during(this, task, progress)
                    checkpoints.note(task.model, progress, task.ended)
                    yield Training(spec, step.number, step.steps, progress)

            # Store its model, its memory and the model's rows.
            task.model = this.cache_model(step, task.model)
            if this.learner.remembers:
                task.computed = outputs.of(this.stream.train, task.train_plus)
            memory = this.learner.remember(task)
            info = record_step(this, step, task, checkpoints.seconds)
            stored.save_tensors("model.safetensors", task.model.state_dict(), info)
            stored.save_tensors("memory.safetensors", memory.tensors(), info)
            found = [*checkpoints.measured, *protocol.measure_model(task, memory, outputs)]
            add_rows(this, step, info, "", found)
            stored.save_info(info)
            this.cache_step(step, memory, from_first(dict, info))
            of_all = {one.metric: one.value for one in found if not (one.ood or one.task)}
            yield Trained(spec, step.number, step.steps, of_all)
        stored.remove_checkpoint()  # also where a kill has left it

        # Measure it with the detectors that have no rows yet.
        this.check_images(step.number)
        info = this.info(step.number)
        if lacking := from_first(stored.lacking, spec, info):
            problems = yield from evaluate(outputs, protocol, info, lacking, checkpoint_seconds)
            failures = {name: (step.number, error) for name, error in problems.items()} | failures
    if failures:
        raise describe_failures(failures)


def evaluate(
    outputs: StepOutputs, protocol: Protocol, info: Info, lacking: list[str], checkpoint_seconds: float
) -> Generator[Event, None, dict[str, Exception]]:
    """Tune and measure the detectors without rows at a step; '' is the model.

    Return the errors of failed detectors.
    """
    this, step, spec = outputs.run, outputs.step, outputs.run.spec
    stored, problems = this.folder.step(step.number), dict[str, Exception]()
    detectors: dict[str, Detector] = {n: DETECTORS.create(n, **spec.detectors[n]) for n in lacking if n}
    started = time.monotonic()
    if tuners := [detector for detector in detectors.values() if isinstance(detector, Tuner)]:
        try:
            source = this.source(step, this.setting.move_to_device(outputs.model))
        except BadInput as error:  # there are no images to tune on: other detectors go on
            problems = {tuner.registered_name: error for tuner in tuners}
        else:
            for progress in tune(tuners, source, stored, info, checkpoint_seconds, problems):
                yield Training(spec, step.number, step.steps, progress)
        add_seconds(info, "tuning", started)
    saved = started = time.monotonic()
    try:
        if "" in lacking:
            task = begin_step(this, step)
            task.model = outputs.model
            add_rows(this, step, info, "", protocol.measure_model(task, this.memory(step.number), outputs))
        for name in [name for name in detectors if name not in problems]:
            before = count_changes(outputs.model)
            try:
                with no_exits(LostRank):
                    found = protocol.measure_detector(detectors[name], outputs)
                    check_unchanged(outputs.model, before, name)
                    add_rows(this, step, info, name, found)
            except Exception as error:  # the other detectors go on, unless they would score another model
                check_unchanged(outputs.model, before, name)
                problems[name] = error
                continue
            if time.monotonic() - saved > checkpoint_seconds:
                stored.save_info(info)
                saved = time.monotonic()
            means = {f"{metric}/{name}": mean for metric, mean in average_ood(this, found).items()}
            yield Evaluated(spec, step.number, step.steps, name, means)
    finally:
        this.save_statistics()
        add_seconds(info, "evaluation", started)
        stored.save_info(info)
    return problems


def count_changes(model: nn.Module) -> int:
    """Return how often the weights of a model were changed in place; ``.data`` hides a change."""
    return sum(tensor._version for tensor in (*model.parameters(), *model.buffers()))


def check_unchanged(model: nn.Module, before: int, detector: str) -> None:
    """Refuse a detector that has changed the model in place."""
    if count_changes(model) != before:
        raise OpenCILError(f"{detector} changes the model in place: let it change a copy")


def average_ood(this: Run, measured: list[Measurement]) -> dict[str, float]:
    """Return the mean over OOD sets of each main metric, for logs."""
    found: dict[str, list[float]] = {name: [] for name in table_metrics("all")}
    for one in measured:
        if one.metric in found and not one.task and this.data.roles.get(one.ood) in OOD_ROLES:
            found[one.metric].append(one.value)
    return {name: fmean(values) for name, values in found.items() if values}


def begin_step(this: Run, step: Step) -> Task:
    """Return the task of a step, with the initial model of its training."""
    previous = this.setting.move_to_device(this.model(step.number - 1)) if step.number > 1 else None
    task = this.learner.begin(this.setting, step, this.memory(step.number - 1), previous)
    agree(f"the images or the memory of step {step.number}", this.images_digest, task.train_plus)
    return task


def record_step(this: Run, step: Step, task: Task, seconds: float) -> Info:
    """Return the record of a trained step, whose files and rows are still to be listed."""
    return {
        "run": str(this.spec),
        "training": this.training_digest,
        "step": step.number,
        "steps": step.steps,
        "classes": step.seen,
        "images": this.images_digest,
        "previous": this.weights(step.number - 1),
        "computed_with": describe_arithmetic(this.setting.images.device),
        "seconds": {"training": seconds},
        "files": {},
        "heads": {},
        "rows": {},
        **this.learner.notes(task),
    }


def add_rows(this: Run, step: Step, info: Info, detector: str, measured: list[Measurement]) -> None:
    """Store rows of a detector, or of the model for '', with their provenance.

    Where there are rows of the same values, only missing metrics are added.
    """
    spec, stored = this.spec, this.folder.step(step.number)
    roles = {"": "", FUTURE: FUTURE, **this.data.roles}
    of_all = (*spec.identity, step.number, detector)
    found = [(*of_all, m.ood, roles[m.ood], m.task, m.metric, m.value) for m in measured]
    rows = pd.DataFrame(found, columns=COLUMNS)
    metrics, plugins = spec.metrics_of(detector), spec.plugins(*[detector] if detector else [])
    made = [describe_maker(this.setting.images.device, spec.training, plugins)]
    before, values = info["rows"].get(detector), spec.detectors.get(detector)
    if before and not stored.misfit(detector, values, info) and set(metrics) - set(before["metrics"]):
        with suppress(Damaged):
            known = stored.rows(detector, info)
            rows = pd.concat([known, rows[~rows["metric"].isin(known["metric"])]], ignore_index=True)
            metrics, made = sorted({*before["metrics"], *metrics}), [*before["made"], *made]
    behind = {"values": digest_values(values), **stored.made_on(detector, info)}
    info["rows"][detector] = {**behind, "metrics": metrics, "made": made}
    stored.save_rows(detector, rows, info)


def add_seconds(info: Info, kind: str, started: float) -> None:
    """Add the seconds since a moment to a kind of work in a step's record."""
    info["seconds"][kind] = info["seconds"].get(kind, 0.0) + time.monotonic() - started
