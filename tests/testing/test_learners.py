"""The checks of the CIL methods' contract: ours pass them, and each check catches what it is for."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil import BadInput, Learner, Model, Schedule, Stage, Task, create_learner, list_learners
from opencil.cil.learner import Setting, masked_mean
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.testing import LEARNER_CHECKS, check_learner

#: Values with which a method is as quick as others on a few images.
QUICKER: dict[str, dict[str, Any]] = {name: {"width": 100} for name in ("acil", "ranpac")}


@pytest.mark.parametrize("check", LEARNER_CHECKS)
@pytest.mark.parametrize("name", list_learners())
def test_every_registered_method_keeps_the_contract(name: str, check: str) -> None:
    LEARNER_CHECKS[check](create_learner(name, **QUICKER[name]) if name in QUICKER else name)


@dataclass(frozen=True)
class Right(Learner):
    """Nothing wrong: cross-entropy on the new classes and the memory."""

    schedule: Schedule = Schedule(epochs=170, lr=0.05)

    def stages(self, task: Task) -> Iterator[Stage]:
        yield Stage("train", task.model, self.loss(task), self.schedule, task.train_plus)

    def loss(self, task: Task) -> Any:
        return lambda images, labels: F.cross_entropy(task.model(images), labels)


@dataclass(frozen=True)
class InTwo(Right):
    """Nothing wrong: a second stage for the head alone, begun from what the first one made."""

    def stages(self, task: Task) -> Iterator[Stage]:
        yield from super().stages(task)
        scale = float(task.model.head.weight.detach().abs().mean())
        task.model.backbone.requires_grad_(False)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(task.model(images) / (1 + scale), labels)

        yield Stage("head", task.model.head, loss, self.schedule, task.train_plus)


@dataclass(frozen=True)
class Gathers(Right):
    """Nothing wrong: float32 logits, put into a tensor row by row."""

    def loss(self, task: Task) -> Any:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            gathered = torch.zeros(len(labels), task.step.seen)
            gathered[torch.arange(len(labels))] = self.logits(task, images)
            return F.cross_entropy(gathered, labels)

        return loss

    def logits(self, task: Task, images: Tensor) -> Tensor:
        z: Tensor = task.model(images)
        return z.float()


@dataclass(frozen=True)
class Asks(Right):
    """Nothing wrong: old classes weigh twice, both views should look alike, images it has seen weigh less."""

    def blank(self, setting: Setting, step: Step) -> Model:
        return Remembering(len(setting.images), setting.new_backbone(), step.seen)

    def loss(self, task: Task) -> Any:
        def loss(
            images: Tensor, labels: Tensor, index: Tensor, from_memory: Tensor, second_view: Tensor
        ) -> Tensor:
            assert torch.equal(task.setting.images.labels[index], labels)
            assert torch.equal(from_memory, labels < task.step.old)
            with torch.no_grad():
                task.model.seen[index] += 1
            weights = (1.0 + from_memory) / task.model.seen[index].sqrt()
            logits, others = task.model(images).float(), task.model(second_view).float()
            agreement = (logits - others).square().mean()
            return (weights * F.cross_entropy(logits, labels, reduction="none")).mean() + 0.01 * agreement

        return loss


class Remembering(Model):
    """A model that counts how often each training image was seen."""

    def __init__(self, images: int, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("seen", torch.zeros(images))
        self.seen: Tensor


ADAMW = Schedule(epochs=100, lr=0.01, optimiser="adamw", decay="cosine", weight_decay=0.05, warmup=5)


@pytest.mark.parametrize(
    "learner",
    [
        Gathers(),
        Right(Schedule(epochs=3, lr=0.01, milestones=(2,))),
        InTwo(ADAMW),
        Asks(Schedule(epochs=9, lr=0.01, optimiser="adam", decay="every", every=4)),
    ],
)
def test_a_method_of_ones_own_keeps_the_contract(learner: Learner) -> None:
    before = torch.get_rng_state()
    check_learner(learner)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"


@dataclass(frozen=True)
class Lasting(Right):
    """Has a schedule that nobody can shorten."""

    def stages(self, task: Task) -> Iterator[Stage]:
        yield Stage("train", task.model, self.loss(task), Schedule(epochs=170, lr=0.05), task.train_plus)


@dataclass(frozen=True)
class Wide(Right):
    """Grows a row too many."""

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        model = super().successor(setting, step, previous)
        model.grow(step.seen + 1)
        return model


@dataclass(frozen=True)
class Explodes(Right):
    """Ends with a head that is not finite."""

    def stages(self, task: Task) -> Iterator[Stage]:
        yield from super().stages(task)
        task.model.head.bias.data.fill_(torch.inf)


class Scaled(Model):
    """A model with a number that no file keeps."""

    scale = 1.0

    def classify(self, features: Tensor) -> Tensor:
        return self.scale * super().classify(features)


class Squared(Model):
    """Features are squared before the head."""

    def classify(self, features: Tensor) -> Tensor:
        return super().classify(features.square())


@dataclass(frozen=True)
class Squares(Right):
    """Says that its head is linear."""

    def blank(self, setting: Setting, step: Step) -> Model:
        return Squared(setting.new_backbone(), step.seen)


@dataclass(frozen=True)
class Forgetful(Right):
    """Changes that number in training."""

    def blank(self, setting: Setting, step: Step) -> Model:
        return Scaled(setting.new_backbone(), step.seen)

    def stages(self, task: Task) -> Iterator[Stage]:
        yield from super().stages(task)
        task.model.scale = 2.0


@dataclass(frozen=True)
class Misshapen(Right):
    """Adds a part to the model in training that a blank one has not."""

    def stages(self, task: Task) -> Iterator[Stage]:
        task.model.extra = torch.nn.Linear(2, 2).requires_grad_(False)
        yield from super().stages(task)


@dataclass(frozen=True)
class Spoils(Right):
    """Changes its teacher."""

    def stages(self, task: Task) -> Iterator[Stage]:
        if task.teacher is not None:
            task.teacher.head.bias.data.add_(1)
        yield from super().stages(task)


@dataclass(frozen=True)
class SpoilsThePast(Right):
    """Goes on training the previous model instead of a copy."""

    def successor(self, setting: Setting, step: Step, previous: Any) -> Model:
        previous.grow(step.seen)
        model: Model = previous
        return model


@dataclass(frozen=True)
class Noisy(Right):
    """Draws noise from whatever the global generator is at."""

    def loss(self, task: Task) -> Any:
        return lambda x, labels: F.cross_entropy(task.model(x + 0.1 * torch.randn_like(x)), labels)


COUNT: list[int] = []


@dataclass(frozen=True)
class Counts(Right):
    """Learns otherwise the more it has learned before, in this process."""

    def loss(self, task: Task) -> Any:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            COUNT.append(1)
            return F.cross_entropy(task.model(images), labels) / (1 + 0.01 * len(COUNT))

        return loss


@dataclass(frozen=True)
class Impatient(Right):
    """Learns otherwise the longer a stage lasts, and forgets how long when it is stopped."""

    def loss(self, task: Task) -> Any:
        calls: list[int] = []

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            calls.append(1)
            return F.cross_entropy(task.model(images), labels) / len(calls)

        return loss


@dataclass(frozen=True)
class Hoards(Right):
    """Remembers everything."""

    def remember(self, task: Task) -> Memory:
        memory = super().remember(task)
        labels = task.setting.images.labels
        return replace(
            memory, per_class=tuple((labels == c).nonzero().flatten() for c in range(task.step.seen))
        )


@dataclass(frozen=True)
class MixesUp(Right):
    """Remembers images under another class's name."""

    def remember(self, task: Task) -> Memory:
        memory = super().remember(task)
        return replace(memory, per_class=memory.per_class[::-1])


