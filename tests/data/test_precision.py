"""Float64 on devices without it, for which the CPU stands in."""

import pytest
import torch

from opencil.data import precision
from opencil.data.precision import as_float64, copy_to_device, to_float64_device, widest
from opencil.detectors.finetune.augmix_operations import Rule, augmix, draw

CPU = torch.device("cpu")


def test_the_cpu_has_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.rand(3)
    assert (widest(CPU), widest(torch.device("mps"))) == (torch.float64, torch.float32)
    assert to_float64_device(numbers) is numbers
    assert torch.equal(as_float64(numbers), numbers.double())
    assert copy_to_device(numbers.double(), CPU).dtype is torch.float64
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu",))
    assert copy_to_device(numbers.double(), CPU).dtype is torch.float32
    assert copy_to_device(torch.arange(3), CPU).dtype is torch.int64
    assert as_float64(numbers).dtype is torch.float64


@pytest.mark.parametrize("rule", ["original", "torchvision"])
def test_augmix_differs_only_by_rounding(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.randint(256, (32, 3, 16, 16), generator=torch.Generator().manual_seed(0)).float()
    choices = draw(32, 3, 0, 3, 1.0, rule, torch.Generator().manual_seed(1))
    wide = augmix(pixels, choices, rule)
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu",))
    assert float((wide - augmix(pixels, choices.to(CPU), rule)).abs().mean()) < 0.1  # of 255 grey levels
