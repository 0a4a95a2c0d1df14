"""A run with its data: the models, memories and detectors of its steps, read from its folder or just made."""

import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from opencil.cil.learner import Setting
from opencil.config import BenchmarkConfig, Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.data.images import Images
from opencil.data.memory import Memory
from opencil.data.roles import FUTURE
from opencil.data.stream import Step
from opencil.detectors.detector import CarryingDetector, Detector, Setup
from opencil.detectors.finetune.tuner import Tuner
from opencil.detectors.finetune.views import ViewSource
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import Inputs, Outputs, Statistics, forward
from opencil.engine.seeding import generator
from opencil.errors import BadInput, OpenCILError, one_line
from opencil.evaluation.evaluate import AnyImages, compute_outputs
from opencil.files import Damaged, checksum, damaged
from opencil.nets.create import create_backbone, without_weights
from opencil.nets.features import StoredFeatures
from opencil.nets.model import Model
from opencil.plugins import require
from opencil.registry import DETECTORS, LEARNERS
from opencil.runs.features import finish
from opencil.runs.foreign import Foreign
from opencil.runs.loading import load
from opencil.runs.reading import place_name
from opencil.runs.spec import RunSpec, Seeds, training_values
from opencil.runs.store import Info, RunFolder, StepFolder, bytes_of, check_record, digest_values
from opencil.runs.tuning import read_head
from opencil.validation import build


def read_spec(path: str | Path) -> tuple[RunSpec, RunFolder]:
    """Return the config of the run in a folder, and the folder."""
    folder = RunFolder(Path(path))
    if not (record := folder.stored()):
        raise BadInput(f"there is no run in {path}: a folder such as runs/digits/k2/icarl/seed0 is expected")
    ((cil, values),) = record["cil"].items()
    if not record.get("foreign"):
        require(LEARNERS, cil, record.get("plugins", {}))
    seeds = build(Seeds, record["seed"], where="seed")
    spec = RunSpec(
        benchmark=build(BenchmarkConfig, record["benchmark"], where="benchmark"),
        cil=cil,
        values=values,
        training=build(Arithmetic, record["training"], where="training"),
        seeds=seeds,
        detectors=record["detector"],
        foreign=Foreign() if record.get("foreign") else None,
    )
    if place_name(folder.path.absolute()) not in ("", str(spec)):
        raise damaged(folder.config, f"it is of run {spec}")
    return spec, folder


def open_run(
    path: str | Path,
    data_root: str | None = None,
    device: str = "cpu",
    data: BenchmarkData | None = None,
    ood: bool = True,
) -> "Run":
    """Open the run in a folder, as ``runs/digits/k2/icarl/seed0``; load its data unless they are given.

    Without ``ood``, only the ID images are loaded: no OOD set and no shifted set.
    """
    spec, folder = read_spec(path)
    place = PlaceConfig(data_root=data_root, device=device)
    run = Run(spec, folder, data or load(Config(spec.benchmark, {}, {}, place=place), ood))
    for step in run.trained_steps:
        run.check_images(step.number)
    for step in run.trained_steps:
        stored, info = folder.step(step.number), run.info(step.number)
        for name in [name for name in stored.lacking(spec, info) if name in info["rows"]]:
            if (table := stored.path / stored.table(name)).exists():
                raise damaged(table, "it is damaged, or of another model, head or values")
    return run


