"""A stored run to work with: its models, its memories, its detectors, on its data."""

from pathlib import Path

from torch import Tensor

from opencil.cil.learner import Learner, Setting
from opencil.config import BenchmarkConfig, Config, PlaceConfig
from opencil.data.benchmark import BenchmarkData
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.detectors.detector import Detector, Setup
from opencil.detectors.finetune.tuner import Tuner
from opencil.detectors.finetune.views import Source
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import Inputs, forward
from opencil.errors import BadInput, OpenCILError
from opencil.nets.model import Model
from opencil.registry import DETECTORS, LEARNERS
from opencil.runs import files
from opencil.runs.loading import load
from opencil.runs.plan import RunSpec, Seeds
from opencil.runs.store import RunFolder, StepFolder
from opencil.runs.tuning import read_head
from opencil.validation import build


def open_run(path: str | Path, data_root: str | None = None, device: str = "cpu") -> "StoredRun":
    """The run in a folder such as ``runs/digits/k2/icarl/seed0``, with its data loaded on a device."""
    folder = RunFolder(Path(path))
    record = folder.stored()
    if not record or len(record["cil"]) != 1:
        raise BadInput(f"there is no run in {path}: a folder such as runs/digits/k2/icarl/seed0 is needed")
    ((cil, values),) = record["cil"].items()
    spec = RunSpec(
        benchmark=build(BenchmarkConfig, record["benchmark"], where="benchmark"),
        cil=cil,
        values=values,
        training=build(Arithmetic, record.get("training", {}), where="training"),
        seeds=build(Seeds, record["seed"], where="seed"),
        detectors=record["detector"],
    )
    place = PlaceConfig(data_root=data_root, device=device)
    config = Config(spec.benchmark, record["cil"], record["detector"], spec.training, place=place)
    run = StoredRun(spec, folder, load(config))
    for step in folder.trained():
        run.check_images(int(step.info()["step"]))
    return run


class StoredRun:
    """What a run's folder gives, with the data that it is about: ``stream`` has its steps."""

    def __init__(self, spec: RunSpec, folder: RunFolder, data: BenchmarkData) -> None:
        self.spec, self.folder, self.data = spec, folder, data
        self.stream = data.stream(spec.classes_per_step, spec.seeds.class_order)
        self.learner: Learner = LEARNERS.create(spec.cil, **spec.values)
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

    def check_images(self, number: int) -> None:
        """Refuse other images than a step was trained on: the memory is indices into them."""
        if self.folder.step(number).info().get("images") != self.stream.train.fingerprint:
            raise OpenCILError(
                f"run {self.spec} was trained on other images than those of {self.stream.train.name!r} now: "
                f"bring them back, or delete {self.folder.path} to begin anew"
            )

    def model(self, number: int) -> Model:
        """θ of a stored step, counted from 1."""
        stored = self._step(number)
        model = self.learner.load(self.setting, self.stream[number - 1])
        try:
            model.load_state_dict(stored.weights(), strict=True)
        except RuntimeError as error:
            raise files.damaged(stored.path / "model.safetensors", error) from None
        return model

    def memory(self, number: int) -> Memory:
        """The memory after a stored step; empty before the first."""
        size = self.spec.benchmark.memory
        return self._step(number).memory(size) if number else Memory(size)

    def _step(self, number: int) -> StepFolder:
        if not 1 <= number <= len(self.stream) or not self.folder.step(number).trained:
            stored = ", ".join(str(step.info()["step"]) for step in self.folder.trained()) or "none"
            raise BadInput(f"run {self.spec} has no step {number}: stored are {stored}")
        return self.folder.step(number)

    def train_plus(self, step: Step) -> Tensor:
        """Indices of T_t^train+, the images that a step learns from."""
        return self.learner.training_set(self.setting, step, self.memory(step.number - 1))

    def setup(self, step: Step, which: Setup) -> Tensor:
        """Indices of the images that a detector is set up on: T_t^train+, or the memory after the step."""
        return self.memory(step.number).indices if which == "memory" else self.train_plus(step)

    def source(self, step: Step, model: Model) -> Source:
        """What the extra heads of a step's model are tuned on."""
        images, chosen = self.stream.train, self.train_plus(step)
        labels = images.labels.cpu()[chosen]
        old = labels < step.old
        if step.old and not old.any():
            raise BadInput(
                f"{self.spec.cil} keeps no images of old classes, which fine-tuning detectors draw on from "
                "step 2 on: choose post-hoc detectors, or a CIL method with a memory"
            )
        return Source(
            Inputs(model, images, self.data.transform, chosen),
            labels,
            old,
            seed=(self.spec.seeds.data_order, "tune", step.number),
            arithmetic=self.spec.training,
        )

    def detector(self, name: str, number: int) -> Detector:
        """A detector of the run, ready to score a step's outputs: set up, or with its stored head."""
        if name not in self.spec.detectors:
            known = ", ".join(self.spec.detectors) or "none"
            raise BadInput(f"detector {name!r} is not one of the run's: those are {known}")
        detector: Detector = DETECTORS.create(name, **self.spec.detectors[name])
        model, step, stored = self.model(number), self.stream[number - 1], self.folder.step(number)
        if isinstance(detector, Tuner):
            if not stored.head(name).exists():
                raise BadInput(f"{name} has no head at step {number}: 'opencil run' makes it")
            read_head(detector, self.source(step, model), stored.head(name))
        elif not detector.ready:
            setup = self.setup(step, detector.set_up_on)
            detector.fit(forward(model, self.stream.train, self.data.transform, setup))
        return detector
