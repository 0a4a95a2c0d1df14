"""The CIL methods' contract as checks, on a few real digits that arrive two classes at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from opencil.cil.learner import Learner, Setting, Task
from opencil.data.digits import Digits
from opencil.data.images import ImageSet
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.checkpoint import Checkpoint
from opencil.engine.forward import Outputs, forward, linear_head
from opencil.engine.loop import Diverged, Progress, Stage, batches
from opencil.engine.ranks import Ranks, among
from opencil.errors import OpenCILError
from opencil.evaluation.metrics import accuracy
from opencil.nets.model import Model
from opencil.registry import LEARNERS

_CLASSES, _PER_STEP, _IMAGES, _EPOCHS, _MEMORY = 6, 2, 12, 2, 18
_RANKS = 3  #: which have 3, 3 and 2 of 8 images

Weights = dict[str, Tensor]


def check_learner(learner: str | Learner) -> None:
    """Run every check on a CIL method: a registered name, or one with values of its own."""
    for check in LEARNER_CHECKS.values():
        try:
            check(learner)
        except OpenCILError as error:
            raise AssertionError(f"{_name(learner)} refuses a good run: {error}") from error


@lru_cache(maxsize=1)
def _stream() -> Stream:
    """Six digits in three steps."""

    def few(images: ImageSet) -> ImageSet:
        chosen = [(images.labels == c).nonzero().flatten()[:_IMAGES] for c in range(_CLASSES)]
        rows = torch.cat(chosen).sort().values
        return ImageSet(images.name, images.images[rows], images.labels[rows])

    digits = Digits()
    return Stream.create(few(digits.load("train", 8, None)), few(digits.load("test", 8, None)), _PER_STEP)


def _setting() -> Setting:
    stream = _stream()
    transform = Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8, padding=1, flip=False)
    return Setting(stream.train, stream.test, transform, "resnet8", 8, initialisation_seed=1, data_seed=2)


class _AsOnAGPU(Arithmetic):
    """bfloat16 where autocast allows, on the CPU too."""

    def on(self, device: torch.device) -> str:
        """bfloat16, whatever the device has."""
        return "bf16"


def _outputs(model: Model, task: Task) -> Outputs:
    """Of the test images of the classes seen."""
    return forward(model, task.setting.test_images, task.setting.transform, task.step.test)


def _name(learner: str | Learner) -> str:
    return learner if isinstance(learner, str) else type(learner).__name__


@dataclass
class _Walk:
    """A method on its way through the steps, all its schedules ``epochs`` long; what the last step left."""

    learner: Learner
    epochs: int = _EPOCHS
    memory: Memory = Memory(_MEMORY)
    previous: Model | None = None
    arithmetic: Arithmetic = FULL
    images: ImageSet | None = None  #: those of the stream, unless they are watched

    @classmethod
    def start(cls, learner: str | Learner, epochs: int = _EPOCHS) -> "_Walk":
        """Before the first step."""
        if isinstance(learner, str):
            return cls(LEARNERS.create(learner, epochs=epochs), epochs)
        return cls(replace(learner, epochs=epochs), epochs)

    def begin(self, number: int) -> Task:
        """A step's task, not trained yet."""
        setting = replace(_setting(), arithmetic=self.arithmetic, images=self.images or _stream().train)
        return self.learner.begin(setting, _stream()[number - 1], self.memory, self.previous)

    def train(self, task: Task, checkpoint: Checkpoint | None = None) -> Iterator[Progress]:
        """The iterations of a step."""
        for progress in self.learner.learn(task, checkpoint):
            assert progress.epochs == self.epochs, (
                f"{_name(self.learner)}'s stage {progress.stage!r} has {progress.epochs} epochs when "
                f"{self.epochs} are asked for: a method's schedules should be fields of it, which can be set"
            )
            yield progress

    def end(self, task: Task) -> None:
        """Take over what a trained step leaves to the next."""
        self.memory, self.previous = self.learner.remember(task), task.model

    def steps(self, count: int) -> Iterator[Task]:
        """The first steps, one by one, each when it has been trained."""
        for number in range(1, count + 1):
            task = self.begin(number)
            for _ in self.train(task):
                pass
            self.end(task)
            yield task


def _after_first_step(learner: str | Learner) -> _Walk:
    walk = _Walk.start(learner)
    list(walk.steps(1))
    return walk


def _state(model: Model | None) -> Weights:
    return {} if model is None else {key: tensor.clone() for key, tensor in model.state_dict().items()}


def _differing(actual: Weights, expected: Weights) -> list[str]:
    """Names of the tensors that are not the same bits."""
    if actual.keys() != expected.keys():
        return sorted(actual.keys() ^ expected.keys())
    return [key for key, tensor in expected.items() if not torch.equal(actual[key], tensor)]


def check_schedules(learner: str | Learner) -> None:
    """``epochs`` sets the length of every stage, as ``--epochs-scale`` does."""
    list(_Walk.start(learner).steps(2))


