"""Optimisers: torch's own bits for every class, state that resumes, refused values."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import FULL
from opencil.engine.iteration import WARM_UP, Iteration
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.validation import build

CPU = torch.device("cpu")
RATES = [0.05, 0.05, 0.02, 0.02, 0.01, 0.01]
REFUSED = {"lbfgs", "sparseadam"}
#: Every class of torch.optim that trains by one gradient a step, Muon being for matrices only.
CLASSES = {
    name.lower(): make
    for name, make in vars(torch.optim).items()
    if inspect.isclass(make) and issubclass(make, torch.optim.Optimizer) and name != "Optimizer"
}
NAMES = sorted(CLASSES.keys() - REFUSED)
SCHEDULES = {
    name: Schedule(epochs=1, lr=0.05, optimiser=name, weight_decay=0.0 if name == "rprop" else 0.1)
    for name in NAMES
} | {
    "plain": Schedule(epochs=1, lr=0.05, values={"momentum": 0.0}),
    "nesterov": Schedule(epochs=1, lr=0.05, momentum=0.8, weight_decay=0.1, nesterov=True),
    "adam values": Schedule(epochs=1, lr=0.05, optimiser="Adam", betas=(0.8, 0.95), eps=1e-3),
    "centred": Schedule(
        epochs=1, lr=0.05, optimiser="RMSprop", values={"momentum": 0.5, "centered": True, "alpha": 0.9}
    ),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def network() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.linspace(-0.5, 0.7, p.numel()).view_as(p))
    return module


def loss_of(module: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = module(inputs).square().sum(dim=1).mean()
    return loss


def inputs(number: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(number))


def trained(
    module: nn.Module, schedule: Schedule, rates: list[float], first: int = 0, state: Any = None
) -> Iteration:
    """One iteration at each rate, on inputs that follow from its number."""
    iterate = Iteration(module, lambda x: loss_of(module, x), schedule, FULL, CPU)
    if state is not None:
        iterate.restore(state)
    for i, rate in enumerate(rates, start=first):
        iterate.set_lr(rate)
        iterate(inputs(i))
    return iterate


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@every_schedule
def test_steps_are_torchs_own_bit_for_bit(schedule: Schedule) -> None:
    ours, theirs = network(), network()
    trained(ours, schedule, RATES)
    values: dict[str, Any] = {"momentum": 0.9} if schedule.optimiser == "sgd" else {}
    values |= {} if schedule.optimiser == "rprop" else {"weight_decay": schedule.weight_decay}
    make: Any = CLASSES[schedule.optimiser]
    optimiser = make(theirs.parameters(), lr=schedule.lr, **values | schedule.values)
    for i, rate in enumerate(RATES):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        loss_of(theirs, inputs(i)).backward()
        optimiser.step()
    assert same(ours, theirs)
    assert not same(ours, network())


@every_schedule
def test_a_restored_state_resumes_with_the_same_bits(schedule: Schedule) -> None:
    whole, first, second = network(), network(), network()
    end = trained(whole, schedule, RATES).state()
    state = {name: tensor.clone() for name, tensor in trained(first, schedule, RATES[:3]).state().items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    second.load_state_dict(first.state_dict())
    resumed = trained(second, schedule, RATES[3:], first=3, state=state).state()
    assert same(whole, second)
    assert resumed.keys() == end.keys()
    assert all(torch.equal(tensor, end[name]) for name, tensor in resumed.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.items()), "a copy is restored"


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor"])
def test_a_restored_state_has_the_layout_of_its_parameters(name: str) -> None:
    schedule, module = Schedule(epochs=1, optimiser=name), nn.Conv2d(4, 8, 3)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def begun() -> Iteration:
        return Iteration(module, lambda x: module(x).square().mean(), schedule, FULL, CPU)

    first, second = begun(), begun()
    first(torch.rand(2, 4, 5, 5))
    second.restore({name: tensor.contiguous() for name, tensor in first.state().items()})  # as files have it
    expected, found = first.state(), second.state()
    assert {
        name: tensor.stride() for name, tensor in found.items() if tensor.shape == module.weight.shape
    } == {
        name: module.weight.stride()
        for name, tensor in expected.items()
        if tensor.shape == module.weight.shape
    }
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize("name", ["sgd", "adamw", "adagrad"])
def test_a_parameter_without_a_gradient_so_far_may_have_no_state(name: str) -> None:
    schedule, ends = SCHEDULES[name], []
    for resumed in (False, True):
        module = nn.ModuleList([network(), network()])
        reached = [module[0]]

        def loss(x: Tensor, reached: list[nn.Module] = reached) -> Tensor:
            return torch.stack([loss_of(part, x) for part in reached]).sum()

        iterate = Iteration(module, loss, schedule, FULL, CPU)
        iterate(inputs(0))
        if resumed:
            state = iterate.state()
            iterate = Iteration(module, loss, schedule, FULL, CPU)
            iterate.restore(state)
        reached.append(module[1])
        for i in (1, 2):
            iterate(inputs(i))
        ends.append(module)
    assert same(*ends)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"optimiser": "sdg"}, "optimiser"),
        ({"optimiser": "Optimizer"}, "optimiser"),
        ({"optimiser": "lbfgs"}, "optimiser"),
        ({"optimiser": "rprop", "weight_decay": 0.1}, "weight_decay"),
        ({"optimiser": "adam", "momentum": 0.5}, "values.momentum"),
        ({"optimiser": "adam", "values": {"beta": [0.5, 0.9]}}, "values.beta"),
        ({"optimiser": "adam", "values": {"betas": [0.5, 1.0]}}, "values .*betas"),
        ({"optimiser": "adam", "values": {"lr": 0.5}}, "values.lr"),
        ({"optimiser": "rmsprop", "values": {"alpha": "much"}}, "values .*alpha"),
        ({"optimiser": "adamw", "betas": [0.5, 1.0]}, r"betas\[1\]"),
        ({"momentum": 1.5}, "momentum"),
        ({"nesterov": True, "momentum": 0.0}, "values .*nesterov"),
    ],
)
def test_values_that_an_optimiser_does_not_take_are_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(BadInput, match=rf"^cil.icarl.first.{key}"):
        build(Schedule, {"epochs": 1} | values, where="cil.icarl.first")


def test_shorthands_are_values() -> None:
    given = {"epochs": 1, "momentum": 0.5, "values": {"momentum": 0.3, "nesterov": True}}
    assert build(Schedule, given, where="first").values == {"momentum": 0.5, "nesterov": True}
    given = {"epochs": 1, "optimiser": "Adam", "values": {"momentum": None, "betas": [0.8, 0.9]}}
    assert build(Schedule, given, where="first") == Schedule(
        epochs=1, optimiser="adam", values={"betas": [0.8, 0.9]}
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")
@every_schedule
def test_captured_steps_follow_the_rate_and_the_state(schedule: Schedule) -> None:
    """As the CPU's, to rounding; in two halves, the second from the state after the first, bit for bit."""
    device, count = torch.device("cuda"), WARM_UP + 4
    rates = [0.05 / (1 + i) for i in range(2 * count)]

    def run(module: nn.Module, numbers: range, state: Any = None) -> dict[str, Tensor]:
        iterate = Iteration(module, lambda x: loss_of(module, x), schedule, FULL, device)
        if state:
            iterate.restore(state)
        for i in numbers:
            iterate.set_lr(rates[i])
            iterate(inputs(i).to(device))
        assert (iterate._graph is not None) == schedule.capturable
        return {name: tensor.clone() for name, tensor in iterate.state().items()}

    with torch.cuda.stream(torch.cuda.Stream()):
        whole, halves, on_cpu = network().to(device), network().to(device), network()
        run(whole, range(2 * count))
        stored = {name: tensor.cpu() for name, tensor in run(halves, range(count)).items()}
        run(halves, range(count, 2 * count), stored)
        torch.cuda.synchronize()
    trained(on_cpu, schedule, rates)
    assert same(whole, halves)
    for a, b in zip(whole.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-5)