@dataclass(frozen=True)
class Cheats(Right):
    """Sees all old images, and says that it has a memory."""

    def stages(self, task: Task) -> Iterator[Stage]:
        labels = task.setting.images.labels
        every = (labels < task.step.seen).nonzero().flatten()
        yield Stage("train", task.model, self.loss(task), self.schedule, every)


@dataclass(frozen=True)
class CheatsQuietly(Right):
    """Sees the memory, and says that it sees no old images."""

    revisits: ClassVar[bool] = False


@dataclass(frozen=True)
class Foresees(Right):
    """Puts images of classes to come among those of its own, under a label of now."""

    def stages(self, task: Task) -> Iterator[Stage]:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(task.model(images), labels.clamp(max=task.step.seen - 1))

        everything = torch.arange(len(task.setting.images))
        yield Stage("train", task.model, loss, self.schedule, everything)


@dataclass(frozen=True)
class Peeks(Right):
    """Trains on what it may, and looks at the mean feature of the next class before."""

    def stages(self, task: Task) -> Iterator[Stage]:
        ahead = (task.setting.images.labels == task.step.seen).nonzero().flatten()
        if len(ahead):
            task.model.head.bias.data += task.outputs(ahead).features.mean()
        yield from super().stages(task)


@dataclass(frozen=True)
class Backwards(Right):
    """Climbs."""

    def loss(self, task: Task) -> Any:
        return lambda images, labels: -0.1 * F.cross_entropy(task.model(images), labels).clamp(max=3)