def check_classes(learner: str | Learner) -> None:
    """After every step the model gives finite features and a finite logit for each class seen.

    They are W f + b, unless the method says that they are not.
    """
    walk = _Walk.start(learner)
    for task in walk.steps(len(_stream())):
        step = task.step
        outputs = _outputs(task.model, task)
        shape = list(outputs.logits.shape)
        assert shape == [len(step.test), step.seen], (
            f"{_name(learner)} gives logits {shape} after step {step.number}: "
            f"[{len(step.test)}, {step.seen}] are needed, one for each class seen"
        )
        for what, values in (("features", outputs.features), ("logits", outputs.logits)):
            assert torch.isfinite(values).all(), (
                f"{_name(learner)}'s {what} are not finite after step {step.number}"
            )
        found = linear_head(task.model.classify, outputs.features.shape[1], outputs.features.device)
        assert found is not None or not walk.learner.linear, (
            f"{_name(learner)}'s logits are not W f + b after step {step.number}, and detectors that read a "
            "head so would fail: `linear: ClassVar[bool] = False` leaves them out"
        )


def check_stored(learner: str | Learner) -> None:
    """The weights of the model are all that a step leaves: a fresh model with them computes the same."""
    walk = _Walk.start(learner)
    for task in walk.steps(2):
        blank, number = walk.learner.load(task.setting, task.step), task.step.number
        try:
            blank.load_state_dict(task.model.state_dict(), strict=True)
        except RuntimeError as error:
            raise AssertionError(
                f"{_name(learner)}'s `blank` is not shaped like the model after step {number}: {error}"
            ) from error
        assert torch.equal(_outputs(task.model, task).logits, _outputs(blank, task).logits), (
            f"{_name(learner)}'s model computes otherwise when it is loaded after step {number}: all that "
            "training changes must be parameters or buffers of `task.model`"
        )


def check_teacher(learner: str | Learner) -> None:
    """The model of the step before, and the teacher that is its copy, stay as they are."""
    walk = _after_first_step(learner)
    task = walk.begin(2)
    before = _state(walk.previous)
    for _ in walk.train(task):
        pass
    for what, model in (("the model of the step before", walk.previous), ("the teacher", task.teacher)):
        changed = _differing(_state(model), before)
        assert not changed, f"{_name(learner)} changes {what}: {', '.join(changed[:3])}"


def check_repeatable(learner: str | Learner) -> None:
    """The same seeds give the same weights, whatever the global generator is at, and leave it there."""
    endings = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            walk = _Walk.start(learner)
            list(walk.steps(2))
            endings.append(_state(walk.previous))
            assert torch.equal(torch.get_rng_state(), before), (
                f"{_name(learner)} draws from torch's global generator, so that packed runs disturb each "
                "other: random choices should follow from the setting's seeds (`opencil.engine.seeding`)"
            )
    changed = _differing(*endings)
    assert not changed, f"{_name(learner)} gives other weights the second time: {', '.join(changed[:3])}"


def check_resume(learner: str | Learner) -> None:
    """A step that was stopped after any epoch of any stage ends as if it had not been."""
    walk = _after_first_step(learner)
    whole, stored = walk.begin(2), []
    for progress in walk.train(whole):
        if progress.epoch_ends:
            taken = Checkpoint.take(whole.model, progress, whole.ended).tensors()
            stored.append((progress, {key: tensor.clone() for key, tensor in taken.items()}))
    for progress, tensors in stored:
        task = walk.begin(2)
        for _ in walk.train(task, Checkpoint.from_tensors(tensors)):
            pass
        changed = _differing(_state(task.model), _state(whole.model))
        assert not changed, (
            f"{_name(learner)} ends elsewhere when it goes on after epoch {progress.epoch} of stage "
            f"{progress.stage!r}: {', '.join(changed[:3])}. What training depends on should be in "
            "`task.model`, or be computed from it between the stages"
        )


