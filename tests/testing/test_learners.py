"""The checks of the CIL methods' contract: ours pass them, and each check finds methods that break it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import BadInput, Learner, Model, Schedule, Stage, Task, create_learner, list_learners
from opencil.cil.learner import Setting, masked_mean
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.testing import LEARNER_CHECKS, check_learner

#: Values that make a method fast on few images.
QUICK: dict[str, dict[str, Any]] = {name: {"width": 100} for name in ("acil", "ranpac")}


@pytest.mark.parametrize("check", LEARNER_CHECKS)
@pytest.mark.parametrize("name", list_learners())
def test_every_registered_method_keeps_the_contract(name: str, check: str) -> None:
    LEARNER_CHECKS[check](create_learner(name, **QUICK[name]) if name in QUICK else name)


@dataclass(frozen=True)
class Right(Learner):
    """A correct method: cross-entropy on the new classes and the memory."""

    schedule: Schedule = Schedule(epochs=170, lr=0.05)

    def stages(self, task: Task) -> Iterator[Stage]:
        yield Stage("train", task.model, self.loss(task), self.schedule, task.train_plus)

    def loss(self, task: Task) -> Any:
        return lambda images, labels: self.of_logits(task.model(images), labels)

    def of_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class InTwo(Right):
    """A correct method: a second stage for the head alone, which depends on the first."""

    def stages(self, task: Task) -> Iterator[Stage]:
        yield from super().stages(task)
        scale = float(task.model.head.weight.detach().abs().mean())
        task.model.backbone.requires_grad_(False)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(task.model(images) / (1 + scale), labels)

        yield Stage("head", task.model.head, loss, self.schedule, task.train_plus)


@dataclass(frozen=True)
class ReadsAll(Right):
    """A correct method: its loss reads everything that a feed has, and it keeps a buffer."""

    def blank(self, setting: Setting, step: Step) -> Model:
        model = Model(setting.new_backbone(), step.seen)
        model.register_buffer("seen", torch.zeros(len(setting.images)))
        return model

    def loss(self, task: Task) -> Any:
        def loss(
            images: Tensor, labels: Tensor, index: Tensor, from_memory: Tensor, second_view: Tensor
        ) -> Tensor:
            assert torch.equal(task.setting.images.labels[index], labels)
            assert torch.equal(from_memory, labels < task.step.old)
            with torch.no_grad():
                task.model.seen[index] += 1
            logits, others = task.model(images).float(), task.model(second_view).float()
            each = F.cross_entropy(logits, labels, reduction="none") / task.model.seen[index].sqrt()
            return each.mean() + masked_mean(each, from_memory) + 0.01 * (logits - others).square().mean()

        return loss


ADAMW = Schedule(epochs=100, lr=0.01, optimiser="adamw", decay="cosine", weight_decay=0.05, warmup=5)


@pytest.mark.parametrize("check", LEARNER_CHECKS)
@pytest.mark.parametrize(
    "learner",
    [
        Right(Schedule(epochs=3, lr=0.01, milestones=(2,))),
        InTwo(ADAMW),
        ReadsAll(Schedule(epochs=9, lr=0.01, optimiser="adam", decay="every", every=4)),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_a_custom_method_keeps_the_contract(learner: Learner, check: str) -> None:
    before = torch.get_rng_state()
    LEARNER_CHECKS[check](learner)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is unchanged"


def own(**members: Any) -> Learner:
    """Return a method of a new class with some other members."""
    learner: Learner = dataclass(frozen=True)(type("Own", (Right,), {"__doc__": "A method.", **members}))()
    return learner


def of_logits(loss: Callable[[Tensor, Tensor], Tensor]) -> Learner:
    """Return a method with another loss of logits and labels."""
    return own(of_logits=lambda self, logits, labels: loss(logits, labels))


def training(change: Callable[[Task], object], first: bool = False) -> Learner:
    """Return a method that does something else before or after its training."""

    def stages(self: Right, task: Task) -> Iterator[Stage]:
        if first:
            change(task)
        yield from Right.stages(self, task)
        if not first:
            change(task)

    return own(stages=stages)


def with_model(cls: type[Model], **members: Any) -> Learner:
    return own(blank=lambda self, setting, step: cls(setting.new_backbone(), step.seen), **members)


def on_rows(chosen: Callable[[Task], Tensor]) -> Learner:
    """Return a method that trains on chosen images, all of them under labels of seen classes."""

    def stages(self: Right, task: Task) -> Iterator[Stage]:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(task.model(images), labels.clamp(max=task.step.seen - 1))

        yield Stage("train", task.model, loss, self.schedule, chosen(task))

    return own(stages=stages)


def with_memory(change: Callable[[Memory, Tensor], tuple[Tensor, ...]]) -> Learner:
    def remember(self: Right, task: Task) -> Memory:
        memory = Learner.remember(self, task)
        return replace(memory, per_class=change(memory, task.setting.images.labels))

    return own(remember=remember)


def with_note(value: Callable[[Tensor], Tensor]) -> Learner:
    """Return a method that stores a value of the logits in a buffer."""

    def blank(self: Right, setting: Setting, step: Step) -> Model:
        model = Model(setting.new_backbone(), step.seen)
        model.register_buffer("note", torch.zeros(()))
        return model

    def loss(self: Right, task: Task) -> Any:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits = task.model(images)
            task.model.note = value(logits.detach())
            return F.cross_entropy(logits, labels)

        return loss

    return own(blank=blank, loss=loss)


class Scaled(Model):
    """A model with a number that no file stores."""

    scale = 1.0

    def classify(self, features: Tensor) -> Tensor:
        return self.scale * super().classify(features)


class Squared(Model):
    """A model that squares features before the head."""

    def classify(self, features: Tensor) -> Tensor:
        return super().classify(features.square())


def scale_model(task: Task) -> None:
    task.model.scale = 2.0


def add_part(task: Task) -> None:
    task.model.extra = torch.nn.Linear(2, 2).requires_grad_(False)


def change_teacher(task: Task) -> None:
    if task.teacher is not None:
        task.teacher.head.bias.data.add_(1)


def grow_previous(self: Right, setting: Setting, step: Step, previous: Any) -> Model:
    previous.grow(step.seen)
    model: Model = previous
    return model


def grow_too_wide(self: Right, setting: Setting, step: Step, previous: Any) -> Model:
    model = Learner.successor(self, setting, step, previous)
    model.grow(step.seen + 1)
    return model


def forget_calls(self: Right, task: Task) -> Any:
    """Return a loss that counts its calls in this training alone."""
    calls = itertools.count(1)
    return lambda images, labels: F.cross_entropy(task.model(images), labels) / next(calls)


def gather_rough(logits: Tensor, labels: Tensor) -> Tensor:
    gathered = torch.zeros(logits.shape)
    gathered[torch.arange(len(labels))] = logits  # bfloat16 does not fit
    return F.cross_entropy(gathered, labels)


def mean_of_old(self: Right, task: Task) -> Any:
    """Return a loss with a mean over the old images of a share."""

    def loss(images: Tensor, labels: Tensor, from_memory: Tensor) -> Tensor:
        each = F.cross_entropy(task.model(images), labels, reduction="none")
        return each.mean() + (each * from_memory).sum() / from_memory.sum().clamp(min=1)

    return loss


def fixed_schedule(self: Right, task: Task) -> Iterator[Stage]:
    yield Stage("train", task.model, self.loss(task), Schedule(epochs=170, lr=0.05), task.train_plus)


def noisy(self: Right, task: Task) -> Any:
    return lambda x, labels: F.cross_entropy(task.model(x + 0.1 * torch.randn_like(x)), labels)


WRONG: dict[str, tuple[str, Learner, str]] = {
    "fixed schedule": ("schedules", own(stages=fixed_schedule), "epochs"),
    "wide logits": ("classes", own(successor=grow_too_wide), r"\[48, 4\]"),
    "infinite logits": (
        "classes",
        training(lambda task: task.model.head.bias.data.fill_(torch.inf)),
        "finite",
    ),
    "head not linear": ("classes", with_model(Squared), "linear"),
    "state beside weights": (
        "stored",
        with_model(Scaled, stages=type(training(scale_model)).__dict__["stages"]),
        "computes other",
    ),
    "other shape": ("stored", training(add_part, first=True), "blank"),
    "changed teacher": ("teacher", training(change_teacher, first=True), "head.bias"),
    "changed previous model": ("teacher", own(successor=grow_previous), "previous"),
    "global random numbers": ("repeatable", own(loss=noisy), "global generator"),
    "state beside the model": ("resume", own(loss=forget_calls), "epoch 1"),
    "large memory": (
        "memory",
        with_memory(lambda m, labels: tuple((labels == c).nonzero()[:, 0] for c in range(len(m.per_class)))),
        r"\[12, 12\]",
    ),
    "memory of other classes": ("memory", with_memory(lambda m, _: m.per_class[::-1]), "other classes"),
    "all old images": (
        "images",
        on_rows(lambda task: (task.setting.images.labels < task.step.seen).nonzero().flatten()),
        "not in the memory",
    ),
    "undeclared memory": ("images", own(revisits=False), "revisits"),
    "later images": (
        "images",
        on_rows(lambda task: torch.arange(len(task.setting.images))),
        r"\[2, 3, 4, 5\]",
    ),
    "climbs": ("learns", of_logits(lambda z, y: -0.1 * F.cross_entropy(z, y).clamp(max=3)), "accuracy"),
    "types that do not fit": ("bfloat16", of_logits(gather_rough), "float"),
    "bfloat16 buffer": ("bfloat16", with_note(lambda z: z.mean()), "note"),
    "sum": ("shares", of_logits(lambda z, y: F.cross_entropy(z, y, reduction="sum") / 8), "mean over"),
    "mean of a share": ("shares", own(loss=mean_of_old), "masked_mean"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_check_finds_a_method_that_breaks_it(what: str) -> None:
    check, learner, key = WRONG[what]
    with pytest.raises(AssertionError, match=key):
        LEARNER_CHECKS[check](learner)


def test_every_check_has_a_method_that_breaks_it() -> None:
    assert {check for check, _, _ in WRONG.values()} == set(LEARNER_CHECKS)


def test_a_refusal_is_a_failure_with_its_reason() -> None:
    def stages(self: Right, task: Task) -> Iterator[Stage]:
        raise BadInput("it is Monday")

    with pytest.raises(AssertionError, match=r"Own .*it is Monday"):
        check_learner(own(stages=stages))
