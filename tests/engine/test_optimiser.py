"""Every optimiser that a schedule can name: its formula, torch's own bits, what it keeps, captured steps."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from opencil.engine.arithmetic import FULL
from opencil.engine.iteration import WARM_UP, Iteration
from opencil.engine.schedule import Schedule

RATES = [0.05, 0.05, 0.02, 0.02, 0.01, 0.01]
SCHEDULES = [
    Schedule(epochs=1, lr=0.05, momentum=0.8, weight_decay=0.1),
    Schedule(epochs=1, lr=0.05, momentum=0.0, weight_decay=0.1),
    Schedule(epochs=1, lr=0.05, momentum=0.8, weight_decay=0.1, nesterov=True),
    Schedule(epochs=1, lr=0.05, optimiser="adam", betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    Schedule(epochs=1, lr=0.05, optimiser="adamw", betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
]
every_kind = pytest.mark.parametrize("schedule", SCHEDULES, ids=["sgd", "plain", "nesterov", "adam", "adamw"])


def linear() -> nn.Linear:
    module = nn.Linear(3, 2)
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
    iterate = Iteration(module, lambda x: loss_of(module, x), schedule, FULL, torch.device("cpu"))
    if state is not None:
        iterate.restore(state)
    for i, rate in enumerate(rates, start=first):
        iterate.set_lr(rate)
        iterate(inputs(i))
    return iterate


def torchs_own(schedule: Schedule, module: nn.Module) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {"lr": schedule.lr, "weight_decay": schedule.weight_decay}
    adam: dict[str, Any] = {"betas": schedule.betas, "eps": schedule.eps} | shared
    if schedule.optimiser == "sgd":
        sgd: dict[str, Any] = {"momentum": schedule.momentum, "nesterov": schedule.nesterov} | shared
        return torch.optim.SGD(module.parameters(), **sgd)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[schedule.optimiser](module.parameters(), **adam)


@every_kind
def test_steps_are_torchs_own_bit_for_bit(schedule: Schedule) -> None:
    ours, theirs = linear(), linear()
    trained(ours, schedule, RATES)
    optimiser = torchs_own(schedule, theirs)
    for i, rate in enumerate(RATES):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        loss_of(theirs, inputs(i)).backward()
        optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def naive(schedule: Schedule, weights: list[float], gradients: list[list[float]]) -> list[float]:
    """The optimisers' formulas, number by number, with plain floats."""
    weights = list(weights)
    first, second = [0.0] * len(weights), [0.0] * len(weights)
    for step, (rate, gradient) in enumerate(zip(RATES, gradients, strict=True), start=1):
        for j, g in enumerate(gradient):
            if schedule.optimiser == "adamw":
                weights[j] -= rate * schedule.weight_decay * weights[j]
            else:
                g += schedule.weight_decay * weights[j]
            if schedule.optimiser == "sgd":
                first[j] = schedule.momentum * first[j] + g
                weights[j] -= rate * (g + schedule.momentum * first[j] if schedule.nesterov else first[j])
                continue
            a, b = schedule.betas
            first[j] = a * first[j] + (1 - a) * g
            second[j] = b * second[j] + (1 - b) * g * g
            mean, spread = first[j] / (1 - a**step), second[j] / (1 - b**step)
            weights[j] -= rate * mean / (math.sqrt(spread) + schedule.eps)
    return weights


@every_kind
def test_steps_follow_the_formula(schedule: Schedule) -> None:
    """On a loss that is linear in the weights, whose gradients are the inputs."""
    module = nn.Linear(3, 1, bias=False)
    start = module.weight.flatten().tolist()
    iterate = Iteration(module, lambda x: module(x).sum(), schedule, FULL, torch.device("cpu"))
    for i, rate in enumerate(RATES):
        iterate.set_lr(rate)
        iterate(inputs(i)[:1])
    expected = naive(schedule, start, [inputs(i)[0].tolist() for i in range(len(RATES))])
    assert module.weight.flatten().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@every_kind
def test_what_it_keeps_can_be_taken_out_and_put_back(schedule: Schedule) -> None:
    whole, first, second = linear(), linear(), linear()
    end = trained(whole, schedule, RATES).state()
    state = {name: tensor.clone() for name, tensor in trained(first, schedule, RATES[:3]).state().items()}
    second.load_state_dict(first.state_dict())
    resumed = trained(second, schedule, RATES[3:], first=3, state=state).state()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
    if schedule.momentum:
        assert all(torch.equal(tensor, end[name]) for name, tensor in resumed.items())


@every_kind
def test_nothing_that_torch_keeps_is_left_out(schedule: Schedule) -> None:
    module = linear()
    iterate = trained(module, schedule, RATES[:1])
    theirs = iterate._optimiser.state
    found = iterate.state()
    assert {f"{i:05d}.{k}" for i, p in enumerate(iterate.parameters) for k in theirs[p]} <= set(found)
    if schedule.momentum:
        assert all(bool(tensor.any()) for tensor in found.values())


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_parameter_without_a_step_keeps_what_it_would_begin_with(
    kind: Literal["sgd", "adam", "adamw"],
) -> None:
    """Also where a checkpoint comes between: the branch that no loss has reached yet is no special case."""
    schedule = Schedule(epochs=1, lr=0.05, optimiser=kind)

    def end(stops: bool) -> list[Tensor]:
        module = nn.ModuleList([linear(), linear()])
        reached = [module[0]]

        def loss(x: Tensor) -> Tensor:
            return torch.stack([loss_of(part, x) for part in reached]).sum()

        iterate = Iteration(module, loss, schedule, FULL, torch.device("cpu"))
        iterate(inputs(0))
        state = iterate.state()
        assert not any(tensor.any() for name, tensor in state.items() if name >= "00002")
        if stops:
            iterate = Iteration(module, loss, schedule, FULL, torch.device("cpu"))
            iterate.restore(state)
        reached.append(module[1])
        for i in (1, 2):
            iterate(inputs(i))
        return [p.detach().clone() for p in module.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(end(stops=False), end(stops=True), strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")
@every_kind
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
        assert iterate._graph is not None
        return {name: tensor.clone() for name, tensor in iterate.state().items()}

    with torch.cuda.stream(torch.cuda.Stream()):
        whole, halves, on_cpu = linear().to(device), linear().to(device), linear()
        run(whole, range(2 * count))
        stored = {name: tensor.cpu() for name, tensor in run(halves, range(count)).items()}
        run(halves, range(count, 2 * count), stored)
        torch.cuda.synchronize()
    trained(on_cpu, schedule, rates)
    for a, b, c in zip(whole.parameters(), halves.parameters(), on_cpu.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a.cpu(), c, rtol=1e-4, atol=1e-6)