def check_memory(learner: str | Learner) -> None:
    """The memory has as many images of every class as there is room for; without one it stays empty."""
    walk = _Walk.start(learner)
    for task in walk.steps(len(_stream())):
        seen, remembered = task.step.seen, walk.memory.per_class
        wanted = [min(_MEMORY // seen, _IMAGES)] * seen if walk.learner.remembers else []
        counts = [len(indices) for indices in remembered]
        assert counts == wanted, (
            f"{_name(learner)} remembers {counts} images of the classes after step {task.step.number}: "
            f"{wanted} are due, with room for {_MEMORY}"
        )
        for label, indices in enumerate(remembered):
            labels = sorted(set(_stream().train.labels[indices].tolist()))
            assert labels == [label], (
                f"{_name(learner)} remembers images of classes {labels} as class {label}"
            )


@dataclass(frozen=True, repr=False)
class _Watched(ImageSet):
    """Images that note which of them are served."""

    served: set[int] = field(default_factory=set)

    def batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """The same as ever."""
        self.served.update(indices.tolist())
        return super().batches(indices, size)


def check_images(learner: str | Learner) -> None:
    """No step sees a class that is still to come, nor old images that the method says it does not see.

    Whatever it sees them for: a training, features that something is computed from, its choice of exemplars.
    """
    walk, images = _Walk.start(learner), _stream().train
    assert isinstance(images, ImageSet)
    walk.images = watched = _Watched(images.name, images.images, images.labels)
    for number in range(1, len(_stream()) + 1):
        task = walk.begin(number)
        new, kept = set(task.step.train.tolist()), set(walk.memory.indices.tolist())
        watched.served.clear()
        for _ in walk.train(task):
            pass
        walk.end(task)
        where, labels = f"{_name(learner)}'s step {number}", images.labels[sorted(watched.served)]
        ahead = sorted(set(labels[labels >= task.step.seen].tolist()))
        assert not ahead, f"{where} sees images of classes {ahead}, which are still to come"
        old = watched.served - new
        assert walk.learner.revisits or not old, (
            f"{where} sees {len(old)} images of old classes, and its `revisits` says that it sees none"
        )
        assert old <= kept or not walk.learner.remembers, (
            f"{where} sees {len(old - kept)} images of old classes that are not in the memory"
        )


def check_learns(learner: str | Learner) -> None:
    """After enough epochs of step 1 the model tells the training images of its two classes apart."""
    (task,) = _Walk.start(learner, epochs=20).steps(1)
    outputs = forward(task.model, task.setting.images, task.setting.transform, task.step.train)
    assert outputs.labels is not None
    right = accuracy(outputs.logits.argmax(dim=1), outputs.labels)
    assert right > 0.75, (
        f"{_name(learner)} knows {right:.0%} of the images that it was trained on for 20 epochs, digits of "
        "two classes: more than 75 % are expected"
    )


def check_bfloat16(learner: str | Learner) -> None:
    """Under bfloat16 autocast, as on a GPU, it trains too; what it leaves is finite, and float32 or wider."""
    walk = _Walk.start(learner)
    walk.arithmetic = _AsOnAGPU()
    where = f"{_name(learner)} in bfloat16, which GPUs train in by default,"
    mend = "logits are bfloat16 in a loss there: take `.float()` before storing them or dividing"
    try:
        for task in walk.steps(2):
            bad = [
                key
                for key, tensor in _state(task.model).items()
                if tensor.is_floating_point()
                and not (tensor.dtype in (torch.float32, torch.float64) and torch.isfinite(tensor).all())
            ]
            assert not bad, (
                f"{where} leaves {', '.join(bad[:3])} not finite, or not float32, after step "
                f"{task.step.number}: {mend}"
            )
    except (RuntimeError, TypeError, Diverged) as error:  # torch raises both where types do not fit
        raise AssertionError(f"{where} cannot train: {str(error).rstrip('.')}; {mend}") from error


class _Rank(Ranks):
    """One of several ranks that are tried one after the other: first each adds, then each has the sums."""

    working = True

    def __init__(self, rank: int, size: int, added: list[list[Tensor]]) -> None:
        self.rank, self.size = rank, size
        self._added: list[Tensor] | None = None if len(added) == size else []
        self._sums = iter([torch.stack(one).sum(dim=0) for one in zip(*added, strict=False)])
        if self._added is not None:
            added.append(self._added)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, when each has added its own."""
        if self._added is None:
            return next(self._sums)
        self._added.append(tensor.clone())
        return tensor


def _part(stage: Stage, task: Task) -> Tensor:
    """A rank's part of the loss of a batch; all of it where there are none."""
    setting, before = _setting(), _state(task.model)
    feed, loss = batches(stage, setting.images, setting.transform, 8, (0,), task.step.old)
    found = loss(*next(iter(feed.epoch(0)))).detach()
    task.model.load_state_dict(before)  # a loss may count what it has seen
    return found if feed.share is None else found * feed.share.weight


def check_shares(learner: str | Learner) -> None:
    """The loss of a batch is the mean of its shares' by their sizes, so that ranks train as one process."""
    walk = _after_first_step(learner)
    task = walk.begin(2)
    for stage in walk.learner.stages(task) or ():
        if stage.tensors:  # of which each rank has them all
            continue
        stage.module.eval()
        whole, added = _part(stage, task), list[list[Tensor]]()
        for _ in range(2):
            total = torch.zeros(())
            for rank in range(_RANKS):
                with among(_Rank(rank, _RANKS, added)):
                    total = total + _part(stage, task)
        assert torch.allclose(total, whole, rtol=1e-4, atol=1e-6), (
            f"{_name(learner)}'s loss of stage {stage.name!r} is {float(whole):g} of a batch and "
            f"{float(total):g} of its shares, by their sizes: it should be a mean over the batch's images; "
            "`masked_mean` is one over some of them"
        )


#: Every check of the learners' contract, by name.
LEARNER_CHECKS: dict[str, Callable[[str | Learner], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_schedules,
        check_classes,
        check_stored,
        check_teacher,
        check_repeatable,
        check_resume,
        check_memory,
        check_images,
        check_learns,
        check_bfloat16,
        check_shares,
    )
}
