"""What a class-incremental method states, and everything around it that exists once."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.data.images import Images
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.data.transforms import Transform
from opencil.engine.forward import forward
from opencil.engine.loop import Diverged, Progress, Stage, train
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import seeded
from opencil.nets.model import Model
from opencil.registry import BACKBONES
from opencil.validation import Count, Positive, Values


@dataclass(frozen=True)
class Setting:
    """What stays the same over a run's steps."""

    images: Images
    transform: Transform
    backbone: str
    batch_size: int
    initialisation_seed: int
    data_seed: int


@dataclass
class Task:
    """One step as a method sees it: its data, the model to train and the frozen one before it."""

    setting: Setting
    step: Step
    memory: Memory
    model: Model
    teacher: Model | None

    @property
    def train_plus(self) -> Tensor:
        """Indices of T_t^train+: the new classes' training images and the whole memory."""
        return torch.cat([self.step.train, self.memory.indices])


@dataclass(frozen=True)
class Learner(Values, ABC):
    """A CIL method: its values, its schedules, its loss.

    A subclass is a frozen dataclass whose fields are its config values. ``epochs`` and ``epochs_scale`` are
    shorthands that every method takes: they stretch or shorten all its schedules, milestones along with them.
    """

    epochs: InitVar[Count | None] = field(default=None, kw_only=True)
    epochs_scale: InitVar[Positive] = field(default=1.0, kw_only=True)

    def __post_init__(self, epochs: int | None, epochs_scale: float) -> None:
        for f in fields(self):
            schedule = getattr(self, f.name)
            if isinstance(schedule, Schedule) and (epochs or epochs_scale != 1):
                length = epochs or max(1, round(schedule.epochs * epochs_scale))
                object.__setattr__(self, f.name, schedule.lasting(length))

    @abstractmethod
    def stages(self, task: Task) -> Iterator[Stage]:
        """The trainings of a step, in order. Code after a ``yield`` runs when that stage has been trained."""

    def learn(self, task: Task) -> Iterator[Progress]:
        """Train ``task.model`` on a step, yielding after each iteration."""
        setting = task.setting
        for stage in self.stages(task):
            seed = (setting.data_seed, "step", task.step.number, stage.name)
            try:
                yield from train(stage, setting.images, setting.transform, setting.batch_size, seed)
            except Diverged as error:
                raise Diverged(f"{type(self).__name__}, step {task.step.number}: {error}") from None

    def remember(self, task: Task) -> Memory:
        """The memory after a step: the new classes herded by the trained model's features."""
        outputs = forward(task.model, task.setting.images, task.setting.transform, task.step.train)
        assert outputs.labels is not None
        labels = outputs.labels.cpu()
        candidates = []
        for label in range(task.step.old, task.step.seen):
            rows = (labels == label).nonzero().flatten()
            candidates.append((task.step.train[rows], outputs.features[rows.to(outputs.features.device)]))
        return task.memory.updated(candidates)


def empty_model(setting: Setting, classes: int) -> Model:
    """A model with as many classes, on the images' device, for stored weights to be loaded into."""
    with seeded(setting.initialisation_seed, "backbone"):
        return Model(BACKBONES.create(setting.backbone), classes).to(setting.images.device)


def begin(setting: Setting, step: Step, memory: Memory, previous: Model | None) -> Task:
    """A step: the previous model, copied and widened for the new classes; itself frozen as teacher."""
    if previous is None:
        return Task(setting, step, memory, empty_model(setting, step.seen), teacher=None)
    model = copy.deepcopy(previous)
    with seeded(setting.initialisation_seed, "head", step.number):
        model.grow(step.seen)
    return Task(setting, step, memory, model, teacher=previous.eval().requires_grad_(False))


def distillation(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """KD over the teacher's classes: batch mean of −Σ softmax(z_old/T) · log softmax(z[:old]/T)."""
    old = teacher_logits.shape[1]
    target = F.softmax(teacher_logits / temperature, dim=1)
    return -(target * F.log_softmax(logits[:, :old] / temperature, dim=1)).sum(dim=1).mean()
