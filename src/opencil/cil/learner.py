"""What a class-incremental method states, and everything around it that exists once."""

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
from opencil.engine.checkpoint import BadCheckpoint, Checkpoint
from opencil.engine.forward import Outputs, forward
from opencil.engine.loop import Diverged, Progress, Stage, train
from opencil.engine.ranks import at_work
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import seeded
from opencil.nets.create import Named, create_backbone, without_weights
from opencil.nets.model import Backbone, Model
from opencil.validation import Count, Positive, Values

Loss = Callable[[Tensor, Tensor], Tensor]
#: A pass forward alone, as a share of one forward and backward.
FORWARD = 1 / 3


@dataclass(frozen=True)
class Setting:
    """A run as its learner sees it: what stays the same over the steps.

    ``images`` are the training images of all classes.
    """

    images: Images
    test_images: Images
    transform: Transform
    backbone: Named
    batch_size: int
    initialisation_seed: int
    data_seed: int
    arithmetic: Arithmetic = FULL

    def new_backbone(self) -> Backbone:
        """A backbone with fresh weights, drawn on the CPU, or those of its file."""
        named = {"name": self.backbone} if isinstance(self.backbone, str) else self.backbone
        return create_backbone(**named)

    def without_weights(self) -> "Setting":
        """The same for models whose weights are about to be loaded: a backbone's own file is not read."""
        return replace(self, backbone=without_weights(self.backbone))

    def placed(self, model: Model) -> Model:
        """A model on the images' device; on a GPU in the memory layout that convolutions are fastest in."""
        device = self.images.device
        layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        return model.to(device=device, memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def evaluated(self, model: Model) -> Model:
        """A trained model in the memory layout that full float32 is fastest in on a GPU, which is another.

        A CPU would be a little faster channels-last, and round otherwise: its results stay what they were.
        """
        return model.to(device=self.images.device, memory_format=torch.contiguous_format)  # type: ignore[call-overload, no-any-return]


@dataclass
class Task:
    """One step as a method sees it: its data, the model to train and the one before it."""

    setting: Setting
    step: Step
    memory: Memory
    model: Any  #: the method's own kind of ``Model``
    previous: Any  #: likewise, as the step before left it; None at step 1
    train_plus: Tensor  #: indices of T_t^train+, the images to learn from
    #: The model's weights after each stage so far.
    ended: list[dict[str, Tensor]] = field(default_factory=list)
    computed: Outputs | None = None  #: of the trained model on ``train_plus``, once there are any

    @property
    def first(self) -> bool:
        """Whether this is step 1, which has no model before it."""
        return self.previous is None

    @cached_property
    def teacher(self) -> Any:
        """A copy of the previous model, frozen and in eval mode, made when it is first asked for; or None."""
        return None if self.first else copy.deepcopy(self.previous).eval().requires_grad_(False)

    def outputs(self, indices: Tensor) -> Outputs:
        """Outputs of the trained model on some training images, out of ``computed`` where they are there."""
        images = self.setting.images
        known = None if self.computed is None else self.computed.of(images, indices)
        return forward(self.model, images, self.setting.transform, indices) if known is None else known

    def new_features(self) -> list[Tensor]:
        """Features [n, D] of each new class's images by the model as it now is."""
        outputs = self.outputs(self.step.train)
        assert outputs.labels is not None
        labels = range(self.step.old, self.step.seen)
        return [outputs.features[outputs.labels == label] for label in labels]


@dataclass(frozen=True)
class Learner(Values, ABC):
    """A CIL method: its values, its schedules, its loss.

    A subclass is a frozen dataclass whose fields are its config values, and says in ``stages`` what is
    trained. Where its model is more than a backbone and a head it also says how to make one (``blank``,
    ``successor``). All that a stage changes must be part of ``task.model``: that is what checkpoints and
    stored steps hold.

    ``epochs`` and ``epochs_scale`` are shorthands that every method takes: they stretch or shorten all its
    schedules, milestones along with them.
    """

    #: The block of lists that it stands in, and a word for all of it: ``--cil expansion``.
    family: ClassVar[str] = ""
    #: Whether the method keeps exemplars.
    remembers: ClassVar[bool] = True
    #: Whether it sees images of old classes again, as exemplars or otherwise.
    revisits: ClassVar[bool] = True
    #: Whether its logits are W f + b, as which some detectors read a head.
    linear: ClassVar[bool] = True
    #: For its page in the docs, as a detector's: the loss in LaTeX, and where paper, code and this differ.
    equation: ClassVar[str] = ""
    differs: ClassVar[str] = ""
    #: Sets of values by label, as a detector's: ``create_learner("icarl@label")``.
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    epochs: InitVar[Count | None] = field(default=None, kw_only=True)
    epochs_scale: InitVar[Positive] = field(default=1.0, kw_only=True)

    def __post_init__(self, epochs: int | None, epochs_scale: float) -> None:
        for f in fields(self):
            schedule = getattr(self, f.name)
            if isinstance(schedule, Schedule) and (epochs or epochs_scale != 1):
                length = epochs or max(1, round(min(schedule.epochs * epochs_scale, 1e9)))
                object.__setattr__(self, f.name, schedule.lasting(length))

    @abstractmethod
    def stages(self, task: Task) -> Iterable[Stage] | None:
        """The trainings of a step, in order. Code after a ``yield`` runs when that stage has been trained.

        A step may have none: a method in closed form sets ``task.model`` right here.
        """

    def training_set(self, setting: Setting, step: Step, memory: Memory) -> Tensor:
        """Indices of the images that a step learns from, which detectors are set up on too: T_t^train+."""
        return torch.cat([step.train, memory.indices])

    def effort(self, *, first: bool) -> float:
        """Expected work of step 1, or of a later one, for each image: passes forward and backward.

        It decides which of several runs is hurried, and nothing that is stored. By default: the epochs of the
        schedule ``first`` at step 1, of all others after it, each pass with one forward of a teacher.
        """
        schedules = {f.name: getattr(self, f.name) for f in fields(self)}
        epochs = {name: s.epochs for name, s in schedules.items() if isinstance(s, Schedule)}
        if first and "first" in epochs:
            return epochs["first"]
        return (1 if first else 1 + FORWARD) * sum(n for name, n in epochs.items() if name != "first")

    def blank(self, setting: Setting, step: Step) -> Model:
        """A model shaped like the one that is stored after ``step``, with fresh weights."""
        return Model(setting.new_backbone(), step.seen)

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        """The model that a step ≥ 2 begins with: a copy of the previous one with a row for each new class."""
        model: Model = copy.deepcopy(previous)
        model.grow(step.seen)
        return model

    def other_predictions(self, task: Task, memory: Memory, test: Outputs) -> dict[str, Tensor]:
        """Test labels predicted otherwise than by the model's head, to be reported beside it, by metric."""
        return {}

    def notes(self, task: Task) -> dict[str, Any]:
        """What else to note of a trained step in its ``step.json``: names and plain values."""
        return {}

    def load(self, setting: Setting, step: Step) -> Model:
        """``blank``, seeded, on the images' device, in eval mode."""
        with seeded(setting.initialisation_seed, "backbone"):
            return setting.placed(self.blank(setting, step)).eval()

    def begin(self, setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
        """A step's task; ``previous`` is the model that the step before left, and stays as it is."""
        train_plus = self.training_set(setting, step, memory)
        if previous is None:
            return Task(setting, step, memory, self.load(setting, step), None, train_plus)
        with seeded(setting.initialisation_seed, "step", step.number):
            model = setting.placed(self.successor(setting, step, previous)).requires_grad_(True).eval()
        return Task(setting, step, memory, model, previous, train_plus)

    def learn(self, task: Task, checkpoint: Checkpoint | None = None) -> Iterator[Progress]:
        """Train ``task.model`` on a step, or go on from a checkpoint, yielding after each iteration.

        Where a stage was finished before the checkpoint, the model gets its weights of then, so that the
        method's code between the stages sees what it saw.
        """
        setting, number = task.setting, -1
        for number, stage in enumerate(self.stages(task) or ()):
            if checkpoint and number < checkpoint.stage:
                checkpoint.restore_end(task.model, number)
                task.ended.append(checkpoint.ended[number])
                continue
            resume = None
            if checkpoint and number == checkpoint.stage:
                resume = checkpoint.restore(task.model, stage.module, stage.schedule)
            seed = (setting.data_seed, "step", task.step.number, stage.name)
            training = train(
                stage,
                setting.images,
                setting.transform,
                setting.batch_size,
                seed,
                setting.arithmetic,
                resume,
                old=task.step.old,
            )
            try:
                for progress in training:
                    yield replace(progress, stage_number=number)
            except Diverged as error:
                raise Diverged(f"{type(self).__name__}, step {task.step.number}: {error}") from None
            task.ended.append({name: tensor.clone() for name, tensor in task.model.state_dict().items()})
        if checkpoint and checkpoint.stage > number:
            raise BadCheckpoint(f"it is of stage {checkpoint.stage}, and there are {number + 1}")

    def remember(self, task: Task) -> Memory:
        """The memory after a step: the new classes herded by the trained model's features."""
        if not self.remembers:
            return task.memory
        outputs = task.outputs(task.step.train)
        assert outputs.labels is not None
        labels = outputs.labels.cpu()
        candidates = []
        for label in range(task.step.old, task.step.seen):
            rows = (labels == label).nonzero().flatten()
            candidates.append((task.step.train[rows], outputs.features[rows.to(outputs.features.device)]))
        return task.memory.updated(candidates)


def distillation(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """KD over the teacher's classes: batch mean of −Σ softmax(z_old/T) · log softmax(z[:old]/T)."""
    student = softened(logits[:, : teacher_logits.shape[1]], temperature)
    return soft_cross_entropy(student, F.softmax(softened(teacher_logits, temperature), dim=1))


def softened(logits: Tensor, temperature: float) -> Tensor:
    """z/T in float32: a bfloat16 logit over a T that is no power of two would be rounded once more."""
    return logits.float() / temperature


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Batch mean of −Σ target · log softmax(z), for targets that are probabilities [B, C]."""
    return -(target * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values [B] that a mask chooses; 0 where it chooses none. Shapes do not depend on it.

    On several ranks it is over all that the masks of the whole batch choose.
    """
    total, chosen = torch.where(mask, values, 0).sum(), mask.sum()
    if (ranks := at_work()) is None:
        return total / chosen.clamp(min=1)
    # Times the ranks' shares of the batch, which losses are summed by, these add up to the mean.
    chosen, rows = ranks.sum_(torch.stack([chosen, torch.full_like(chosen, len(mask))])).unbind()
    return total / chosen.clamp(min=1) * (rows / len(mask))


def weights_by_share(task: Task, of_memory: float) -> tuple[float, float]:
    """Weights of the memory's images and of new ones that give the memory a share of a batch's mean loss."""
    kept, all_of_them = len(task.memory.indices), len(task.train_plus)
    return of_memory * all_of_them / max(kept, 1), (1 - of_memory) * all_of_them / (all_of_them - kept)


def replay_and_distil(task: Task, temperature: float, ce: float = 1.0, kd: float = 1.0) -> Loss:
    """ce·CE + kd·KD from the teacher; CE alone where there is no teacher yet."""
    model, teacher = task.model, task.teacher

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        classification = F.cross_entropy(logits, labels)
        if teacher is None:
            return classification
        with torch.no_grad():
            before = teacher(images)
        return ce * classification + kd * distillation(logits, before, temperature)

    return loss
