"""The order of work: train a step, compute its outputs once, evaluate every detector, go on."""

import hashlib
import platform
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opencil._version import __version__
from opencil.config import Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.data.stream import Step
from opencil.detectors.detector import Detector
from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.checkpoint import BadCheckpoint, Checkpoint
from opencil.engine.device import resolve_device
from opencil.engine.forward import Outputs
from opencil.engine.loop import Diverged, Progress
from opencil.errors import BadInput, OpenCILError
from opencil.evaluation.metrics import accuracy
from opencil.evaluation.protocol import Measurement
from opencil.nets.model import Model
from opencil.registry import DETECTORS
from opencil.runs import files
from opencil.runs.cache import OutputsCache
from opencil.runs.evaluation import Evaluation
from opencil.runs.loading import describe_data, load
from opencil.runs.plan import RunSpec, plan
from opencil.runs.store import RunFolder
from opencil.runs.stored import StoredRun
from opencil.runs.tuning import tune
from opencil.study.rows import write_rows
from opencil.validation import parse_size


@dataclass(frozen=True)
class Event:
    """Something happened in a run."""

    run: RunSpec


@dataclass(frozen=True)
class Training(Event):
    """One more training iteration of a step is done."""

    step: int
    steps: int
    progress: Progress


@dataclass(frozen=True)
class Evaluated(Event):
    """A detector's rows of a step are stored."""

    step: int
    steps: int
    detector: str


@dataclass(frozen=True)
class Finished(Event):
    """A run is complete; ``already`` says that nothing was left to do."""

    already: bool


@dataclass(frozen=True)
class Failed(Event):
    """A run stopped with an error; what it had stored stays, and other runs go on."""

    error: OpenCILError


def execute(config: Config) -> Iterator[Event]:
    """Do all that a config asks for and is not done yet, yielding events as it happens.

    ``place.pack`` runs take turns, an iteration each; on a GPU each has a stream of its own.
    """
    device = resolve_device(config.place.device)
    root = config.place.data_root
    if root is not None and not Path(root).is_dir():
        raise BadInput(f"place.data_root = {root!r} is not allowed: there is no such folder")
    data = cache(lambda: load(config))  # loaded when the first run needs it
    if config.benchmark.transform.computes:  # or now, since the runs' records hold the computed numbers
        config = replace(config, benchmark=replace(config.benchmark, transform=data().transform))
    specs = [(spec, RunFolder(Path(config.place.runs) / spec.folder)) for spec in plan(config)]
    for spec, folder in specs:
        folder.check(spec)  # all of them, before anything runs

    @cache
    def prepared() -> tuple[BenchmarkData, dict[str, Any]]:
        loaded = data()
        for spec, folder in specs:  # a run whose turn comes in hours is known of now, to those who watch
            with suppress(OSError):  # it fails when its turn comes, and alone
                folder.announce(spec, environment(device))
        return loaded, describe_data(config, loaded)

    outputs = OutputsCache(config.place.outputs_folder, parse_size(config.place.outputs_limit))
    outputs.trim()
    waiting = iter(specs)
    lanes: list[_Lane] = []
    # Whoever leaves in the middle frees every run at once, not when Python gets round to it.
    with ExitStack() as leaving:
        while True:
            free = config.place.pack - len(lanes)
            for spec, folder in islice(waiting, free):
                lanes.append(_Lane(_advance(spec, folder, config.place, device, prepared, outputs), device))
                leaving.callback(lanes[-1].close)
            if not lanes:
                return
            for lane in list(lanes):
                event = lane.next()
                if event is None:
                    lanes.remove(lane)
                else:
                    yield event


