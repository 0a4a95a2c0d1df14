"""Shared parts of all class-incremental methods: tasks, initialisation, distillation, memory."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from opencil.cil.learner import Learner, Setting, Task, distillation, masked_mean
from opencil.data.memory import Memory, herd
from opencil.data.stream import Step, Stream
from opencil.engine.loop import Diverged, Stage, batches
from opencil.engine.ranks import using
from opencil.engine.schedule import Schedule
from opencil.registry import LEARNERS
from tests.cil.common import same, state


def naive_distillation(logits: Tensor, teacher: Tensor, temperature: float) -> float:
    """−Σ p·log q over the teacher's classes, sample by sample, with plain exponentials."""
    losses = []
    for row, before in zip(logits.double().tolist(), teacher.double().tolist(), strict=True):
        p = [math.exp(v / temperature) for v in before]
        q = [math.exp(v / temperature) for v in row[: len(before)]]
        losses.append(-sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True)))
    return sum(losses) / len(losses)


@settings(max_examples=40)
@given(
    samples=st.integers(1, 5),
    old=st.integers(1, 5),
    new=st.integers(0, 3),
    temperature=st.floats(0.5, 5),
    seed=st.integers(0, 10_000),
)
def test_distillation_equals_the_naive_reference(
    samples: int, old: int, new: int, temperature: float, seed: int
) -> None:
    numbers = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(samples, old + new, generator=numbers)
    teacher = 4 * torch.randn(samples, old, generator=numbers)
    expected = naive_distillation(logits, teacher, temperature)
    assert float(distillation(logits, teacher, temperature)) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_masked_mean_is_that_of_the_chosen_ones() -> None:
    values = torch.tensor([1.0, 5.0, torch.inf, 9.0])
    assert float(masked_mean(values, torch.tensor([True, False, False, True]))) == 5
    assert float(masked_mean(values, torch.zeros(4, dtype=torch.bool))) == 0


def test_masked_means_of_shares_add_up_to_that_of_the_batch() -> None:
    """Times the part of the batch that each is, three images on one rank and one on another."""
    values, mask = torch.tensor([1.0, 5.0, 7.0, 9.0]), torch.tensor([True, False, True, True])
    all_ranks, counted = Mock(), []

    def sum_(counts: Tensor) -> Tensor:
        counted.append(counts.tolist())
        return torch.tensor([3, 4])

    all_ranks.sum_ = sum_
    with using(all_ranks):
        parts = [float(masked_mean(values[rows], mask[rows])) for rows in (slice(0, 3), slice(3, 4))]
    assert counted == [[2, 3], [1, 1]]
    assert 3 / 4 * parts[0] + 1 / 4 * parts[1] == pytest.approx(float(masked_mean(values, mask)))
    all_ranks.sum_ = lambda counts: torch.tensor([0, 4])
    with using(all_ranks):
        assert float(masked_mean(values, torch.zeros(4, dtype=torch.bool))) == 0, "none of the whole batch"


@pytest.mark.parametrize("name", LEARNERS.names())
def test_no_loss_looks_at_what_its_tensors_hold(name: str, second: Task) -> None:
    """Else no GPU could capture it: in tensors without numbers a branch or a selection is an error."""
    learner = LEARNERS.create(name, epochs=1)
    memory, step = second.memory if learner.remembers else Memory(12), second.step
    task = learner.begin(second.setting, step, memory, learner.load(second.setting, stream_before(step)))
    for stage in learner.stages(task) or ():
        stage.module.train()
        feed, loss = batches(stage, task.setting.images, task.setting.transform, 8, (0,), step.old)
        batch = next(iter(feed.epoch(0)))
        loss(*batch)  # as before a capture, since a first call may create tensors
        with FakeTensorMode(allow_non_fake_inputs=True) as without_numbers:
            assert loss(*map(without_numbers.from_tensor, batch)).shape == ()


def stream_before(step: Step) -> Step:
    """The step before, but for its images."""
    return replace(step, sizes=step.sizes[:-1])


@dataclass(frozen=True)
class Watched(Learner):
    """A learner for tests: cross-entropy times ``scale``, twice per step, which notes its batches."""

    schedule: Schedule = Schedule(epochs=1, lr=0.01)
    scale: float = 1.0
    batches: list[list[int]] = field(default_factory=list)  # labels of each
    ended: list[tuple[str, int]] = field(default_factory=list)  # stages, and the number of batches until then

    def stages(self, task: Task) -> Iterator[Stage]:
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            self.batches.append(labels.tolist())
            return self.scale * F.cross_entropy(task.model(images), labels)

        for name in ("one", "two"):
            yield Stage(name, task.model, loss, self.schedule, task.train_plus)
            self.ended.append((name, len(self.batches)))


