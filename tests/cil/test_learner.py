"""What every class-incremental method shares: tasks, initialisation, distillation, memory."""

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
from opencil.engine.arithmetic import Arithmetic
from opencil.engine.loop import Diverged, Stage, batches
from opencil.engine.ranks import among
from opencil.engine.schedule import Schedule
from opencil.engine.seeding import seeded
from opencil.nets.model import Model
from opencil.registry import LEARNERS


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


def test_distillation_does_not_look_at_new_classes() -> None:
    logits, teacher = torch.randn(4, 5), torch.randn(4, 3)
    changed = logits.clone()
    changed[:, 3:] += 100
    assert torch.equal(distillation(logits, teacher, 2.0), distillation(changed, teacher, 2.0))


def test_distillation_of_bfloat16_logits_is_computed_in_float32() -> None:
    numbers = torch.Generator().manual_seed(0)
    logits, teacher = ((4 * torch.randn(8, c, generator=numbers)).bfloat16().requires_grad_() for c in (5, 3))
    with torch.autocast("cpu", torch.bfloat16):
        found = distillation(logits, teacher, 3.0)
    assert found.dtype == torch.float32
    assert torch.equal(found, distillation(logits.float(), teacher.float(), 3.0))


def test_distillation_is_least_where_the_student_agrees() -> None:
    """There its gradient is 0, whatever the temperature."""
    teacher = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    student = teacher.clone().requires_grad_()
    distillation(student, teacher, 2.0).backward()
    assert float(student.grad.abs().max()) < 1e-6


def test_a_masked_mean_is_that_of_the_chosen_ones() -> None:
    values = torch.tensor([1.0, 5.0, torch.inf, 9.0])
    assert float(masked_mean(values, torch.tensor([True, False, False, True]))) == 5
    assert float(masked_mean(values, torch.zeros(4, dtype=torch.bool))) == 0


def test_masked_means_of_shares_add_up_to_that_of_the_batch() -> None:
    """Times the part of the batch that each is, three images on one rank and one on another."""
    values, mask = torch.tensor([1.0, 5.0, 7.0, 9.0]), torch.tensor([True, False, True, True])
    all_ranks, counted = Mock(working=True), []

    def sum_(counts: Tensor) -> Tensor:
        counted.append(counts.tolist())
        return torch.tensor([3, 4])

    all_ranks.sum_ = sum_
    with among(all_ranks):
        parts = [float(masked_mean(values[rows], mask[rows])) for rows in (slice(0, 3), slice(3, 4))]
    assert counted == [[2, 3], [1, 1]]
    assert 3 / 4 * parts[0] + 1 / 4 * parts[1] == pytest.approx(float(masked_mean(values, mask)))
    all_ranks.sum_ = lambda counts: torch.tensor([0, 4])
    with among(all_ranks):
        assert float(masked_mean(values, torch.zeros(4, dtype=torch.bool))) == 0, "none of the whole batch"


@pytest.mark.parametrize("name", LEARNERS.names())
def test_step_one_and_later_ones_are_trained_by_schedules_of_their_own(
    name: str, first: Task, second: Task
) -> None:
    learner = LEARNERS.create(name)
    schedules = {task.first: _schedule(learner, task) for task in (first, second)}
    if isinstance(own := getattr(learner, "first", None), Schedule):
        assert schedules[True] == own
    if isinstance(later := getattr(learner, "later", None), Schedule):
        assert schedules[False] == later


def _schedule(learner: Learner, task: Task) -> Schedule | None:
    """Of the first stage, if there is one."""
    previous = None if task.first else learner.load(task.setting, stream_before(task.step))
    memory = task.memory if learner.remembers else Memory(12)
    begun = learner.begin(task.setting, task.step, memory, previous)
    stage = next(iter(learner.stages(begun) or ()), None)
    return None if stage is None else stage.schedule


