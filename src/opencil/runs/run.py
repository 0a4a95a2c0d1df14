"""One run: what is asked, where it lies, its data, and the models, memories and detectors of its steps."""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from opencil.cil.learner import Setting
from opencil.config import BenchmarkConfig, Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.detectors.detector import Detector, Setup
from opencil.detectors.finetune.tuner import Tuner
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import Inputs, Outputs, forward
from opencil.errors import BadInput, OpenCILError
from opencil.nets.model import Model
from opencil.plugins import require
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS
from opencil.runs import file_formats
from opencil.runs.foreign import Foreign, foreign_learner
from opencil.runs.loading import load
from opencil.runs.plan import RunSpec, Seeds
from opencil.runs.provenance import made_now
from opencil.runs.store import ENVIRONMENT, RunFolder, StepFolder, read_rows, trained_under
from opencil.runs.tuning import read_head
from opencil.runs.weights import Stock
from opencil.validation import build


def open_run(path: str | Path, data_root: str | None = None, device: str = "cpu") -> "Run":
    """The run in a folder such as ``runs/digits/k2/icarl/seed0``, with its data loaded on a device."""
    return opened_run(path, PlaceConfig(data_root=data_root, device=device))


def opened_run(path: str | Path, place: PlaceConfig, data: BenchmarkData | None = None) -> "Run":
    """The run in a folder with its data, which are loaded unless they are there."""
    folder = RunFolder(Path(path))
    record = folder.stored()
    if not record or len(record["cil"]) != 1:
        raise BadInput(f"there is no run in {path}: a folder such as runs/digits/k2/icarl/seed0 is needed")
    # It says whose folder it is: a config may be another's.
    folder.record(ENVIRONMENT, folder.identity(record))
    of_model = [registry.kind for registry in (LEARNERS, BACKBONES, DATASETS)]
    require(record.get("plugins"), of_model, f"run {path} needs what is not known here")
    ((cil, values),) = record["cil"].items()
    seeds = build(Seeds, record["seed"], where="seed")
    spec = RunSpec(
        benchmark=build(BenchmarkConfig, record["benchmark"], where="benchmark"),
        cil=cil,
        values=values,
        training=build(Arithmetic, record.get("training", {}), where="training"),
        seeds=seeds,
        detectors=record["detector"],
        foreign=foreign_learner(values, seeds.class_order) if record.get("foreign") else None,
    )
    config = Config(spec.benchmark, record["cil"], record["detector"], spec.training, place=place)
    run = Run(spec, folder, data or load(config))
    for step in run.trained_steps:
        run.check_images(step.number)
    return run


@dataclass(frozen=True)
class TrainedStep:
    """A stored step whose model is in memory too, with what its ``step.json`` says and its files hold.

    ``outputs`` are those of the model that have been computed already.
    """

    step: Step
    model: Model
    info: dict[str, Any]
    stock: Stock
    outputs: list[Outputs] = field(default_factory=list)

    def apart(self) -> "TrainedStep":
        """The same with a copy of the model, to be laid out in memory otherwise than this one."""
        model = copy.deepcopy(self.model)
        return replace(self, model=model, outputs=[outputs.by(model) for outputs in self.outputs])

    @property
    def weights(self) -> str:
        """Checksum of the model's weights."""
        return str(self.info["weights_sha256"])


