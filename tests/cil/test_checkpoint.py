"""A step that is interrupted after any epoch of any stage ends as if it had not been."""

import pytest
import torch
from torch import Tensor

from opencil.cil.learner import Checkpoint, Learner, Setting, Task
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.registry import LEARNERS


def begun(learner: Learner, setting: Setting, stream: Stream) -> Task:
    """Step 2 on a step-1 model that was not trained."""
    memory = Memory(12, tuple((stream.train.labels == c).nonzero().flatten()[:6] for c in range(2)))
    return learner.begin(setting, stream[1], memory, learner.load(setting, stream[0]))


@pytest.mark.parametrize("name", LEARNERS.names())
def test_going_on_from_a_checkpoint_changes_nothing(name: str, setting: Setting, stream: Stream) -> None:
    learner = LEARNERS.create(name, epochs=3)
    whole, stored = begun(learner, setting, stream), []
    for progress in learner.learn(whole):
        if progress.epoch_ends:
            taken = Checkpoint.take(whole, progress).tensors()
            stored.append({key: tensor.clone() for key, tensor in taken.items()})
    expected: dict[str, Tensor] = whole.model.state_dict()
    assert {int(c["position"][0]) for c in stored} == set(range(progress.stage_number + 1))
    for checkpoint in stored:
        task = begun(learner, setting, stream)
        events = list(learner.learn(task, Checkpoint.from_tensors(checkpoint)))
        stage, epoch = checkpoint["position"].tolist()
        expected_next = (stage, epoch + 1) if epoch < 3 else (stage + 1, 1)
        if expected_next[0] <= progress.stage_number:
            assert (events[0].stage_number, events[0].epoch) == expected_next
        else:
            assert events == [], "all was done"
        found = task.model.state_dict()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