@dataclass(frozen=True)
class GathersRough(Gathers):
    """Gathers them as they come; in bfloat16 the tensor refuses them."""

    def logits(self, task: Task, images: Tensor) -> Tensor:
        z: Tensor = task.model(images)
        return z


def thousandth(logits: Tensor) -> Tensor:
    """0.001 in float32, 0 in bfloat16."""
    return (torch.ones_like(logits) + 1e-3 - 1).float()


@dataclass(frozen=True)
class Divides(Right):
    """Divides by what bfloat16 rounds to 0."""

    def loss(self, task: Task) -> Any:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits = task.model(images)
            return F.cross_entropy(1e-3 * logits / thousandth(logits), labels)

        return loss


class Noted(Model):
    """A model with a number beside its weights."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("note", torch.zeros(()))


@dataclass(frozen=True)
class Notes(Right):
    """Notes the mean of the logits, in whatever type they have."""

    def blank(self, setting: Setting, step: Step) -> Model:
        return Noted(setting.new_backbone(), step.seen)

    def loss(self, task: Task) -> Any:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            logits = task.model(images)
            task.model.note = self.note(logits.detach())
            return F.cross_entropy(logits, labels)

        return loss

    def note(self, logits: Tensor) -> Tensor:
        return logits.mean()


@dataclass(frozen=True)
class NotesInfinity(Notes):
    """Notes one divided by what bfloat16 rounds to 0."""

    def note(self, logits: Tensor) -> Tensor:
        return 1 / thousandth(logits).mean()


@dataclass(frozen=True)
class Sums(Right):
    """A sum over the batch."""

    def loss(self, task: Task) -> Any:
        return lambda images, labels: F.cross_entropy(task.model(images), labels, reduction="sum") / 8


@dataclass(frozen=True)
class MeansOfSome(Right):
    """A mean over the old images of the share at hand."""

    def loss(self, task: Task) -> Any:
        def loss(images: Tensor, labels: Tensor, from_memory: Tensor) -> Tensor:
            each = F.cross_entropy(task.model(images), labels, reduction="none")
            return each.mean() + self.mean(each, from_memory)

        return loss

    def mean(self, each: Tensor, chosen: Tensor) -> Tensor:
        return (each * chosen).sum() / chosen.sum().clamp(min=1)


@dataclass(frozen=True)
class MeansOfAllOfThem(MeansOfSome):
    """Nothing wrong: a mean over the old images of the whole batch."""

    def mean(self, each: Tensor, chosen: Tensor) -> Tensor:
        return masked_mean(each, chosen)


@dataclass(frozen=True)
class Refuses(Right):
    """Refuses to begin."""

    reason: str = field(default="it is Monday", kw_only=True)

    def stages(self, task: Task) -> Iterator[Stage]:
        raise BadInput(self.reason)


WRONG: list[tuple[str, Learner, str]] = [
    ("schedules", Lasting(), "Lasting's stage 'train' has 170 epochs when 2 are asked for"),
    ("classes", Wide(), r"Wide gives logits \[48, 5\] after step 2: \[48, 4\] are needed"),
    ("classes", Explodes(), "Explodes's logits are not finite after step 1"),
    ("classes", Squares(), r"Squares's logits are not W f \+ b after step 1, and detectors .* `linear: "),
    ("stored", Forgetful(), "Forgetful's model computes otherwise when it is loaded after step 1"),
    ("stored", Misshapen(), "Misshapen's `blank` is not shaped like the model after step 1"),
    ("teacher", Spoils(), "Spoils changes the teacher: head.bias"),
    ("teacher", SpoilsThePast(), "SpoilsThePast changes the model of the step before"),
    ("repeatable", Noisy(), "Noisy draws from torch's global generator"),
    ("repeatable", Counts(), "Counts gives other weights the second time"),
    ("resume", Impatient(), "Impatient ends elsewhere when it goes on after epoch 1 of stage 'train'"),
    ("memory", Hoards(), r"Hoards remembers \[12, 12\] images of the classes after step 1: \[9, 9\]"),
    ("memory", MixesUp(), r"MixesUp remembers images of classes \[1\] as class 0"),
    ("images", Cheats(), "step 2 sees 6 images of old classes that are not in the memory"),
    ("images", CheatsQuietly(), "step 2 sees 18 images of old classes, and its `revisits` says"),
    ("images", Foresees(), r"step 1 sees images of classes \[2, 3, 4, 5\], which are still to come"),
    ("images", Peeks(), r"Peeks's step 1 sees images of classes \[2\], which are still to come"),
    ("learns", Backwards(), "Backwards knows .* of the images that it was trained on"),
    (
        "bfloat16",
        GathersRough(),
        r"GathersRough in bfloat16.* cannot train: .*BFloat16.*; logits are .*`\.float\(\)`",
    ),
    ("bfloat16", Divides(), "Divides in bfloat16.* cannot train: .* the loss is nan"),
    (
        "bfloat16",
        Notes(),
        r"Notes in bfloat16.* leaves note not finite, or not float32, after step 1: .*`\.float\(\)`",
    ),
    ("bfloat16", NotesInfinity(), "NotesInfinity in bfloat16.* leaves note not finite, or"),
    (
        "shares",
        Sums(),
        "Sums's loss of stage 'train' is .* of a batch and .* of its shares.* should be a mean",
    ),
    ("shares", MeansOfSome(), "MeansOfSome's loss of stage 'train' is .* `masked_mean` is one over some"),
]


@pytest.mark.parametrize(
    ("check", "learner", "sentence"), WRONG, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_broken_promise_is_caught_and_named(check: str, learner: Learner, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        LEARNER_CHECKS[check](learner)


def test_a_mean_over_some_images_of_a_batch_can_be_shared() -> None:
    LEARNER_CHECKS["shares"](MeansOfAllOfThem())


def test_every_check_has_a_method_that_breaks_it() -> None:
    assert {check for check, _, _ in WRONG} == set(LEARNER_CHECKS)


def test_check_learner_runs_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []
    for name in LEARNER_CHECKS:
        monkeypatch.setitem(LEARNER_CHECKS, name, lambda learner, name=name: asked.append((name, learner)))
    right = Right()
    check_learner(right)
    assert asked == [(name, right) for name in LEARNER_CHECKS]


def test_a_refusal_is_a_failure_and_the_reason_is_told() -> None:
    with pytest.raises(AssertionError, match="Refuses refuses a good run: it is Monday"):
        check_learner(Refuses())
