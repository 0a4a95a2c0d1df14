"""Float64 on devices that have none: the CPU plays one."""

import pytest
import torch

from opencil.data import precision
from opencil.data.precision import placed, reachable, widened, widest
from opencil.detectors.finetune.augmix_operations import Rule, augmix, draw

CPU = torch.device("cpu")


def test_the_cpu_has_float64() -> None:
    numbers = torch.rand(3)
    assert widest(CPU) is torch.float64
    assert reachable(numbers) is numbers
    assert torch.equal(widened(numbers), numbers.double())
    assert placed(numbers.double(), CPU).dtype is torch.float64


def test_apples_devices_do_not() -> None:
    assert widest(torch.device("mps")) is torch.float32


def test_what_is_placed_on_such_a_device_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu",))
    assert placed(torch.rand(3, dtype=torch.float64), CPU).dtype is torch.float32
    assert placed(torch.arange(3), CPU).dtype is torch.int64
    assert widened(torch.rand(3)).dtype is torch.float64, "on the CPU"


@pytest.mark.parametrize("rule", ["original", "torchvision"])
def test_augmix_differs_there_by_roundings_alone(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.randint(256, (32, 3, 16, 16), generator=torch.Generator().manual_seed(0)).float()
    choices = draw(32, 3, 0, 3, 1.0, rule, torch.Generator().manual_seed(1))
    wide = augmix(pixels, choices, rule)
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu",))
    narrow = augmix(pixels, choices.to(CPU), rule)
    assert float((wide - narrow).abs().mean()) < 0.1, "of 255 grey levels"
