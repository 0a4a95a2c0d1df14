"""One run on several ranks: what rank 0 hands out to the others, and how these follow it.

Followers have the config, the data and a device each. All else that a work takes comes with it: they neither
read nor write the store.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor

from opencil.config import Config
from opencil.data.benchmark import BenchmarkData
from opencil.data.images import Images
from opencil.data.memory import Memory
from opencil.data.stream import Step
from opencil.detectors.finetune.tuner import Tuner
from opencil.engine.checkpoint import Checkpoint
from opencil.engine.device import own_stream
from opencil.engine.forward import Pass
from opencil.engine.ranks import LostRank, Ranks, by_itself, joined, left, several
from opencil.errors import BadInput, OpenCILError
from opencil.nets.model import Model
from opencil.registry import DETECTORS
from opencil.runs.events import Event
from opencil.runs.loading import load, require_one_process, with_share
from opencil.runs.plan import RunSpec, plan
from opencil.runs.run import Run
from opencil.runs.store import RunFolder
from opencil.runs.tuning import Beginnings, advancing, in_turns

Weights = dict[str, Tensor]
Planned = Callable[[Config], list[RunSpec]]


@dataclass(frozen=True)
class StepWork:
    """A step's training, or the tuning of heads on its model: what both need."""

    spec: RunSpec
    step: int
    memory: Memory  #: before the step
    images: str  #: the training images' fingerprint

    @classmethod
    def of(cls, run: Run, step: Step, **more: Any) -> "StepWork":
        """Of a run's step."""
        return cls(run.spec, step.number, run.memory(step.number - 1), run.stream.train.fingerprint, **more)

    def agree(self, ranks: Ranks, run: Run) -> None:
        """All ranks have the same images and the same memory: a memory is indices into these images."""
        ranks.agree(f"the images of {self.spec}", run.stream.train.fingerprint)
        ranks.agree(f"the memory before step {self.step}", *self.memory.per_class, self.memory.size)


@dataclass(frozen=True)
class Training(StepWork):
    """A step's training, from its beginning or from a checkpoint."""

    before: Weights | None = None  #: of the model of the step before
    checkpoint: Weights | None = None

    def follow(self, run: Run, ranks: Ranks) -> None:
        """Train as rank 0 does."""
        step = run.stream[self.step - 1]
        previous = None
        if self.before is not None:
            previous = run.setting.placed(run.loaded(run.stream[self.step - 2], self.before))
        task = run.learner.begin(run.setting, step, self.memory, previous)
        self.agree(ranks, run)
        checkpoint = None if self.checkpoint is None else Checkpoint.from_tensors(self.checkpoint)
        for _ in run.learner.learn(task, checkpoint):
            pass


@dataclass(frozen=True)
class Tuning(StepWork):
    """The tuning of some heads on a step's model."""

    model: Weights = field(default_factory=dict)
    beginnings: Beginnings = field(default_factory=dict)

    def follow(self, run: Run, ranks: Ranks) -> None:
        """Tune as rank 0 does: every rank trains every head, on features of which each computes a share."""
        step = run.stream[self.step - 1]
        source = run.source(step, run.setting.placed(run.loaded(step, self.model)))
        self.agree(ranks, run)
        tuners: dict[str, Tuner] = {
            name: DETECTORS.create(name, **self.spec.detectors[name]) for name in self.beginnings
        }
        turns = {name: advancing(t, source, self.beginnings[name]) for name, t in tuners.items()}
        for _ in in_turns(turns):
            pass


@dataclass(frozen=True)
class Loading:
    """The data, which every rank reads by itself."""


def let_others_load() -> None:
    """Have the other ranks, where there are any, load the data too: it may take minutes."""
    if (ranks := several()) is not None:
        ranks.hand_out(Loading())


@contextmanager
def training_followed(
    run: Run, step: Step, before: Model | None, checkpoint: Weights | None
) -> Iterator[None]:
    """Inside the block the other ranks, where there are any, train a step too."""
    with _followed(lambda: Training.of(run, step, before=_weights(before), checkpoint=checkpoint), run):
        yield


@contextmanager
def tuning_followed(run: Run, step: Step, model: Model, beginnings: Beginnings) -> Iterator[None]:
    """Inside the block the other ranks, where there are any, tune the same heads."""
    with _followed(lambda: Tuning.of(run, step, model=_weights(model), beginnings=beginnings), run):
        yield


@contextmanager
def _followed(make: Callable[[], StepWork], run: Run) -> Iterator[None]:
    ranks = several()
    if ranks is None:
        yield
        return
    work = make()
    ranks.hand_out(work)
    with ranks.together():
        work.agree(ranks, run)
        yield


def _weights(model: Model | None) -> Weights | None:
    return None if model is None else {name: t.detach().cpu() for name, t in model.state_dict().items()}


def on_ranks(execute: Callable[[Config, Planned], Generator[Event]]) -> Callable[..., Generator[Event]]:
    """What does all that a config asks for, on all ranks that torchrun has started: rank 0 tells of it."""

    @wraps(execute)
    def on_all(config: Config, planned: Planned = plan) -> Generator[Event]:
        require_one_process(config.place)
        try:
            ranks = joined(config.place.device, config.place.rank_seconds)
            if ranks is None:
                yield from execute(config, planned)
                return
            place = with_share(replace(config.place, device=str(ranks.device)), ranks.on_machine)
            config = replace(config, place=place)
            if not ranks.leads:
                _follow(config, ranks)
                return
            with closing(_leading(execute, config, planned, ranks)) as events:
                for event in events:
                    with by_itself():  # the others do not know what is done with it
                        yield event
        except LostRank as lost:
            raise OpenCILError(
                f"{lost}: what was finished is stored, and the same command goes on from there"
            ) from None
        finally:
            left()

    return on_all


def _leading(
    execute: Callable[[Config, Planned], Generator[Event]], config: Config, planned: Planned, ranks: Ranks
) -> Generator[Event]:
    """What rank 0 does; the others go when it has ended, however it has."""
    try:
        _check(config, planned)
        yield from execute(config, planned)
    except (LostRank, KeyboardInterrupt):  # nobody is there to be told, or all have been
        raise
    except BaseException:
        with suppress(LostRank):
            ranks.hand_out(None)
        raise
    ranks.hand_out(None)


def _check(config: Config, planned: Planned) -> None:
    """Refuse what only a single process does."""
    if any(spec.foreign is not None for spec in planned(config)):
        raise BadInput("models from elsewhere are evaluated by one process: start it without torchrun")


def _follow(config: Config, ranks: Ranks) -> None:
    """Do what rank 0 hands out, until there is nothing more."""
    data: BenchmarkData | None = None
    with own_stream(ranks.device):
        while (work := ranks.next_work()) is not None:
            if isinstance(work, Loading):
                with suppress(Exception):  # it is told when a work needs them
                    data = load(config)
                continue
            # What has gone wrong is told by rank 0, which goes on or does not.
            with suppress(Exception), ranks.together():
                data = load(config) if data is None else data
                if isinstance(work, Pass):
                    work.follow(_images(data, work.images), ranks)
                    continue
                run = Run(work.spec, RunFolder(Path(config.place.runs) / work.spec.folder), data)
                if work.step > 1:
                    run.remember(run.stream[work.step - 2], work.memory)
                work.follow(run, ranks)


def _images(data: BenchmarkData, fingerprint: str) -> Images:
    sets = [data.train, data.test, *(ood.images for ood in data.ood.values()), *data.shifted.values()]
    for images in sets:
        if images.fingerprint == fingerprint:
            return images
    raise OpenCILError("this rank has other images than rank 0: all of them need the same data")
