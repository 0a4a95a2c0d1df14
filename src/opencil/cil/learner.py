"""Base class of class-incremental methods, and losses that they share."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.images import Images
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.forward import Outputs, forward
from opencil.engine.loop import BadCheckpoint, Checkpoint, Diverged, Progress, Stage, batches, optimise
from opencil.engine.ranks import agree, current
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import seeded
from opencil.nets.create import Named, create_backbone
from opencil.nets.model import Backbone, Model
from opencil.validation import Count, Positive, Values


@dataclass(frozen=True)
class Setting:
    """The part of a run that stays the same over its steps; ``images`` are of all classes."""

    images: Images
    test_images: Images
    transform: Transform
    backbone: Named | Backbone  #: by name and values, or one to be copied
    batch_size: int
    initialisation_seed: int
    data_seed: int
    arithmetic: Arithmetic = FULL
    single: bool = False  #: whether no step follows the first, so that nothing has to be kept for it

    def new_backbone(self) -> Backbone:
        """Return a backbone with weights drawn on the CPU or from its file, or a copy of the given one."""
        if isinstance(self.backbone, Backbone):
            return copy.deepcopy(self.backbone)
        named = {"name": self.backbone} if isinstance(self.backbone, str) else self.backbone
        return create_backbone(**named)

    def move_to_device(self, model: Model, evaluate: bool = False) -> Model:
        """Move a model to the images' device, on a GPU in the fastest layout to train or to evaluate."""
        device = self.images.device
        layout = torch.channels_last if device.type == "cuda" and not evaluate else torch.contiguous_format
        return model.to(device=device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


@dataclass
class Task:
    """One step: its data, the model to train and the model of the step before."""

    setting: Setting
    step: Step
    memory: Memory
    model: Any  #: of the method's own subclass of ``Model``
    previous: Any  #: the same, after the step before; None at step 1
    train_plus: Tensor  #: indices of T_t^train+, the images to learn from
    ended: list[dict[str, Tensor]] = field(default_factory=list)  #: the model's weights after each stage
    computed: Outputs | None = None  #: of the trained model on ``train_plus``, if computed already

    @property
    def first(self) -> bool:
        """Return whether this is step 1."""
        return self.previous is None

    @cached_property
    def teacher(self) -> Any:
        """Return a copy of the previous model, frozen and in eval mode; None at step 1."""
        return None if self.first else copy.deepcopy(self.previous).eval().requires_grad_(False)

    def outputs(self, indices: Tensor) -> Outputs:
        """Return outputs of the trained model on training images, taken from ``computed`` if it has them."""
        images = self.setting.images
        known = None if self.computed is None else self.computed.of(images, indices)
        return forward(self.model, images, self.setting.transform, indices) if known is None else known

    def new_features(self) -> list[Tensor]:
        """Return the features [n, D] of each new class's images under the current model."""
        outputs = self.outputs(self.step.train)
        assert outputs.labels is not None
        labels = range(self.step.old, self.step.seen)
        return [outputs.features[outputs.labels == label] for label in labels]


@dataclass(frozen=True)
class Learner(Values, ABC):
    """A CIL method: its values, its schedules, its loss.

    A subclass is a frozen dataclass whose fields are its config values; its ``stages`` yields the trainings
    of a step. If its model is more than a backbone and a head, it also overrides ``blank`` and ``successor``.
    All that a stage changes must be part of ``task.model``, which checkpoints and stored steps hold.

    Every method takes ``epochs``, the length of all its schedules, and ``epochs_scale``, a factor of what
    their lengths are so far: by its defaults and by lower layers of a config. Milestones move along.
    """

    family: ClassVar[str] = ""  #: its group in lists, also a name for all of them: ``--cil expansion``
    remembers: ClassVar[bool] = True  #: whether it keeps exemplars
    revisits: ClassVar[bool] = True  #: whether it sees images of old classes again, as exemplars or otherwise
    linear: ClassVar[bool] = True  #: whether its logits are W f + b; some detectors need W and b
    needs_images: ClassVar[bool] = False  #: whether it reads stages inside the backbone, not features alone
    beside: ClassVar[float] = 1.0  #: forward passes of other networks beside the one trained after step 1
    equation: ClassVar[str] = ""  #: the loss in LaTeX, for its page in the docs
    differs: ClassVar[str] = ""  #: differences between paper, code and this, for the same page
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  #: presets: ``create_learner("icarl@label")``

    epochs: InitVar[Count | None] = field(default=None, kw_only=True)
    epochs_scale: InitVar[Positive] = field(default=1.0, kw_only=True)

    def __post_init__(self, epochs: int | None, epochs_scale: float) -> None:
        for f in fields(self):
            schedule = getattr(self, f.name)
            if isinstance(schedule, Schedule) and (epochs or epochs_scale != 1):
                length = epochs or max(1, round(min(schedule.epochs * epochs_scale, 1e9)))
                object.__setattr__(self, f.name, schedule.with_epochs(length))

    @abstractmethod
    def stages(self, task: Task) -> Iterable[Stage] | None:
        """Yield the trainings of a step; code after a ``yield`` runs when that stage is trained.

        A step may have none: a method in closed form changes ``task.model`` here.
        """

    def training_set(self, setting: Setting, step: Step, memory: Memory) -> Tensor:
        """Return the indices of the images that a step and its detectors learn from: T_t^train+."""
        return torch.cat([step.train, memory.indices])

    def effort(self, *, first: bool) -> float:
        """Return the expected work of step 1 or of a later one, in passes forward and backward per image.

        The run with most work starts first. By default it is the epochs of the schedule ``first`` at step 1,
        after it those of the longest other schedule, with the passes ``beside`` it, a third of its work each.
        """
        schedules = {f.name: getattr(self, f.name) for f in fields(self)}
        epochs = {name: s.epochs for name, s in schedules.items() if isinstance(s, Schedule)}
        of_first = epochs.pop("first", None)
        longest = max(epochs.values(), default=0)
        return (of_first or longest) if first else longest * (1 + self.beside / 3)

    def blank(self, setting: Setting, step: Step) -> Model:
        """Return an untrained model of the shape that is stored after ``step``."""
        return Model(setting.new_backbone(), step.seen)

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        """Return the initial model of a step ≥ 2: a copy of the previous one with a row per new class."""
        model: Model = copy.deepcopy(previous)
        model.grow(step.seen)
        return model

    def other_predictions(self, task: Task, memory: Memory, test: Outputs) -> dict[str, Tensor]:
        """Return test labels predicted in other ways than by the model's head, by the metric's name."""
        return {}

    def notes(self, task: Task) -> dict[str, Any]:
        """Return further plain values of a trained step for its ``step.json``."""
        return {}

    def load(self, setting: Setting, step: Step) -> Model:
        """Return ``blank``, seeded, on the images' device, in eval mode."""
        with seeded(setting.initialisation_seed, "backbone"):
            return setting.move_to_device(self.blank(setting, step)).eval()

    def begin(self, setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
        """Return a step's task; ``previous``, the model of the step before, is not changed."""
        train_plus = self.training_set(setting, step, memory)
        if previous is None:
            return Task(setting, step, memory, self.load(setting, step), None, train_plus)
        with seeded(setting.initialisation_seed, "step", step.number):
            model = setting.move_to_device(self.successor(setting, step, previous))
        return Task(setting, step, memory, model.requires_grad_(True).eval(), previous, train_plus)

    def learn(self, task: Task, checkpoint: Checkpoint | None = None) -> Iterator[Progress]:
        """Train ``task.model`` on a step, or resume from a checkpoint, yielding after each iteration."""
        setting, number = task.setting, -1
        for number, stage in enumerate(self.stages(task) or ()):
            resume = None
            if checkpoint and number <= checkpoint.stage:  # the method's code between stages needs them too
                weights = checkpoint.restore(task.model, number)
                if number < checkpoint.stage:
                    task.ended.append(weights)
                    continue
                resume = checkpoint
            seed = (setting.data_seed, "step", task.step.number, stage.name)
            batch_size, old = setting.batch_size, task.step.old
            agree(f"the data of stage {stage.name!r}", stage.indices, *stage.tensors, batch_size, seed)
            feed, loss = batches(stage, setting.images, setting.transform, batch_size, seed, old)
            try:
                for progress in optimise(stage, loss, feed, setting.arithmetic, resume):
                    yield replace(progress, stage_number=number)
            except Diverged as error:
                raise Diverged(f"{type(self).__name__}, step {task.step.number}: {error}") from None
            task.ended.append({name: tensor.clone() for name, tensor in task.model.state_dict().items()})
        if checkpoint and checkpoint.stage > number:
            raise BadCheckpoint(f"it is of stage {checkpoint.stage}, and there are {number + 1}")

    def remember(self, task: Task) -> Memory:
        """Return the memory after a step: the new classes are herded by the trained model's features."""
        if not self.remembers:
            return task.memory
        labels = task.setting.images.labels.cpu()[task.step.train]
        indices = [task.step.train[labels == label] for label in range(task.step.old, task.step.seen)]
        return task.memory.add_classes(list(zip(indices, task.new_features(), strict=True)))


def distillation(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return KD over the teacher's classes: batch mean of −Σ softmax(z_old/T) · log softmax(z[:old]/T)."""
    student = soften(logits[:, : teacher_logits.shape[1]], temperature)
    return soft_cross_entropy(student, F.softmax(soften(teacher_logits, temperature), dim=1))


def soften(logits: Tensor, temperature: float) -> Tensor:
    """Return z/T in float32: in bfloat16 the division by T would round again."""
    return logits.float() / temperature


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the batch mean of −Σ target · log softmax(z), for probabilities [B, C] as targets."""
    return -(target * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values [B] under a mask, or 0 if it is empty; no shape depends on the mask.

    With several ranks, values and masks are those of the whole batch.
    """
    total, chosen = torch.where(mask, values, 0).sum(), mask.sum()
    if (ranks := current()) is None:
        return total / chosen.clamp(min=1)
    # Weighted by the ranks' shares of the batch, as losses are, these add up to the mean.
    chosen, rows = ranks.sum_(torch.stack([chosen, torch.full_like(chosen, len(mask))])).unbind()
    return total / chosen.clamp(min=1) * (rows / len(mask))


def weights_by_share(task: Task, of_memory: float) -> tuple[float, float]:
    """Return weights of exemplars and of new images that give the memory a share of a batch's mean loss."""
    kept, all_of_them = len(task.memory.indices), len(task.train_plus)
    return of_memory * all_of_them / max(kept, 1), (1 - of_memory) * all_of_them / (all_of_them - kept)


def classify_and_distil(
    task: Task, temperature: float, ce: float = 1.0, kd: float = 1.0, only_new: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss ce·CE, of all or only the new classes, + kd·KD from the teacher; no KD at step 1."""
    model, teacher, old = task.model, task.teacher, task.step.old

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        among = (logits[:, old:], labels - old) if only_new else (logits, labels)
        classification = F.cross_entropy(*among)
        if teacher is None:
            return classification
        with torch.no_grad():
            before = teacher(images)
        return ce * classification + kd * distillation(logits, before, temperature)

    return loss
