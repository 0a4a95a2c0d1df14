"""One training iteration: captured and eager agree, and precisions hold."""

from collections.abc import Callable
from itertools import chain, count, islice
from typing import Any, Literal, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opencil.cil.learner import Setting
from opencil.data.digits import Digits
from opencil.data.memory import Memory
from opencil.data.stream import Stream
from opencil.data.transforms import Transform
from opencil.engine.arithmetic import FULL, Arithmetic
from opencil.engine.feed import augmented_loss
from opencil.engine.iteration import WARM_UP, Iteration
from opencil.engine.loop import batches
from opencil.engine.schedule import Schedule
from opencil.errors import BadInput
from opencil.registry import LEARNERS

Precision = Literal["fp32", "tf32", "bf16"]
TRANSFORM = Transform((0.3, 0.3, 0.3), (0.4, 0.4, 0.4), crop=8, padding=1, flip=True)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")


def iteration(
    module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], arithmetic: Arithmetic = FULL
) -> Iteration:
    schedule = Schedule(epochs=1, lr=0.1, weight_decay=1e-3)
    return Iteration(module, augmented_loss(loss, TRANSFORM), schedule, arithmetic, torch.device("cpu"))


def linear() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
    return module


def steps(iterate: Iteration, count: int) -> None:
    """Iterate on images that follow from the iteration's number."""
    for i in range(count):
        numbers = torch.Generator().manual_seed(i)
        pixels = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=numbers)
        labels = torch.randint(0, 4, (16,), generator=numbers)
        iterate(pixels, labels, *TRANSFORM.draw(16, 8, numbers))


@pytest.mark.parametrize(
    "loss",
    [None, 0.5, torch.zeros(()), torch.zeros(16, requires_grad=True)],
    ids=["nothing", "a float", "no gradient", "one for each image"],
)
def test_a_loss_without_a_gradient_is_refused(loss: Any) -> None:
    with pytest.raises(BadInput, match="a loss returns"):
        steps(iteration(linear(), lambda images, labels: loss), 1)


def test_a_cpu_trains_in_float32_whatever_the_precision() -> None:
    ends = []
    for precision in get_args(Precision):
        module = linear()
        steps(iteration(module, lambda x, y: F.cross_entropy(module(x), y), Arithmetic(precision)), 3)  # noqa: B023
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-2), ("tf32", 1e-2), ("bf16", 5e-2)])
@pytest.mark.parametrize("name", LEARNERS.names())
def test_captured_and_eager_steps_agree(name: str, precision: Precision, tolerance: float) -> None:
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
