"""What is missing of a run: train a step, compute its outputs once, evaluate every detector, go on."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from opencil.cil.learner import Task
from opencil.data.images import Images
from opencil.data.memory import Memory
from opencil.data.precision import reachable
from opencil.data.stream import Step
from opencil.detectors.detector import Detector
from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.checkpoint import BadCheckpoint, Checkpoint
from opencil.engine.device import wait_for
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.engine.loop import Diverged
from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.metric import KEPT, chosen_metrics
from opencil.evaluation.metrics import accuracy
from opencil.evaluation.protocol import Measurement, measure, measure_model
from opencil.nets.model import Model
from opencil.registry import DETECTORS
from opencil.runs import file_formats
from opencil.runs.checkpoints import Checkpoints
from opencil.runs.events import Evaluated, Event, Training
from opencil.runs.failures import without_rows
from opencil.runs.following import training_followed, tuning_followed
from opencil.runs.outputs_cache import OutputsCache
from opencil.runs.provenance import decides_bits
from opencil.runs.run import Run, TrainedStep
from opencil.runs.store import trained_under
from opencil.runs.tuning import tune
from opencil.runs.weights import Stock
from opencil.study.records import name_of
from opencil.study.rows import COLUMNS, Table, measured_metrics, noted, read_tables, write_rows

#: Steps of a run that may be trained and not evaluated before the next one's training waits: their models and
#: outputs are in memory.
AHEAD = 2


class Advance:
    """What is missing of a run, whose folder must be held, see ``opened``: in order, or as two works.

    Nothing that follows a training, neither its heads nor its rows, is read by a later one. So ``trainings``
    and ``follow_ups`` may take turns; None says that one of them waits for the other.
    """

    def __init__(self, run: Run, kept: OutputsCache, checkpoint_seconds: float) -> None:
        self._run, self._kept, self._seconds = run, kept, checkpoint_seconds
        self._problems: dict[str, tuple[int, Exception]] = {}
        self._trained: deque[tuple[Step, TrainedStep | None]] = deque()  # whose follow-up is not done
        self._more = True  # trainings may come

    def in_order(self) -> Iterator[Event]:
        """Train a step, evaluate it, go on to the next."""
        for step in self._run.stream:
            yield from _trained(self._run, step, self._seconds)
            yield from self._follow_up(self._run, step)
        self._tell_problems()

    def trainings(self) -> Generator[Event | None]:
        """Train every step, at most ``AHEAD`` of them before the first is evaluated."""
        device = self._run.setting.images.device
        try:
            for step in self._run.stream:
                while len(self._trained) >= AHEAD:
                    yield None
                trained = yield from _trained(self._run, step, self._seconds)
                self._trained.append((step, trained and trained.apart()))
                wait_for(device)
        finally:
            self._more = False

    def follow_ups(self) -> Generator[Event | None]:
        """Tune and evaluate every step that has been trained, until no more are to come.

        It has its own copies of the models, made on its own stream: the trainings lay theirs out for
        themselves. What they made is let go when the device has done all that read it.
        """
        run = self._run.apart()
        while self._trained or self._more:
            if not self._trained:
                yield None
                continue
            step, trained = self._trained[0]
            if trained is not None:
                run.keep(trained.apart())
            yield from self._follow_up(run, step)
            wait_for(run.setting.images.device)
            self._trained.popleft()
        self._tell_problems()

    def _follow_up(self, run: Run, step: Step) -> Iterator[Event]:
        """Heads and rows that a trained step lacks."""
        missing = run.folder.step(step.number).unmeasured(run.spec, run.info(step.number))
        if "" in missing:
            missing.remove("")
            _measure_model(run, step, self._kept)
        if missing:
            yield from _evaluate(run, step, missing, self._kept, self._seconds, self._problems)

    def _tell_problems(self) -> None:
        if self._problems:
            raise without_rows(self._problems)


def _trained(run: Run, step: Step, checkpoint_seconds: float) -> Generator[Event, None, TrainedStep | None]:
    """Train a step unless it is stored; what is returned is there only if it was not."""
    stored = run.folder.step(step.number)
    if stored.trained:
        run.check_images(step.number)
        stored.checkpoint.unlink(missing_ok=True)  # a kill may have come between the two
        return None
    yield from train_step(run, step, checkpoint_seconds)
    # Where step.json had been lost, rows of the model before are there, which may have been another.
    stored.mend(run.spec.identity)
    return run.trained(step.number)


def train_step(run: Run, step: Step, checkpoint_seconds: float) -> Iterator[Event]:
    """Train and store a step; the run keeps its model, with the outputs that are computed on the way."""
    stored, setting, learner = run.folder.step(step.number), run.setting, run.learner
    started = time.monotonic() - stored.checkpoint_seconds  # as if the training had never stopped
    before = run.trained(step.number - 1) if step.number > 1 else None
    previous, stock = (setting.placed(before.model), before.stock) if before else (None, Stock())
    task = learner.begin(setting, step, run.memory(step.number - 1), previous)
    made_of = run.training_identity(step, before)

    def save(tensors: dict[str, Tensor]) -> None:
        stored.save_checkpoint(tensors, stock, time.monotonic() - started, made_of)

    checkpoints = Checkpoints(checkpoint_seconds, save)
    try:
        tensors = stored.checkpoint_tensors(made_of)
        with training_followed(run, step, previous, tensors), checkpoints.stored_on_leaving():
            resumed = None if tensors is None else Checkpoint.from_tensors(tensors)
            for progress in learner.learn(task, resumed):
                checkpoints.note(task.model, progress, task.ended)
                yield Training(run.spec, step.number, step.steps, progress)
    except BadCheckpoint as error:
        stored.without_checkpoint(error)
        yield from train_step(run, step, checkpoint_seconds)
        return
    # From here on as it will be when it is read again, so that a run that goes on does so with the same.
    try:
        task.model = setting.evaluated(run.loaded(step, task.model.state_dict()))
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise OpenCILError(
            f"{run.spec.cil}, step {step.number}: the trained model does not fit into what blank makes: {why}"
        ) from None
    memory, measured, computed = _remembered_and_measured(run, task)
    info: dict[str, Any] = {
        "run": name_of(*run.spec.identity),
        "config": trained_under(run.spec.record()),
        "step": step.number,
        "steps": step.steps,
        "classes": step.seen,
        "seconds": {"training": time.monotonic() - started},
        "images": run.stream.train.fingerprint,
        "before": before.weights if before else None,
        "precision": setting.arithmetic.on(setting.images.device),
        "computed_with": decides_bits(setting.images.device),
        "made": {"": run.made()},
        **learner.notes(task),
    }
    stock = stored.save(
        task.model.state_dict(),
        stock,
        memory,
        noted(rows_of(run, step, "", measured), run.spec.metrics_of_model),
        info,
    )
    run.keep(TrainedStep(step, task.model, info, stock, computed))
    run.remember(step, memory)


def bytes_kept(model: Model, exemplars: int, images: Images) -> list[Measurement]:
    """What a method keeps after a step: its model's tensors, and the exemplars' pixels, three bytes each.

    Of a model from elsewhere the tensors that it has, though a run stores none; of a function none are known.
    """
    tensors = [t for t in nn.Module.state_dict(model).values() if isinstance(t, Tensor)]
    of_model = sum({t.data_ptr(): t.numel() * t.element_size() for t in tensors}.values())
    counts = of_model if tensors else None, exemplars * 3 * images.side**2
    named = zip(KEPT, counts, strict=True)
    return [Measurement("", name, count) for name, count in named if count is not None]


def _remembered_and_measured(
    run: Run, task: Task, memory: Memory | None = None
) -> tuple[Memory, list[Measurement], list[Outputs]]:
    """The memory after a step, unless it is there, what its model comes to, and the outputs that it took."""
    setting, learner, step = run.setting, run.learner, task.step
    if learner.remembers:
        task.computed = forward(task.model, setting.images, setting.transform, task.train_plus)
    memory = learner.remember(task) if memory is None else memory
    test = forward(task.model, setting.test_images, setting.transform, step.test)
    if not torch.isfinite(test.logits).all():
        raise Diverged(f"{run.spec.cil}, step {step.number}: the trained model's logits are not finite")
    assert test.labels is not None
    others = learner.other_predictions(task, memory, test)
    found = task_accuracies({"accuracy": test.logits.argmax(dim=1), **others}, test.labels, step)
    shifted = {
        name: forward(task.model, images, setting.transform, step.test)
        for name, images in run.shifted.items()
    }
    # Those of the test images are there already, by task.
    more = measure_model(test, shifted, _tasks(test, step), chosen_metrics(run.spec.metrics))
    found += [measured for measured in more if (measured.ood, measured.metric) != ("", "accuracy")]
    # One that sees old images again, and chooses none to remember, has kept them all.
    kept = task.train_plus if learner.revisits and not learner.remembers else memory.indices
    found += bytes_kept(task.model, len(kept), setting.images)
    return memory, found, [test, *shifted.values(), *([] if task.computed is None else [task.computed])]


def _evaluate(
    run: Run,
    step: Step,
    names: list[str],
    kept: OutputsCache,
    checkpoint_seconds: float,
    problems: dict[str, tuple[int, Exception]],
) -> Iterator[Event]:
    """Rows of some detectors on a step; why one has none is added to ``problems``, if it is the first."""
    trained, stored = run.trained(step.number), run.folder.step(step.number)
    detectors: dict[str, Detector] = {n: DETECTORS.create(n, **run.spec.detectors[n]) for n in names}
    with run.timed(step, "tuning"):
        for name, error in (yield from _tune(run, trained, detectors, checkpoint_seconds)).items():
            problems.setdefault(name, (step.number, error))
            del detectors[name]
    # Before the rows: there are none without it, and what is noted of a detector without rows is not read.
    run.note_made(step, detectors)
    with run.timed(step, "evaluation"):
        for name, rows in _detect(run, trained, detectors, kept):
            if isinstance(rows, Exception):
                problems.setdefault(name, (step.number, rows))
                continue
            _add_rows(stored.detector_rows(name), rows, run.spec.metrics_of_detectors, trained.weights)
            yield Evaluated(run.spec, step.number, step.steps, name)
    trained.outputs.clear()  # the model is needed for the next step, they are not


def _tune(
    run: Run, trained: TrainedStep, detectors: Mapping[str, Detector], checkpoint_seconds: float
) -> Generator[Event, None, dict[str, Exception]]:
    """Give the fine-tuning detectors their heads; what is returned are the errors of those without one."""
    tuners = {name: detector for name, detector in detectors.items() if isinstance(detector, Tuner)}
    if not tuners:
        return {}
    step, stored = trained.step, run.folder.step(trained.step.number)
    try:
        source = run.source(step, run.setting.placed(trained.model))
    except BadInput as refusal:
        return dict.fromkeys(tuners, refusal)
    followed = partial(tuning_followed, run, step, trained.model)
    tuning = tune(tuners, source, trained.weights, stored, checkpoint_seconds, followed)
    while True:
        try:
            progress = next(tuning)
        except StopIteration as end:
            problems: dict[str, Exception] = end.value
            return problems
        yield Training(run.spec, step.number, step.steps, progress)


def _add_rows(table: Path, rows: pd.DataFrame, asked: list[str], model: str) -> None:
    """Store a table of rows; of one that is there already, only metrics that it lacks are added."""
    known = set(asked)
    if table.exists():
        before = read_tables([Table(table)], file_formats.damaged)
        there = measured_metrics(Table(table), file_formats.damaged)
        rows = pd.concat([before, rows[rows["metric"].isin(known - there)]], ignore_index=True)
        known |= there
    write_rows(table, noted(rows, known if asked else (), model))


def _measure_model(run: Run, step: Step, kept: OutputsCache) -> None:
    """Add the metrics of a stored step's model that are asked for and missing; all where it has no rows."""
    trained, stored = run.trained(step.number), run.folder.step(step.number)
    if stored.model_rows.exists():
        outputs = _outputs(run, trained, kept)
        test = outputs(run.stream.test, step.test)
        shifted = {name: outputs(images, step.test) for name, images in run.shifted.items()}
        found = measure_model(test, shifted, _tasks(test, step), run.spec.metrics_of_model)
    else:
        before = run.setting.placed(run.apart().trained(step.number - 1).model) if step.number > 1 else None
        task = run.learner.begin(run.setting, step, run.memory(step.number - 1), before)
        task.model = run.setting.evaluated(trained.model)
        _, found, _ = _remembered_and_measured(run, task, run.memory(step.number))
    run.note_made(step, [""])
    rows = rows_of(run, step, "", found)
    _add_rows(stored.model_rows, rows, run.spec.metrics_of_model, trained.weights)