def test_outputs_that_are_there_are_not_computed_again(first: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = first.outputs(first.train_plus)
    first.computed = computed
    monkeypatch.setattr("opencil.cil.learner.forward", None)
    assert torch.equal(first.outputs(first.train_plus[2:5]).logits, computed.logits[2:5])


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
        loss(*batch)  # as before a capture: what is made at the first call is there
        with FakeTensorMode(allow_non_fake_inputs=True) as without_numbers:
            assert loss(*map(without_numbers.from_tensor, batch)).shape == ()


def stream_before(step: Step) -> Step:
    """The step before, but for its images."""
    return replace(step, sizes=step.sizes[:-1])


@dataclass(frozen=True)
class Watched(Learner):
    """A learner for tests: cross-entropy times ``scale``, twice per step, noting what comes by."""

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


def state(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_first_step_sees_its_own_classes_only(first: Task, stream: Stream) -> None:
    assert first.first
    assert first.teacher is None
    assert first.train_plus.tolist() == stream[0].train.tolist()
    assert set(stream.train.labels[first.train_plus].tolist()) == {0, 1}
    watched = Watched()
    list(watched.learn(first))
    assert {label for labels in watched.batches for label in labels} == {0, 1}


def test_later_steps_see_the_new_classes_and_the_whole_memory(second: Task, stream: Stream) -> None:
    memory = second.memory.indices.tolist()
    assert len(memory) == 12
    assert sorted(second.train_plus.tolist()) == sorted(stream[1].train.tolist() + memory)
    labels = stream.train.labels[second.train_plus].tolist()
    assert [labels.count(c) for c in range(4)] == [6, 6, 8, 8]


def test_stages_run_in_order_each_to_its_end(first: Task) -> None:
    watched = Watched()
    list(watched.learn(first))
    assert watched.ended == [("one", 2), ("two", 4)]


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


def test_learning_is_reproducible_bit_for_bit(setting: Setting, stream: Stream) -> None:
    tasks = [Watched().begin(setting, stream[0], Memory(12), None) for _ in range(3)]
    for task in tasks[:2]:
        list(Watched().learn(task))
    one, again, untrained = (state(task.model) for task in tasks)
    assert same(one, again)
    assert not same(one, untrained)


@pytest.mark.usefixtures("has_bfloat16")
def test_the_settings_precision_reaches_the_training(setting: Setting, stream: Stream) -> None:
    def learned(arithmetic: Arithmetic) -> dict[str, Tensor]:
        task = Watched().begin(replace(setting, arithmetic=arithmetic), stream[0], Memory(12), None)
        list(Watched().learn(task))
        return state(task.model)

    full, rough = learned(Arithmetic("fp32")), learned(Arithmetic("bf16"))
    assert {name: tensor.dtype for name, tensor in rough.items()} == {k: t.dtype for k, t in full.items()}
    for name in ("backbone.stem.0.weight", "head.weight"):
        assert not torch.equal(rough[name], full[name])


def test_a_model_is_widened_and_keeps_its_rows(first: Task, setting: Setting, stream: Stream) -> None:
    before = state(first.model)
    task = Watched().begin(setting, stream[1], Memory(12), first.model)
    after = state(task.model)
    assert task.model.head.out_features == 4
    assert torch.equal(after["head.weight"][:2], before["head.weight"])
    assert torch.equal(after["head.bias"][:2], before["head.bias"])
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))
    assert all(p.requires_grad for p in task.model.parameters())


def test_the_teacher_is_the_previous_model_frozen(first: Task, setting: Setting, stream: Stream) -> None:
    before = state(first.model)
    task = Watched().begin(setting, stream[1], Memory(12), first.model.train())
    assert task.teacher is not None
    assert same(state(task.teacher), before)
    assert not any(module.training for module in task.teacher.modules())
    assert not any(p.requires_grad for p in task.teacher.parameters())
    assert not {id(p) for p in task.teacher.parameters()} & {id(p) for p in task.model.parameters()}


