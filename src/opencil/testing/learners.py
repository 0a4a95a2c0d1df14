"""Check the contract of CIL methods, on a few real digits in steps of two classes."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from opencil.cil.learner import Learner, Setting, Task
from opencil.data.digits import Digits
from opencil.data.images import ImageSet
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.forward import Outputs, forward, linear_head
from opencil.engine.loop import Checkpoint, Diverged, Progress, Stage, batches
from opencil.engine.ranks import Ranks, using
from opencil.evaluation.metrics import accuracy
from opencil.nets.model import Model
from opencil.registry import LEARNERS
from opencil.testing.contract import call_twice, collect_checks, list_differences, run_checks

_CLASSES, _PER_STEP, _IMAGES, _EPOCHS, _MEMORY = 6, 2, 12, 2, 18
_STEPS = _CLASSES // _PER_STEP
_RANKS = 3  #: with 3, 3 and 2 of 8 images

AnyLearner = str | Learner


@cache
def _stream() -> Stream:
    """Return six digits in three steps."""

    def select(images: ImageSet) -> ImageSet:
        chosen = [(images.labels == c).nonzero().flatten()[:_IMAGES] for c in range(_CLASSES)]
        rows = torch.cat(chosen).sort().values
        return ImageSet(images.name, images.images[rows], images.labels[rows])

    train, test = (select(Digits().load(split, 8, None)) for split in ("train", "test"))
    return Stream.create(train, test, _PER_STEP)


def _setting(**changes: Any) -> Setting:
    stream = _stream()
    transform = Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8, padding=1, flip=False)
    setting = Setting(stream.train, stream.test, transform, "resnet8", 8, initialisation_seed=1, data_seed=2)
    return replace(setting, **changes)


class _Bfloat16(Arithmetic):
    """bfloat16 where autocast allows, on a CPU too."""

    def on(self, device: torch.device) -> str:
        """Return bfloat16 for every device."""
        return "bf16"


@dataclass(frozen=True, repr=False)
class _Recorder(ImageSet):
    """Images with a record of the served indices."""

    served: set[int] = field(default_factory=set)

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Serve images and record their indices."""
        self.served.update(indices.tolist())
        return super().batches(indices, size)


class _Run:
    """A method's run over the steps with short schedules, and the results of its last step."""

    def __init__(self, method: AnyLearner, epochs: int = _EPOCHS, **changes: Any) -> None:
        learner = LEARNERS.create(method) if isinstance(method, str) else method
        self.learner: Learner = replace(learner, epochs=epochs)
        self.epochs, self.setting = epochs, _setting(**changes)
        self.memory, self.previous = Memory(_MEMORY), None

    def begin(self, number: int) -> Task:
        """Return a step's task before its training."""
        return self.learner.begin(self.setting, _stream()[number - 1], self.memory, self.previous)

    def train(self, task: Task, checkpoint: Checkpoint | None = None) -> Iterator[Progress]:
        """Train a step, yielding after each iteration."""
        for progress in self.learner.learn(task, checkpoint):
            found = f"has {progress.epochs} epochs in stage {progress.stage!r} where {self.epochs} are set"
            assert progress.epochs == self.epochs, f"{found}: a method's schedules should be fields of it"
            yield progress

    def step(self, number: int) -> Task:
        """Train a step to its end, and store its results for the next."""
        task = self.begin(number)
        list(self.train(task))
        self.memory, self.previous = self.learner.remember(task), task.model
        return task

    def steps(self, count: int = _STEPS) -> Iterator[Task]:
        """Train the first steps, yielding after each."""
        return map(self.step, range(1, count + 1))