def _advance(
    spec: RunSpec,
    folder: RunFolder,
    place: PlaceConfig,
    device: torch.device,
    prepared: Callable[[], tuple[BenchmarkData, dict[str, Any]]],
    outputs: OutputsCache,
) -> Generator[Event, None, None]:
    """One run from where it is to its end; ``prepared`` gives the data, and what to note about them."""
    try:
        if folder.finished(spec):
            yield Finished(spec, already=True)
            return
    except OpenCILError as error:
        yield Failed(spec, error)
        return
    loaded, read = prepared()  # what is wrong with the data is wrong for every run: not caught here
    try:
        with folder.opened(spec):
            folder.note(environment(device))
            files.write_json(folder.path / "data.json", read)
            try:
                yield from _Run(spec, folder, loaded, outputs, place.checkpoint_seconds).advance()
            finally:
                if device.type == "cuda":  # of the whole process: packed runs share it
                    with suppress(OSError, RuntimeError):  # what ended the run is to be told
                        peak = torch.cuda.max_memory_allocated(device)
                        folder.note(environment(device), round(peak / 2**20))
    except OpenCILError as error:
        yield Failed(spec, error)
    except (OSError, RuntimeError) as error:  # a full disk, a GPU's memory: the other runs can go on
        yield Failed(spec, OpenCILError(f"{type(error).__name__}: {error}"))
    else:
        yield Finished(spec, already=False)


