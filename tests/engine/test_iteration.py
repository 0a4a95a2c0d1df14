"""One training iteration: captured and eager agree, the learning rate is read anew, precisions hold."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, count, islice
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.cil.learner import Setting
from opencil.data.digits import Digits
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.engine import arithmetic
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.feed import augmented
from opencil.engine.iteration import WARM_UP, Iteration
from opencil.engine.loop import batches
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.registry import LEARNERS

TRANSFORM = Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8, padding=1, flip=True)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")


def iteration(
    module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], capture: bool, lr: float = 0.1
) -> Iteration:
    device = next(module.parameters()).device
    schedule = Schedule(epochs=1, lr=lr, weight_decay=1e-3)
    return Iteration(module, augmented(loss, TRANSFORM), schedule, FULL, device, capture=capture)


def linear(device: str = "cpu") -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
    return module.to(device)


def steps(iterate: Iteration, count: int, device: str = "cpu") -> list[float]:
    """Losses of ``count`` iterations on images that follow from the iteration's number."""
    losses = []
    for i in range(count):
        numbers = torch.Generator().manual_seed(i)
        pixels = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=numbers).to(device)
        labels = torch.randint(0, 4, (16,), generator=numbers).to(device)
        draw = TRANSFORM.draw(16, 8, numbers).to(torch.device(device))
        losses.append(float(iterate(pixels, labels, *draw.tensors)))
    return losses


def cross_entropy(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda images, labels: F.cross_entropy(module(images), labels)


def test_a_new_learning_rate_is_used_at_once() -> None:
    module = linear()
    iterate = iteration(module, cross_entropy(module), capture=True)
    steps(iterate, 1)
    before = [p.detach().clone() for p in module.parameters()]
    iterate.set_lr(0.0)
    steps(iterate, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (None, "a NoneType"),
        (0.5, "a float"),
        (torch.zeros(()), r"a tensor \[\] without a gradient"),
        (torch.zeros(16, requires_grad=True), r"a tensor \[16\]"),
    ],
    ids=["nothing", "a float", "no gradient", "one for each image"],
)
def test_a_loss_that_cannot_be_trained_by_is_refused(given: Any, what: str) -> None:
    iterate = iteration(linear(), lambda images, labels: given, capture=False)
    with pytest.raises(BadInput, match=f"a loss gives {what}: one number in a tensor is needed"):
        steps(iterate, 1)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_arithmetic_holds_inside_the_block_and_nowhere_else(precision: str, deterministic: bool) -> None:
    def now() -> tuple[str, str, bool, bool]:
        cudnn = torch.backends.cudnn
        rounding = torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision
        return (*rounding, cudnn.deterministic, cudnn.benchmark)

    before, rounded = now(), "ieee" if precision == "fp32" else "tf32"
    with Arithmetic(precision, deterministic).active():
        assert now() == (rounded, rounded, deterministic, not deterministic)
    assert now() == before


@pytest.mark.parametrize(
    ("precision", "has", "expected"),
    [
        ("bf16", {"bf16", "tf32"}, "bf16"),
        ("bf16", {"tf32"}, "tf32"),
        ("bf16", set(), "fp32"),
        ("tf32", {"bf16", "tf32"}, "tf32"),
        ("tf32", set(), "fp32"),
        ("fp32", {"bf16", "tf32"}, "fp32"),
    ],
)
def test_a_device_computes_in_the_precision_that_it_has(
    monkeypatch: pytest.MonkeyPatch, precision: Any, has: set[str], expected: str
) -> None:
    monkeypatch.setattr(arithmetic, "has_bfloat16", lambda device: "bf16" in has)
    monkeypatch.setattr(arithmetic, "has_tf32", lambda device: "tf32" in has)
    device = torch.device("cpu")  # which stands for a GPU here
    assert Arithmetic(precision).on(device) == expected
    with Arithmetic(precision).autocast(device):
        assert torch.is_autocast_enabled("cpu") == (expected == "bf16")


@pytest.mark.parametrize("has_it", [True, False])
def test_emulated_bfloat16_does_not_count(monkeypatch: pytest.MonkeyPatch, has_it: bool) -> None:
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: has_it or including_emulation
    )
    assert arithmetic.has_bfloat16(torch.device("cuda")) == has_it
    assert not arithmetic.has_bfloat16(torch.device("cpu"))


def test_a_cpu_trains_in_float32_whatever_the_precision() -> None:
    ends = []
    for precision in ("fp32", "tf32", "bf16"):
        module, schedule = linear(), Schedule(epochs=1, lr=0.1)
        loss = augmented(cross_entropy(module), TRANSFORM)
        iterate = Iteration(module, loss, schedule, Arithmetic(precision), torch.device("cpu"))
        steps(iterate, 3)
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-2), ("tf32", 1e-2), ("bf16", 5e-2)])
@pytest.mark.parametrize("name", LEARNERS.names())
def test_captured_and_eager_steps_agree(
    name: str, precision: Literal["fp32", "tf32", "bf16"], tolerance: float
) -> None:
    arithmetic = Arithmetic(precision)
    device = torch.device("cuda")
    train, test = (Digits().load(split, 8, None).to(device) for split in ("train", "test"))
    stream = Stream.create(train, test, 2)
    setting = Setting(stream.train, stream.test, TRANSFORM, "resnet8", 32, 0, 0, arithmetic)
    kept = tuple((stream.train.labels == c).nonzero().flatten().cpu()[:40] for c in range(2))
    models = []
    for capture in (False, True):
        learner = LEARNERS.create(name)
        memory = Memory(80, kept if learner.remembers else ())
        with torch.cuda.stream(torch.cuda.Stream()):
            task = learner.begin(setting, stream[1], memory, learner.load(setting, stream[0]))
            for stage in learner.stages(task) or ():
                stage.module.train()
                feed, loss = batches(stage, stream.train, TRANSFORM, 32, (stage.name,), stream[1].old)
                iterate = Iteration(stage.module, loss, stage.schedule, arithmetic, device, capture=capture)
                iterate.set_lr(0.01)
                for batch in islice(chain.from_iterable(map(feed.epoch, count())), WARM_UP + 3):
                    iterate(*batch)
                stage.module.eval()
            models.append(task.model.state_dict())
    torch.cuda.synchronize()
    for key, eager in models[0].items():
        torch.testing.assert_close(models[1][key].float(), eager.float(), rtol=tolerance, atol=tolerance / 10)