def test_the_data_order_follows_from_data_seed_step_and_stage(setting: Setting, stream: Stream) -> None:
    """The same images throughout, so that only their order can differ."""

    def orders(data_seed: int, number: int) -> list[list[int]]:
        watched = Watched()
        step = replace(stream[0], sizes=(0,) * (number - 1) + stream[0].sizes)
        list(watched.learn(watched.begin(replace(setting, data_seed=data_seed), step, Memory(12), None)))
        return [watched.batches[0] + watched.batches[1], watched.batches[2] + watched.batches[3]]

    one, two = orders(2, 1)
    assert one != two
    assert orders(2, 1) == [one, two]
    assert not {tuple(o) for o in orders(3, 1) + orders(2, 2)} & {tuple(one), tuple(two)}


def test_initial_weights_depend_only_on_the_initialisation_seed(setting: Setting, stream: Stream) -> None:
    def started(setting: Setting) -> dict[str, Tensor]:
        first = Watched().begin(setting, stream[0], Memory(12), None)
        return state(Watched().begin(setting, stream[1], Memory(12), first.model).model)

    torch.manual_seed(0)
    expected = started(setting)
    torch.manual_seed(1)
    assert same(started(setting), expected)
    assert same(started(replace(setting, data_seed=99)), expected)
    other = started(replace(setting, initialisation_seed=99))
    assert not torch.equal(other["backbone.stem.0.weight"], expected["backbone.stem.0.weight"])
    assert not torch.equal(other["head.weight"][:2], expected["head.weight"][:2])
    assert not torch.equal(other["head.weight"][2:], expected["head.weight"][2:])


def test_new_rows_of_every_step_are_drawn_anew(setting: Setting, stream: Stream) -> None:
    first = Watched().begin(setting, stream[0], Memory(12), None)
    steps = [replace(stream[1], sizes=sizes) for sizes in ((2, 2), (1, 1, 2))]  # the same classes
    drawn = [Watched().begin(setting, step, Memory(12), first.model).model.head.weight[2:] for step in steps]
    assert not torch.equal(*drawn)


def test_memory_is_herded_by_features_in_eval_mode(second: Task, setting: Setting, stream: Stream) -> None:
    """In training mode other images would be chosen."""
    images = setting.transform.test(stream.train.images)
    with torch.no_grad():
        in_training = copy.deepcopy(second.model).train().features(images)
        in_eval = second.model.eval().features(images)

    def herded(features: Tensor, label: int) -> list[int]:
        indices = (stream.train.labels == label).nonzero().flatten()
        return indices[herd(features[indices], 3)].tolist()

    second.model.train()
    memory = Watched().remember(second)
    kept = [c.tolist() for c in memory.per_class]
    assert kept[:2] == [c[:3].tolist() for c in second.memory.per_class]
    assert kept[2:] == [herded(in_eval, 2), herded(in_eval, 3)]
    assert kept[2:] != [herded(in_training, 2), herded(in_training, 3)]
    assert stream.train.labels[memory.indices].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_a_loss_that_diverges_names_the_method_and_the_step(second: Task) -> None:
    with pytest.raises(Diverged, match=r"^Watched, step 2: the loss is nan in stage 'one', epoch 1 of 1"):
        list(Watched(scale=float("nan")).learn(second))


@pytest.mark.parametrize(
    ("values", "epochs", "milestones"),
    [
        ({}, 100, (40, 80)),
        ({"epochs": 10}, 10, (4, 8)),
        ({"epochs_scale": 0.5}, 50, (20, 40)),
        ({"epochs_scale": 1e-6}, 1, ()),
        ({"epochs": 10, "epochs_scale": 0.5}, 10, (4, 8)),
    ],
)
def test_shorthands_stretch_every_schedule(
    values: dict[str, float], epochs: int, milestones: tuple[int, ...]
) -> None:
    learner = Watched(Schedule(epochs=100, milestones=(40, 80)), **values)
    assert learner.schedule == Schedule(epochs=epochs, milestones=milestones)


@pytest.mark.parametrize(
    ("name", "first", "later"),
    [
        ("icarl", 200, 170 * 4 / 3),
        ("bic", 170, 170 * 4 / 3),  # the correction has few images
        ("foster", 200, 170 * 2.6),  # compression counts as passes beside boosting
        ("der", 200, 170 * 2.5),  # 4.5 backbones run beside the newest, in the mean of ten steps
    ],
)
def test_effort_is_counted_in_passes(name: str, first: float, later: float) -> None:
    """A forward pass counts as a third of a forward and backward pass."""
    learner = LEARNERS.create(name)
    assert learner.effort(first=True) == first
    assert learner.effort(first=False) == pytest.approx(later)
