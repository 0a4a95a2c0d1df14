"""Which device is used."""

import pytest
import torch

from opencil.engine import device as devices
from opencil.engine.device import cpu_threads, present_devices, resolve_device
from opencil.errors import BadInput


def test_auto_is_a_device_that_computes() -> None:
    device = resolve_device("auto")
    assert float((torch.ones(2, device=device) + 1).sum()) == 4
    assert (device.type == "cpu") != torch.accelerator.is_available()


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("accelerator", "automatic"), [("cuda", "cuda"), ("mps", "cpu")])
def test_gpu_is_the_accelerator_and_auto_where_it_has_float64(
    accelerator: str, automatic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_accelerator", lambda: torch.device(accelerator))
    assert resolve_device("gpu").type == accelerator
    assert resolve_device("auto").type == automatic
    assert present_devices()[:3] == ["auto", "cpu", "gpu"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("name", "why"), [("gpu", "torch finds no GPU"), ("mps", "torch has no mps here"), ("cuda:0", "no cuda")]
)
def test_why_there_is_no_gpu_is_said_shortly(name: str, why: str) -> None:
    with pytest.raises(BadInput) as raised:
        resolve_device(name)
    assert why in str(raised.value)
    assert "opencil doctor" in str(raised.value)
    assert len(str(raised.value)) < 160


@pytest.mark.parametrize("name", ["", "cuda:99", "CPU", "cuda:x"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"^device '{name}' cannot be used .*: allowed here are auto, cpu"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["meta", "hpu"])
def test_a_device_that_cannot_compute_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="allowed here are auto, cpu"):
        resolve_device(name)


def test_a_cpu_computes_with_as_many_threads_as_are_asked_for_and_no_longer() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with cpu_threads(1):
            assert torch.get_num_threads() == 1
        with cpu_threads(None):
            assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), cpu_threads(1):
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