class Run:
    """One run, in progress or opened again: ``spec`` is its config, ``folder`` its files.

    ``stream`` has its steps, counted from 1, and labels in the order of learning, as logits are; ``data`` has
    the dataset's own labels. ``predict`` and ``classes`` return names, which are the same for both.

    The model and memory of the latest step are kept in memory; others are read from the folder.
    ``opencil.runs.run.run`` trains and evaluates missing steps.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, data: BenchmarkData) -> None:
        self.spec, self.folder, self.learner = spec, folder, spec.learner()
        if data.features is not None and not self.learner.needs_images:
            data = finish(data.features())
        self.data = data
        order = spec.values.get("class_order") if spec.foreign else None
        self.stream = data.stream(spec.classes_per_step, spec.seeds.class_order if order is None else order)
        #: The shifted test images with the stream's labels: a step's are at the indices of its test images.
        self.shifted = {
            name: replace(images, labels=self.stream.test.labels, classes=self.stream.test.classes)
            for name, images in data.shifted.items()
        }
        self.setting = Setting(
            images=self.stream.train,
            test_images=self.stream.test,
            transform=data.transform,
            backbone=data.backbone or spec.benchmark.backbone,
            batch_size=spec.benchmark.batch_size,
            initialisation_seed=spec.seeds.initialisation,
            data_seed=spec.seeds.data_order,
            arithmetic=spec.training,
        )
        self.training_digest = digest_values(training_values(spec.record()))
        train = self.stream.train
        self.images_digest = digest_values([train.fingerprint, checksum(bytes(bytes_of(train.labels)))])
        self._infos: dict[int, Info] = {}
        self._memories: dict[int, Memory] = {0: spec.benchmark.empty_memory}
        self._latest: tuple[int, Model] | None = None
        #: Statistics of the classes of each step, by the name of their kind and the step's number.
        self.statistics: dict[tuple[str, int], Statistics] = {}

    def __repr__(self) -> str:
        steps = f"{len(self.trained_steps)} of {len(self.stream)} steps trained"
        return f"Run({self.spec}: {steps}, in {self.folder.path})"

    @property
    def trained_steps(self) -> list[Step]:
        """Return the steps whose models are stored."""
        return [step for step in self.stream if self.folder.step(step.number).trained]

    def info(self, number: int) -> Info:
        """Return the record of a stored step, which must be a step of this run."""
        if number not in self._infos:
            stored, previous = self._stored(number), self.folder.step(number - 1)
            info = stored.info()
            before = self.weights(number - 1) if number == 1 or previous.trained else None
            check_record(stored, info, str(self.spec), self.training_digest, before)
            self._infos[number] = info
        return self._infos[number]

    def weights(self, number: int) -> str:
        """Return the checksum of a stored step's model; '' before the first step."""
        return str(self.info(number)["files"]["model.safetensors"]) if number else ""

    def check_images(self, number: int) -> None:
        """Refuse other images than a step was trained on, and another model than was given for it.

        The memory is indices into these images.
        """
        if self.info(number).get("images") != self.images_digest:
            text = f"run {self.spec} was trained on other images than {self.stream.train.name!r} has now"
            raise OpenCILError(f"{text}: restore them, or delete {self.folder.path} to start again")
        if isinstance(self.learner, Foreign) and self.learner.models is not None:
            self.latest_model(number)

    def model(self, number: int) -> Model:
        """Return a copy of a stored step's model θ; its logits are of ``classes``, in this order."""
        model = self.setting.move_to_device(copy.deepcopy(self.latest_model(number)), evaluate=True)
        model.class_names = self.stream.train.classes
        return model

    def classes(self, number: int) -> tuple[str, ...]:
        """Return the names of the classes seen after a step, in the order of the model's logits."""
        return self.stream.train.classes[: self.stream[number - 1].seen]

    def predict(self, images: AnyImages, number: int) -> list[str]:
        """Return the name of the class that a step's model predicts for each image.

        ``images`` are those that ``opencil.evaluate`` takes; those of a folder are sorted by their paths.
        A single file is taken too.
        """
        model, names, side = self.model(number), self.classes(number), self.data.test.side
        outputs = compute_outputs(model, images, "images", self.data.transform, labelled=False, side=side)
        return [names[label] for label in outputs.logits.argmax(dim=1).tolist()]

    def whole_model(self, number: int) -> Model:
        """Return a copy of a stored step's model that reads images, where ``model`` reads stored features.

        Its images are those of ``spec.benchmark.transform``.
        """
        model = self.model(number)
        if self.data.backbone is not None:
            named = self.spec.benchmark.backbone
            network = create_backbone(**({"name": named} if isinstance(named, str) else named))
            for module in [*model.modules()]:
                for name, part in module.named_children():
                    if isinstance(part, StoredFeatures):
                        setattr(module, name, network)
        return self.setting.move_to_device(model, evaluate=True)

    def memory(self, number: int) -> Memory:
        """Return the memory after a stored step; it is empty before the first."""
        if number not in self._memories:
            tensors = self._stored(number).tensors("memory.safetensors", self.info(number))
            self._memories[number] = self._memories[0].with_tensors(tensors)
        return self._memories[number]

    def latest_model(self, number: int) -> Model:
        """Return a stored step's model; the latest is kept in memory, and must not be changed."""
        if self._latest is None or self._latest[0] != number:
            weights = self._stored(number).tensors("model.safetensors", self.info(number))
            self._latest = number, self._load_model(self.stream[number - 1], weights)
        return self._latest[1]

    def cache_model(self, step: Step, model: Model) -> Model:
        """Keep a newly trained model, as it will be when it is read again, and return it."""
        loaded = self.setting.move_to_device(self._load_model(step, model.state_dict()), evaluate=True)
        self._latest = step.number, loaded
        return loaded

    def _load_model(self, step: Step, weights: dict[str, Tensor]) -> Model:
        setting = replace(self.setting, backbone=without_weights(self.setting.backbone))
        model = self.learner.load(setting, step)
        try:
            model.load_state_dict(weights, strict=True)
        except RuntimeError as error:
            where, why = f"{self.spec}, step {step.number}", one_line(error)
            raise OpenCILError(f"{where}: the weights do not fit the method's blank model: {why}") from None
        return model

    def describe_training(self, step: Step) -> str:
        """Return a digest of all that decides the training of a step."""
        made_of = [self.training_digest, step.number, self.images_digest, self.weights(step.number - 1)]
        return digest_values(made_of)

    def cache_step(self, step: Step, memory: Memory, info: Info) -> None:
        """Keep the memory and the record of a newly stored step."""
        self._memories[step.number], self._infos[step.number] = memory, info

    def _stored(self, number: int) -> StepFolder:
        step = self.folder.step(number)
        if number not in self._infos and not step.trained:
            stored = ", ".join(str(step.number) for step in self.trained_steps) or "none"
            raise BadInput(f"run {self.spec} has no step {number}: stored are {stored}")
        return step

    def carry(self, detector: CarryingDetector, number: int) -> Statistics:
        """Return statistics of the classes that a step brought: stored, or computed by its model."""
        key = detector.summary, number
        if key not in self.statistics:
            stored, info, name = self._stored(number), self.info(number), StepFolder.statistics(key[0])
            try:
                self.statistics[key] = stored.tensors(name, info)
            except Damaged:
                info["files"].pop(name, None)  # to be written again
                self.statistics[key] = detector.summarise(StepOutputs(self, self.stream[number - 1]).new)
        return self.statistics[key]

    def save_statistics(self) -> None:
        """Store statistics that later steps need, unless they are stored."""
        for (kind, number), statistics in self.statistics.items():
            stored, info, name = self.folder.step(number), self.info(number), StepFolder.statistics(kind)
            if number < len(self.stream) and name not in info["files"]:
                stored.save_tensors(name, dict(statistics), info)
                stored.save_info(info)

    def train_plus(self, step: Step) -> Tensor:
        """Return the indices of a step's training images T_t^train+."""
        return self.learner.training_set(self.setting, step, self.memory(step.number - 1))

    def source(self, step: Step, model: Model) -> ViewSource:
        """Return the images to tune the extra heads of a step's model on."""
        images, chosen = self.stream.train, self.train_plus(step)
        labels = images.labels.cpu()[chosen]
        old = labels < step.old
        if step.old and not old.any():
            raise BadInput(
                f"{self.spec.cil} keeps no images of old classes, which fine-tuning detectors need from "
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

    def detector(self, name: str, number: int, outputs: "StepOutputs | None" = None) -> Detector:
        """Return a detector of the run, ready to score a step's outputs: set up, or with its stored head.

        ``outputs`` are those of the step, for several detectors that share them.
        """
        if name not in self.spec.detectors:
            known = ", ".join(self.spec.detectors) or "none"
            raise BadInput(f"detector {name!r} is not a detector of the run: its detectors are {known}")
        require(DETECTORS, name, self.folder.stored().get("plugins", {}))
        detector: Detector = DETECTORS.create(name, **self.spec.detectors[name])
        step, stored = self.stream[number - 1], self._stored(number)
        outputs = outputs or StepOutputs(self, step)
        if isinstance(detector, Tuner):
            if stored.head(name) not in self.info(number)["files"]:
                raise BadInput(f"{name} has no head at step {number}: 'opencil run' makes it")
            read_head(detector, self.source(step, outputs.model), stored, self.info(number))
        outputs.set_up(detector)
        return detector


class StepOutputs:
    """The outputs of a step's model: every set of images passes through it at most once."""

    def __init__(self, run: Run, step: Step) -> None:
        self.run, self.step = run, step
        #: The task of each class seen, counted from 1.
        self.tasks = torch.tensor(step.task_of_class, device=run.setting.images.device)
        self._computed: list[Outputs] = []

    @property
    def model(self) -> Model:
        """Return the step's model, which must not be changed."""
        return self.run.latest_model(self.step.number)

    def of(self, images: Images, indices: Tensor) -> Outputs:
        """Return the outputs of some images, computed now or before."""
        for computed in self._computed:
            if (found := computed.of(images, indices)) is not None:
                return found
        model = self.run.setting.move_to_device(self.model, evaluate=True)
        self._computed.append(forward(model, images, self.run.data.transform, indices))
        return self._computed[-1]

    @cached_property
    def test(self) -> Outputs:
        """Return the outputs of the test images of all classes seen."""
        return self.of(self.run.stream.test, self.step.test)

    @cached_property
    def ood(self) -> dict[str, Outputs]:
        """Return the outputs of the step's part of each OOD set."""
        return {
            name: self.of(ood.images, self.run.spec.ood_seen(name, len(ood.images), self.step))
            for name, ood in self.run.data.ood.items()
        }

    @cached_property
    def future(self) -> dict[str, Outputs]:
        """Return the outputs of the test images of classes of later steps; empty after the last step."""
        test = self.run.stream.test
        later = (test.labels >= self.step.seen).nonzero().flatten().cpu()
        return {FUTURE: self.of(test, later)} if len(later) else {}

    @cached_property
    def shifted(self) -> dict[str, Outputs]:
        """Return the outputs of the test images under each shift."""
        return {name: self.of(images, self.step.test) for name, images in self.run.shifted.items()}

    @cached_property
    def new(self) -> Outputs:
        """Return the outputs of the training images of the step's classes."""
        self.setup("train+")  # first, as in ``setup``
        return replace(self.of(self.run.stream.train, self.step.train), tasks=self.tasks)

    def set_up(self, detector: Detector) -> None:
        """Set a detector up, unless it is ready."""
        if detector.ready:
            return
        memory = self.setup("memory") if detector.by_task else None
        detector.complete(self.given_to(detector), memory)
        if (scorer := self._carrying(detector)) is not None:
            self.run.statistics[scorer.summary, self.step.number] = scorer.statistics

    def given_to(self, detector: Detector) -> Outputs:
        """Return the outputs that a detector is set up on, with carried statistics if it uses them."""
        if (scorer := self._carrying(detector)) is not None:
            carried = tuple(self.run.carry(scorer, number) for number in range(1, self.step.number))
            return replace(self.new, carried=carried)
        which = detector.set_up_on
        return self.setup("memory" if which == "statistics" else which)

    def _carrying(self, detector: Detector) -> CarryingDetector | None:
        """Return the scorer of a detector if it is set up on statistics that earlier steps computed."""
        # Statistics of a network that is trained again on old images would be of other features than now.
        frozen = getattr(getattr(self.model, "backbone", None), "frozen", False)
        scorer = detector.scorer
        if detector.set_up_on != "statistics" or not isinstance(scorer, CarryingDetector):
            return None
        return None if self.run.learner.revisits and not frozen else scorer

    def setup(self, which: Setup) -> Outputs:
        """Return the outputs of a detector's set-up images: train+, or the memory after the step.

        A method without a memory has train+ alone. Train+ is always computed first, and the memory taken
        from it: the last bits of outputs depend on the batch, and must not depend on an interruption.
        """
        images, remembered = self.run.stream.train, self.run.memory(self.step.number).indices
        train_plus = self.of(images, self.run.train_plus(self.step))
        known = self.of(images, remembered) if len(remembered) else train_plus
        if which == "batch":
            found = self._augmented_batch()
        elif which == "memory+test":
            parts = known, self.test_part(self.held_out)
            features, logits = (torch.cat([getattr(p, key) for p in parts]) for key in ("features", "logits"))
            labels = torch.cat([part.labels for part in parts if part.labels is not None])
            found = Outputs(features, logits, labels, known.classify)
        else:
            found = train_plus if which == "train+" else known
        return replace(found, tasks=self.tasks)

    def test_part(self, indices: Tensor) -> Outputs:
        """Return the outputs of some of the test images, computed together with all of them."""
        part = self.test.of(self.run.stream.test, indices)
        assert part is not None
        return part

    def scored(self, detector: Detector) -> Tensor:
        """Return the indices of the test images to score: not those that the detector was set up on."""
        test = self.step.test
        return test[~torch.isin(test, self.held_out)] if detector.set_up_on == "memory+test" else test

    @cached_property
    def held_out(self) -> Tensor:
        """Draw ten test images of each new class, on which the paper's code sets some detectors up."""
        test = self.step.test
        labels = self.run.stream.test.labels.cpu()[test]
        return draw_held_out(test, labels, self.run.spec.seeds.data_order, self.step)

    def _augmented_batch(self) -> Outputs:
        """Return the outputs of one random batch of train+, augmented as in training."""
        run, numbers = self.run, self._numbers("set-up batch")
        train_plus = run.train_plus(self.step)
        chosen = train_plus[torch.randperm(len(train_plus), generator=numbers)[: run.setting.batch_size]]
        (pixels,) = run.stream.train.batches(chosen, len(chosen))
        drawn = run.data.transform.draw(len(pixels), run.stream.train.side, numbers)
        images = run.data.transform.train(pixels, [choice.to(pixels.device) for choice in drawn])
        model = run.setting.move_to_device(self.model, evaluate=True)
        found = forward(model, images)
        return replace(found, labels=run.stream.train.labels[chosen.to(pixels.device)])

    def _numbers(self, purpose: str) -> torch.Generator:
        return generator(self.run.spec.seeds.data_order, purpose, self.step.number)


def draw_held_out(test: Tensor, labels: Tensor, seed: int, step: Step) -> Tensor:
    """Draw ten of some test images [N] for each new class of a step, by their labels [N]."""
    order = torch.randperm(len(test), generator=generator(seed, "validation", step.number))
    drawn = [order[labels[order] == c][:10] for c in range(step.old, step.seen)]
    return test[torch.cat(drawn)]
