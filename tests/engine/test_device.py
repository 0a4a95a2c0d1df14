"""Which device is used."""

import pytest
import torch

from opencil.engine.device import resolve_device
from opencil.errors import BadInput


def test_auto_is_a_device_that_computes() -> None:
    device = resolve_device("auto")
    assert float((torch.ones(2, device=device) + 1).sum()) == 4
    assert (device.type == "cpu") != torch.accelerator.is_available()


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:99", "CPU", "cuda:x"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"^device '{name}' cannot be used .*: allowed here are auto, cpu"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["meta", "hpu"])
def test_a_device_that_cannot_compute_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="allowed here are auto, cpu"):
        resolve_device(name)