@pytest.mark.parametrize("name", LEARNERS.names())
def test_a_teacher_is_copied_only_where_a_method_asks_for_one(
    name: str, setting: Setting, stream: Stream
) -> None:
    learner = LEARNERS.create(name, epochs=1)
    kept = tuple((stream.train.labels == c).nonzero().flatten()[:6] for c in range(2 * learner.remembers))
    task = learner.begin(setting, stream[1], Memory(12, kept), learner.load(setting, stream[0]))
    assert not task.first
    list(learner.learn(task))
    learner.remember(task)
    assert ("teacher" in vars(task)) == (name in ("bic", "icarl", "lucir", "lwf", "podnet", "ss-il", "wa"))


def test_new_rows_are_those_that_the_step_draws(first: Task, setting: Setting, stream: Stream) -> None:
    """Else stored runs could not be made again."""
    model = copy.deepcopy(first.model)
    with seeded(setting.initialisation_seed, "step", 2):
        model.grow(4)
    task = Watched().begin(setting, stream[1], Memory(12), first.model)
    assert same(state(task.model), state(model))


def test_two_methods_can_start_from_one_model(first: Task, setting: Setting, stream: Stream) -> None:
    Watched().begin(setting, stream[1], Memory(12), first.model)
    again = Watched().begin(setting, stream[1], Memory(12), first.model)
    assert all(p.requires_grad for p in again.model.parameters())


def test_initial_weights_follow_from_the_initialisation_seed_alone(setting: Setting, stream: Stream) -> None:
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


def test_new_rows_differ_from_step_to_step(first: Task, setting: Setting, stream: Stream) -> None:
    second = Watched().begin(setting, stream[1], Memory(12), first.model)
    third = Watched().begin(setting, stream[2], Memory(12), second.model)
    rows = third.model.head.weight.detach()
    assert len({tuple(row.tolist()) for row in rows}) == 5
    # A head that grows alike, at another step.
    later = replace(stream[1], sizes=(stream[0].seen, 0, stream[1].new))
    again = Watched().begin(setting, later, Memory(12), first.model).model.head.weight.detach()
    assert not torch.equal(again[2:], rows[2:4])


@pytest.mark.parametrize(
    ("device", "layout"), [("cuda", torch.channels_last), ("cpu", torch.contiguous_format)]
)
def test_a_model_lies_as_its_device_is_fastest(
    device: str, layout: torch.memory_format, setting: Setting
) -> None:
    there, model = replace(setting, images=Mock(device=torch.device(device))), Mock()
    there.placed(model)
    model.to.assert_called_once_with(device=torch.device(device), memory_format=layout)


def test_initialising_leaves_the_global_generator_alone(setting: Setting, stream: Stream) -> None:
    before = torch.random.get_rng_state()
    Watched().load(setting, stream[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_memory_is_herded_by_features_in_eval_mode(second: Task, setting: Setting, stream: Stream) -> None:
    """Whatever mode the model was left in; in training mode other images would be chosen."""
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
        ({"epochs_scale": 2.0}, 200, (80, 160)),
        ({"epochs_scale": 1e-6}, 1, ()),
        ({"epochs_scale": 1e12}, 10**9, (4 * 10**8, 8 * 10**8)),
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
        ("joint", 200, 200 * 4 / 3),
        # The correction has few images; compression runs both models beside the student.
        ("bic", 170, 170 * 4 / 3),
        ("foster", 200, 170 * 4 / 3 + 130 * 5 / 3),
        # Four and a half backbones run beside the newest, in the mean of ten steps.
        ("der", 200, 170 * 2.5),
        ("lucir", 160, 160 * 4 / 3),
        ("podnet", 160, 160 * 4 / 3),
        ("fetril", 200, 1 / 3),
    ],
)
def test_what_a_step_takes_is_counted_in_passes(name: str, first: float, later: float) -> None:
    """A pass forward alone is a third of one forward and backward: runs are hurried by it."""
    learner = LEARNERS.create(name)
    assert learner.effort(first=True) == first
    assert learner.effort(first=False) == pytest.approx(later)


def test_a_method_of_one_schedule_takes_it_at_every_step() -> None:
    learner = Watched(Schedule(epochs=30))
    assert (learner.effort(first=True), learner.effort(first=False)) == (30, 40)