class Run:
    """One run, under way or opened again: ``spec`` says what is asked, ``folder`` where it lies.

    ``stream`` has its steps, counted from 1. What a step left (model, memory, notes) is in memory just after
    its training; else it is read from the folder, once. ``opencil.runs.advance`` trains and evaluates what is
    missing.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, data: BenchmarkData) -> None:
        self.spec, self.folder, self.data = spec, folder, data
        order = spec.values.get("class_order") if spec.foreign else None
        self.stream = data.stream(spec.classes_per_step, spec.seeds.class_order, order)
        #: The shifted test images with the stream's labels: a step's are at the indices of its test images.
        self.shifted = {name: images.labelled_as(self.stream.test) for name, images in data.shifted.items()}
        self.learner = spec.learner()
        self.setting = Setting(
            images=self.stream.train,
            test_images=self.stream.test,
            transform=data.transform,
            backbone=spec.benchmark.backbone,
            batch_size=spec.benchmark.batch_size,
            initialisation_seed=spec.seeds.initialisation,
            data_seed=spec.seeds.data_order,
            arithmetic=spec.training,
        )
        self._infos: dict[int, dict[str, Any]] = {}
        self._memories: dict[int, Memory] = {0: Memory(spec.benchmark.memory)}
        self._latest: TrainedStep | None = None

    def __repr__(self) -> str:
        steps = f"{len(self.trained_steps)} of {len(self.stream)} steps trained"
        return f"Run({self.spec}: {steps}, in {self.folder.path})"

    @property
    def trained_steps(self) -> list[Step]:
        """The steps whose models are stored."""
        return [step for step in self.stream if self.folder.step(step.number).trained]

    def info(self, number: int) -> dict[str, Any]:
        """What is noted of a stored step: see ``StepFolder.info``."""
        if number not in self._infos:
            self._infos[number] = self._stored(number).info(self.spec.identity, self.spec.record())
        return self._infos[number]

    def check_images(self, number: int) -> None:
        """Refuse other images than a step was trained on, and another model than was given for it.

        The memory is indices into these images.
        """
        if self.info(number).get("images") != self.stream.train.fingerprint:
            raise OpenCILError(
                f"run {self.spec} was trained on other images than those of {self.stream.train.name!r} now: "
                f"bring them back, or delete {self.folder.path} to begin anew"
            )
        if isinstance(self.learner, Foreign) and self.learner.models is not None:
            self.trained(number)

    def model(self, number: int) -> Model:
        """θ of a stored step, a copy to do anything with."""
        return self.setting.evaluated(copy.deepcopy(self.trained(number).model))

    def memory(self, number: int) -> Memory:
        """The memory after a stored step; empty before the first."""
        if number not in self._memories:
            stored = self._stored(number)
            memory = stored.memory(self.spec.benchmark.memory, self.info(number).get("memory_sha256"))
            labels = self.stream.train.labels.cpu()
            for label, indices in enumerate(memory.per_class):
                known = (indices >= 0) & (indices < len(labels))
                if not known.all() or (labels[indices] != label).any():
                    raise file_formats.damaged(stored.memory_file, f"images of class {label} in it are not")
            self._memories[number] = memory
        return self._memories[number]

    def rows(self) -> pd.DataFrame:
        """The rows of all that has been evaluated so far."""
        return read_rows(self.folder.path)

    def trained(self, number: int) -> TrainedStep:
        """A stored step with its model: the latest one asked for, or trained, is kept in memory."""
        if self._latest is None or self._latest.step.number != number:
            stored, step = self._stored(number), self.stream[number - 1]
            weights, stock = stored.weights(str(self.info(number).get("weights_sha256")))
            try:
                model = self.loaded(step, weights)
            except RuntimeError as error:
                raise file_formats.damaged(stored.model, error) from None
            self._latest = TrainedStep(step, model, self.info(number), stock)
        return self._latest

    def loaded(self, step: Step, weights: dict[str, Tensor]) -> Model:
        """The model that a step's weights, as they are stored, are of."""
        model = self.learner.load(self.setting.without_weights(), step)
        model.load_state_dict(weights, strict=True)
        return model

    def keep(self, trained: TrainedStep) -> None:
        """Take a step that has just been stored, so that it need not be read."""
        self._latest, self._infos[trained.step.number] = trained, trained.info

    def remember(self, step: Step, memory: Memory) -> None:
        """Take the memory after a step that has just been stored."""
        self._memories[step.number] = memory

    def apart(self) -> "Run":
        """The same run with a latest model of its own: two works on it do not take it from each other."""
        other = copy.copy(self)
        other._latest = None
        return other

    def training_identity(self, step: Step, before: TrainedStep | None) -> str:
        """A digest of all that decides a step's training, for its checkpoints."""
        record = trained_under(self.spec.record())
        parts = [record, step.number, self.stream.train.fingerprint, before.weights if before else ""]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def expected_work(self) -> float:
        """What its trainings that are still to come will take, as ``Learner.effort`` counts it."""
        work, memory = 0.0, Memory(self.spec.benchmark.memory)
        for step in self.stream:
            if not self.folder.step(step.number).trained:
                images = len(step.train)
                with suppress(Exception):  # a method of one's own may count on exemplars there
                    images = len(self.learner.training_set(self.setting, step, memory))
                replayed = memory.size if step.old and self.learner.remembers else 0
                work += self.learner.effort(first=not step.old) * (images + replayed)
        return work

    def made(self, *detectors: str) -> dict[str, Any]:
        """What makes rows now: those of the model, or of some detectors."""
        return made_now(self.stream.test.device, self.spec.training, self.spec.plugins(*detectors))

    def note_made(self, step: Step, names: Iterable[str]) -> None:
        """Note what makes the rows of some detectors, or the model's own (''), before they are stored.

        Where there are rows already, metrics are added to them, and what made those is noted beside it.
        """
        info, stored = self.info(step.number), self._stored(step.number)
        for name in names:
            made = self.made(*[name] * bool(name))
            if (stored.detector_rows(name) if name else stored.model_rows).exists():
                info.setdefault("added", {}).setdefault(name, []).append(made)
            else:
                info.setdefault("made", {})[name] = made
                info.get("added", {}).pop(name, None)
        stored.save_info(info)

    @contextmanager
    def timed(self, step: Step, what: str) -> Iterator[None]:
        """Note how long a block's work on a stored step takes, in addition to what it took before."""
        started = time.monotonic()
        try:
            yield
        finally:  # also when it is left early: the work that is done stays done
            seconds = self.info(step.number).setdefault("seconds", {})
            seconds[what] = seconds.get(what, 0.0) + time.monotonic() - started
            self._stored(step.number).save_info(self.info(step.number))

    def _stored(self, number: int) -> StepFolder:
        if not 1 <= number <= len(self.stream) or not self.folder.step(number).trained:
            stored = ", ".join(str(step.number) for step in self.trained_steps) or "none"
            raise BadInput(f"run {self.spec} has no step {number}: stored are {stored}")
        return self.folder.step(number)

    def train_plus(self, step: Step) -> Tensor:
        """Indices of T_t^train+, the images that a step learns from."""
        return self.learner.training_set(self.setting, step, self.memory(step.number - 1))

    def setup(self, step: Step, which: Setup) -> Tensor:
        """Indices of the images that a detector is set up on: the memory after the step, or T_t^train+.

        A method that keeps no memory has train+ alone.
        """
        if which == "memory" and len(remembered := self.memory(step.number).indices):
            return remembered
        return self.train_plus(step)

    def of_setup(self, step: Step, which: Setup, outputs: Callable[[Tensor], Outputs]) -> Outputs:
        """Outputs of the images that a detector is set up on, where ``outputs`` gives those of some.

        Out of those of train+, which a model that has just been trained has: the last bits of a network's
        outputs depend on the batch, and must not on whether the run was interrupted.
        """
        chosen = self.setup(step, which)
        found = outputs(self.train_plus(step)).of(self.stream.train, chosen)
        return outputs(chosen) if found is None else found

    def source(self, step: Step, model: Model) -> ViewSource:
        """What the extra heads of a step's model are tuned on."""
        images, chosen = self.stream.train, self.train_plus(step)
        labels = images.labels.cpu()[chosen]
        old = labels < step.old
        if step.old and not old.any():
            raise BadInput(
                f"{self.spec.cil} keeps no images of old classes, which fine-tuning detectors draw on from "
                "step 2 on: choose post-hoc detectors, or a CIL method with a memory"
            )
        return ViewSource(
            Inputs(model, images, self.data.transform, chosen),
            labels,
            old,
            seed=(self.spec.seeds.data_order, "tune", step.number),
            arithmetic=self.spec.training,
            tasks=torch.tensor(step.task_of_class),
        )

    def detector(self, name: str, number: int) -> Detector:
        """A detector of the run, ready to score a step's outputs: set up, or with its stored head."""
        if name not in self.spec.detectors:
            known = ", ".join(self.spec.detectors) or "none"
            raise BadInput(f"detector {name!r} is not one of the run's: those are {known}")
        if name.partition("@")[0] not in DETECTORS.names():
            require(self.folder.stored().get("plugins"), [DETECTORS.kind], f"{name} is not known here")
        detector: Detector = DETECTORS.create(name, **self.spec.detectors[name])
        model, step, stored = self.model(number), self.stream[number - 1], self.folder.step(number)
        if isinstance(detector, Tuner):
            if not stored.head(name).exists():
                raise BadInput(f"{name} has no head at step {number}: 'opencil run' makes it")
            weights = self.trained(number).weights
            read_head(detector, self.source(step, model), stored, weights)
        if not detector.ready:
            outputs = partial(forward, model, self.stream.train, self.data.transform)

            def told(which: Setup) -> Outputs:
                found = self.of_setup(step, which, outputs)
                return replace(found, tasks=torch.tensor(step.task_of_class, device=found.logits.device))

            detector.complete(told(detector.set_up_on), told("memory") if detector.by_task else None)
        return detector
