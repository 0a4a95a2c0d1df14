"""A step that is interrupted after any epoch of any stage ends as if it had not been."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opencil.cil.learner import Learner, Setting, Task, distillation
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.engine.loop import BadCheckpoint, Checkpoint, Stage
from opencil.engine.schedule import Schedule


def begun(learner: Learner, setting: Setting, stream: Stream) -> Task:
    """Step 2 on a step-1 model that was not trained."""
    kept = tuple((stream.train.labels == c).nonzero().flatten()[:6] for c in range(2 * learner.remembers))
    memory = Memory(12, kept)
    return learner.begin(setting, stream[1], memory, learner.load(setting, stream[0]))


@dataclass(frozen=True)
class Keeps(Learner):
    """Distils, in its second stage, from a copy of the model that its first stage has trained."""

    schedule: Schedule = Schedule(epochs=2, lr=0.05)

    def stages(self, task: Task) -> Iterator[Stage]:
        model = task.model
        yield Stage("one", model, lambda x, y: F.cross_entropy(model(x), y), self.schedule, task.train_plus)
        kept = copy.deepcopy(model).eval().requires_grad_(False)
        yield Stage(
            "two", model, lambda x, y: distillation(model(x), kept(x), 2.0), self.schedule, task.train_plus
        )


def test_a_method_may_keep_something_between_its_stages(setting: Setting, stream: Stream) -> None:
    whole, checkpoint = begun(Keeps(), setting, stream), {}
    for progress in Keeps().learn(whole):
        if progress.stage == "two" and progress.epoch == 1 and progress.epoch_ends:
            taken = Checkpoint.take(whole.model, progress, whole.ended).tensors()
            checkpoint = {key: tensor.clone() for key, tensor in taken.items()}
    task = begun(Keeps(), setting, stream)
    assert {p.stage for p in Keeps().learn(task, Checkpoint.from_tensors(checkpoint))} == {"two"}
    for found, ended in zip(task.ended, whole.ended, strict=True):  # for a checkpoint that is yet to come
        assert all(torch.equal(found[key], tensor) for key, tensor in ended.items())
    expected = whole.model.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in task.model.state_dict().items())


def test_a_checkpoint_of_a_stage_that_is_not_there_is_refused(setting: Setting, stream: Stream) -> None:
    task = begun(Keeps(), setting, stream)
    weights = task.model.state_dict()
    with pytest.raises(BadCheckpoint, match="it is of stage 2, and there are 2"):
        list(Keeps().learn(task, Checkpoint(2, 1, weights, {}, [weights, weights])))


def stored_after_one_epoch(learner: Learner, setting: Setting, stream: Stream) -> dict[str, Tensor]:
    task = begun(learner, setting, stream)
    progress = next(p for p in learner.learn(task) if p.epoch_ends)
    taken = Checkpoint.take(task.model, progress, task.ended).tensors()
    return {key: tensor.clone() for key, tensor in taken.items()}


@pytest.mark.parametrize("optimiser", ["adamw", "nadam", "rmsprop", "adagrad", "adafactor"])
def test_any_optimiser_resumes_as_if_it_had_not_stopped(
    optimiser: str, setting: Setting, stream: Stream
) -> None:
    learner = Keeps(Schedule(epochs=3, lr=0.01, optimiser=optimiser, weight_decay=0.1, warmup=1))
    whole, task = (begun(learner, setting, stream) for _ in range(2))
    list(learner.learn(whole))
    checkpoint = Checkpoint.from_tensors(stored_after_one_epoch(learner, setting, stream))
    list(learner.learn(task, checkpoint))
    expected = whole.model.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in task.model.state_dict().items())
    torch._foreach_zero_(list(checkpoint.state.values()))
    other = begun(learner, setting, stream)
    list(learner.learn(other, checkpoint))
    assert not all(torch.equal(t, expected[key]) for key, t in other.model.state_dict().items())


@pytest.mark.parametrize("then", [{"optimiser": "sgd"}, {"optimiser": "adam", "epochs": 3}, {"epochs": 3}])
def test_a_checkpoint_of_another_schedule_is_refused(
    then: dict[str, Any], setting: Setting, stream: Stream
) -> None:
    now = {"optimiser": "adam"} if then == {"optimiser": "sgd"} else {"epochs": 1}
    before, after = (Keeps(Schedule(**{"epochs": 2, "lr": 0.01} | own)) for own in (then, now))
    task = begun(before, setting, stream)
    ends = (p for p in before.learn(task) if p.epoch_ends and p.epoch == then.get("epochs", 2) - 1)
    checkpoint = Checkpoint.take(task.model, next(ends))
    with pytest.raises(BadCheckpoint):
        list(after.learn(begun(after, setting, stream), checkpoint))