class _Lane:
    """A run that takes turns with others."""

    def __init__(self, events: Generator[Event, None, None], device: torch.device) -> None:
        self._events = events
        # A captured step must not run on the default stream, so a single run has a stream of its own too.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def next(self) -> Event | None:
        """The run's next event; None at its end."""
        if self._stream is None:
            return next(self._events, None)
        with torch.cuda.stream(self._stream):
            return next(self._events, None)

    def close(self) -> None:
        """End the run where it stands; what it has stored stays. (Nothing is computed, on no stream.)"""
        self._events.close()


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and device, for a run's record."""
    return {
        "opencil": __version__,
        "source": source_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


@cache
def source_digest() -> str:
    """A digest of the package's source: what two runs have in common that the same code made."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class _Run:
    """One run in progress."""

    def __init__(
        self,
        spec: RunSpec,
        folder: RunFolder,
        data: BenchmarkData,
        outputs: OutputsCache,
        checkpoint_seconds: float,
    ) -> None:
        self.spec, self.folder, self.checkpoint_seconds = spec, folder, checkpoint_seconds
        self.stored = StoredRun(spec, folder, data)
        self.stream, self.learner, self.setting = self.stored.stream, self.stored.learner, self.stored.setting
        self.evaluation = Evaluation(spec, data, self.stream, outputs)
        self.test: Outputs | None = None  # of the step just trained
        self.problems: dict[str, str] = {}  # of detectors that could not be evaluated, the first of each

    def advance(self) -> Iterator[Event]:
        """Train and evaluate what is missing, step by step."""
        for step in self.stream:
            stored = self.folder.step(step.number)
            missing = [name for name in self.spec.detectors if not stored.detector_rows(name).exists()]
            if stored.trained:
                self.stored.check_images(step.number)
                stored.checkpoint.unlink(missing_ok=True)  # a kill may have come between the two
                if not missing:
                    continue
            else:
                self.test = yield from self._train(step)
            yield from self._evaluate(step, missing)
            self.test = None
        if self.problems:
            reasons: dict[str, list[str]] = {}
            for name, why in self.problems.items():
                reasons.setdefault(why, []).append(name)
            raise OpenCILError(
                "; ".join(f"{', '.join(names)} has no rows: {why}" for why, names in reasons.items())
            )

    def _train(self, step: Step) -> Generator[Event, None, Outputs]:
        """Train and store a step; the outputs of its test images are handed on."""
        stored = self.folder.step(step.number)
        saved = time.monotonic()
        started = saved - stored.checkpoint_seconds  # as if the training had never stopped
        previous = self.stored.model(step.number - 1) if step.number > 1 else None
        task = self.learner.begin(self.setting, step, self.stored.memory(step.number - 1), previous)
        try:
            checkpoint = None
            if stored.checkpoint.exists():
                checkpoint = Checkpoint.from_tensors(files.read_tensors(stored.checkpoint))
            for progress in self.learner.learn(task, checkpoint):
                if progress.epoch_ends and time.monotonic() - saved >= self.checkpoint_seconds:
                    taken = Checkpoint.take(task.model, progress, task.ended)
                    if taken.finite:  # else the last good one stays
                        stored.save_checkpoint(taken.tensors(), time.monotonic() - started)
                    saved = time.monotonic()
                yield Training(self.spec, step.number, step.steps, progress)
        except BadCheckpoint as error:
            raise files.damaged(stored.checkpoint, error) from None
        task.model = self.setting.settled(task.model)
        memory = self.learner.remember(task)
        test = self.evaluation.outputs_of_test(task.model, step)
        if not torch.isfinite(test.logits).all():
            raise Diverged(f"{self.spec.cil}, step {step.number}: the trained model's logits are not finite")
        assert test.labels is not None
        others = self.learner.other_predictions(task, memory, test)
        found = task_accuracies({"accuracy": test.logits.argmax(dim=1), **others}, test.labels, step)
        seconds = time.monotonic() - started
        stored.save(
            weights=task.model.state_dict(),
            memory=memory,
            accuracy=self.evaluation.rows(step, "", found),
            info={
                "step": step.number,
                "steps": step.steps,
                "classes": step.seen,
                "seconds": {"training": seconds},
                "images": self.stream.train.fingerprint,
                "precision": self.setting.arithmetic.on(self.setting.images.device),
            },
        )
        return test

    def _evaluate(self, step: Step, names: list[str]) -> Iterator[Event]:
        if not names:
            return
        model, stored = self.stored.model(step.number), self.folder.step(step.number)
        weights = str(stored.info()["weights_sha256"])
        detectors: dict[str, Detector] = {n: DETECTORS.create(n, **self.spec.detectors[n]) for n in names}
        with stored.timed("tuning"):
            yield from self._tune(step, model, weights, detectors)
        with stored.timed("evaluation"):
            model, setup = self.setting.settled(model), partial(self.stored.setup, step)
            for name, rows in self.evaluation.detect(model, weights, step, setup, detectors, self.test):
                if isinstance(rows, BadInput):
                    self.problems.setdefault(name, f"step {step.number}: {rows}")
                    continue
                write_rows(stored.detector_rows(name), rows)
                yield Evaluated(self.spec, step.number, step.steps, name)

    def _tune(
        self, step: Step, model: Model, weights: str, detectors: dict[str, Detector]
    ) -> Iterator[Event]:
        """Give the fine-tuning detectors their heads; those that cannot have one are taken out."""
        tuners = {name: detector for name, detector in detectors.items() if isinstance(detector, Tuner)}
        if not tuners:
            return
        stored = self.folder.step(step.number)
        problems: dict[str, OpenCILError] = {}
        try:
            source = self.stored.source(step, model)
        except BadInput as refusal:
            problems = dict.fromkeys(tuners, refusal)
        else:
            tuning = tune(tuners, source, weights, stored, self.checkpoint_seconds)
            while True:
                try:
                    progress = next(tuning)
                except StopIteration as end:
                    problems = end.value
                    break
                yield Training(self.spec, step.number, step.steps, progress)
        for name, error in problems.items():
            self.problems.setdefault(name, f"step {step.number}: {error}")
            del detectors[name]


def task_accuracies(predicted: Mapping[str, Tensor], labels: Tensor, step: Step) -> list[Measurement]:
    """Accuracies by metric, on all seen classes (task 0) and each step's: a row of the accuracy matrix."""
    found = []
    for metric, guess in predicted.items():
        found.append(Measurement("", metric, accuracy(guess, labels)))
        for task, of_task in enumerate(step.tasks, start=1):
            rows = (labels >= of_task.start) & (labels < of_task.stop)
            found.append(Measurement("", metric, accuracy(guess[rows], labels[rows]), task))
    return found