def _state(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _test_outputs(model: Model, task: Task) -> Outputs:
    """Return the outputs of the test images of the classes seen."""
    return forward(model, task.setting.test_images, task.setting.transform, task.step.test)


def check_schedules(learner: AnyLearner) -> None:
    """``epochs`` sets the length of every stage, as ``--epochs-scale`` does."""
    list(_Run(learner).steps(2))


def check_classes(learner: AnyLearner) -> None:
    """After each step features and logits are finite, with a logit W f + b for each class seen."""
    run = _Run(learner)
    for task in run.steps():
        after, outputs = f"after step {task.step.number}", _test_outputs(task.model, task)
        shape, expected = list(outputs.logits.shape), [len(task.step.test), task.step.seen]
        assert shape == expected, f"gives logits {shape} {after}: {expected} are expected"
        finite = torch.isfinite(outputs.features).all() and torch.isfinite(outputs.logits).all()
        assert finite, f"gives features or logits that are not finite {after}"
        head = linear_head(task.model.classify, outputs.features.shape[1], outputs.features.device)
        linear = head or not run.learner.linear
        assert linear, f"gives logits that are not W f + b {after}: declare `linear = False`"


def check_stored(learner: AnyLearner) -> None:
    """The model's weights are all that a step leaves: a new model with them computes the same."""
    run = _Run(learner)
    for task in run.steps(2):
        blank, after = run.learner.load(task.setting, task.step), f"after step {task.step.number}"
        try:
            blank.load_state_dict(task.model.state_dict(), strict=True)
        except RuntimeError as error:
            raise AssertionError(f"has a `blank` of another shape than the model {after}: {error}") from error
        same = torch.equal(_test_outputs(task.model, task).logits, _test_outputs(blank, task).logits)
        assert same, f"computes other logits when loaded {after}: all its state must be in `task.model`"


def check_teacher(learner: AnyLearner) -> None:
    """The previous step's model and the teacher, which is its copy, stay unchanged."""
    run = _Run(learner)
    previous = run.step(1).model
    before, task = _state(previous), run.step(2)
    for name, model in (("the previous step's model", previous), ("the teacher", task.teacher)):
        changed = list_differences(_state(model), before)
        assert not changed, f"changes {name}: {changed}"


def check_repeatable(learner: AnyLearner) -> None:
    """The seeds determine the weights, and torch's global generator stays unchanged."""
    first, again = call_twice(lambda: _state([*_Run(learner).steps(2)][-1].model))
    changed = list_differences(again, first)
    assert not changed, f"gives other weights the second time: {changed}"


def check_resume(learner: AnyLearner) -> None:
    """A step that is resumed after any epoch of any stage gives the same weights."""
    run = _Run(learner)
    run.step(1)
    whole, stored = run.begin(2), []
    for progress in run.train(whole):
        if progress.epoch_ends:
            tensors = Checkpoint.take(whole.model, progress, whole.ended).tensors()
            stored.append((f"epoch {progress.epoch} of stage {progress.stage!r}", copy.deepcopy(tensors)))
    for place, tensors in stored:
        task = run.begin(2)
        list(run.train(task, Checkpoint.from_tensors(tensors)))
        changed = list_differences(_state(task.model), _state(whole.model))
        assert not changed, f"ends with other {changed} if resumed after {place}: keep state in `task.model`"


def check_memory(learner: AnyLearner) -> None:
    """The memory has equally many images of every class, as many as it has room for; or it stays empty."""
    run, labels = _Run(learner), _stream().train.labels
    for task in run.steps():
        seen, remembered = task.step.seen, run.memory.per_class
        expected = [min(_MEMORY // seen, _IMAGES)] * seen if run.learner.remembers else []
        counts = [len(indices) for indices in remembered]
        after = f"after step {task.step.number}, in a memory of {_MEMORY}"
        assert counts == expected, f"remembers {counts} images of the classes {after}: {expected} expected"
        wrong = [c for c, indices in enumerate(remembered) if (labels[indices] != c).any()]
        assert not wrong, f"remembers images of other classes as those of {wrong}"


def check_images(learner: AnyLearner) -> None:
    """No step reads images of later classes, nor old images beyond its memory and its ``revisits``."""
    images: Any = _stream().train
    recorder = _Recorder(images.name, images.images, images.labels)
    run = _Run(learner, images=recorder)
    for number in range(1, _STEPS + 1):
        recorder.served.clear()
        stored, task = set(run.memory.indices.tolist()), run.step(number)
        labels = images.labels[sorted(recorder.served)]
        later = sorted(set(labels[labels >= task.step.seen].tolist()))
        assert not later, f"reads images of the later classes {later} in step {number}"
        old = recorder.served - set(task.step.train.tolist())
        declared, allowed = run.learner.revisits or not old, old <= stored or not run.learner.remembers
        assert declared, f"reads old images in step {number}: `revisits` declares that it reads none"
        assert allowed, f"reads {len(old - stored)} old images in step {number} that are not in the memory"


def check_learns(learner: AnyLearner) -> None:
    """After 20 epochs of step 1 the accuracy on its training images exceeds 75 %."""
    (task,) = _Run(learner, epochs=20).steps(1)
    outputs = forward(task.model, task.setting.images, task.setting.transform, task.step.train)
    assert outputs.labels is not None
    right = accuracy(outputs.logits.argmax(dim=1), outputs.labels)
    assert right > 0.75, f"has an accuracy of {right:.0%} after 20 epochs on digits of two classes"


def check_bfloat16(learner: AnyLearner) -> None:
    """Under bfloat16 autocast, as on a GPU, it trains, and leaves finite float32 or float64 weights."""
    hint = "in bfloat16, the default on GPUs: call `.float()` on logits before you store or divide them"
    try:
        for task in _Run(learner, arithmetic=_Bfloat16()).steps(2):
            for name, tensor in _state(task.model).items():
                exact = tensor.dtype in (torch.float32, torch.float64) and torch.isfinite(tensor).all()
                assert exact or not tensor.is_floating_point(), f"leaves {name} not finite float32, {hint}"
    except (RuntimeError, TypeError, Diverged) as error:  # torch raises both where types do not fit
        raise AssertionError(f"cannot train ({error}) {hint}") from error


class _Rank(Ranks):
    """One of several ranks that run in turn: in a first round each adds its tensors, then each reads sums."""

    def __init__(self, rank: int, added: list[list[Tensor]]) -> None:
        self.rank, self.size, self._adds = rank, _RANKS, len(added) < _RANKS
        self._sums = iter([torch.stack(tensors).sum(dim=0) for tensors in zip(*added, strict=False)])
        if self._adds:
            added.append([])
            self._added = added[-1]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks, once each has added its tensor."""
        if not self._adds:
            return next(self._sums)
        self._added.append(tensor.clone())
        return tensor


def _weighted_loss(stage: Stage, task: Task) -> Tensor:
    """Return the loss of a rank's share of a batch times its weight, or of the batch without ranks."""
    setting, before = _setting(), _state(task.model)
    feed, loss = batches(stage, setting.images, setting.transform, 8, (0,), task.step.old)
    found = loss(*next(iter(feed.epoch(0)))).detach()
    task.model.load_state_dict(before)  # a loss may change buffers
    return found if feed.share is None else found * feed.share.weight


def check_shares(learner: AnyLearner) -> None:
    """The loss of a batch is the weighted mean over its shares, so that several GPUs train as one."""
    run = _Run(learner)
    run.step(1)
    task = run.begin(2)
    for stage in run.learner.stages(task) or ():
        if stage.tensors:  # each rank has all of them
            continue
        stage.module.eval()
        whole, added, losses = _weighted_loss(stage, task), list[list[Tensor]](), list[Tensor]()
        for rank in 2 * [*range(_RANKS)]:
            with using(_Rank(rank, added)):
                losses.append(_weighted_loss(stage, task))
        total = sum(losses[_RANKS:], torch.zeros(()))
        found = f"has a loss of {float(whole):g} on a batch of {stage.name!r}, {float(total):g} on its shares"
        hint = "it should be a mean over the batch's images; `masked_mean` is one over some of them"
        assert torch.allclose(total, whole, rtol=1e-4, atol=1e-6), f"{found}: {hint}"


#: Every check of the CIL methods' contract, by name.
LEARNER_CHECKS = collect_checks(vars())


def check_learner(learner: AnyLearner) -> None:
    """Run every check on a CIL method: a registered name, or a learner with values of its own."""
    run_checks(LEARNER_CHECKS, learner, learner)