def _tasks(outputs: Outputs, step: Step) -> Tensor:
    """The task of each class seen, where the outputs are."""
    return torch.tensor(step.task_of_class, device=outputs.logits.device)


def _outputs(run: Run, trained: TrainedStep, kept: OutputsCache) -> Callable[[Images, Tensor], Outputs]:
    """A function that gives the model's outputs of some images, computed at most once."""
    model = run.setting.evaluated(trained.model)

    def outputs(images: Images, indices: Tensor) -> Outputs:
        # The method's values decide with the weights what its model computes.
        identity = f"{trained.weights} {run.spec.cil} {run.spec.values}"
        at_hand = (computed.of(images, indices) for computed in trained.outputs)
        computed = next((outputs for outputs in at_hand if outputs is not None), None)
        found = kept.outputs(identity, Inputs(model, images, run.data.transform, indices), computed)
        if computed is None and images is run.stream.train:  # parts of them may be asked for next
            trained.outputs.append(found)
        return found

    return outputs


def _detect(
    run: Run, trained: TrainedStep, detectors: Mapping[str, Detector], kept: OutputsCache
) -> Iterator[tuple[str, pd.DataFrame | Exception]]:
    """Rows of each detector on a step's model, as they are found, or why it has none."""
    step, spec, stream = trained.step, run.spec, run.stream
    outputs, names = _outputs(run, trained, kept), chosen_metrics(spec.metrics)
    test = outputs(stream.test, step.test)
    ood = {
        name: outputs(o.images, spec.ood_seen(name, len(o.images), step)) for name, o in run.data.ood.items()
    }
    shifted = {name: outputs(images, step.test) for name, images in run.shifted.items()}
    of_setup = cache(lambda which: run.of_setup(step, which, partial(outputs, stream.train)))
    tasks = _tasks(test, step)
    for name, detector in detectors.items():
        try:
            learned_from = None if detector.ready else of_setup(detector.set_up_on)
            memory = of_setup("memory") if detector.by_task else None
            found = measure(detector, learned_from, test, ood, tasks, shifted, names, memory)
            yield name, rows_of(run, step, name, found)
        except Exception as error:  # one detector's trouble is not the others'
            yield name, error


def rows_of(run: Run, step: Step, detector: str, found: list[Measurement]) -> pd.DataFrame:
    """Rows of measurements; ``detector`` is empty where they are of the CIL model itself."""
    spec = run.spec
    distance = {"": "", **run.data.roles}
    head = (spec.benchmark.name, spec.classes_per_step, spec.cil, spec.seeds.run, step.number, detector)
    return pd.DataFrame(
        [(*head, m.ood, distance[m.ood], m.task, m.metric, m.value) for m in found], columns=COLUMNS
    )


def task_accuracies(predicted: Mapping[str, Tensor], labels: Tensor, step: Step) -> list[Measurement]:
    """Accuracies by metric, on all seen classes (task 0) and each step's: a row of the accuracy matrix."""
    found, labels = [], reachable(labels)
    for metric, guess in ((name, reachable(guess)) for name, guess in predicted.items()):
        found.append(Measurement("", metric, accuracy(guess, labels)))
        for task, of_task in enumerate(step.tasks, start=1):
            rows = (labels >= of_task.start) & (labels < of_task.stop)
            found.append(Measurement("", metric, accuracy(guess[rows], labels[rows]), task))
    return found
